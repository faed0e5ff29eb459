//! `POST /pipeline/question-answering`.

use axum::response::Response;
use serde::{Deserialize, Serialize};
use turbo_models::{
    CharOffsets,
    tasks::{AnswerOptions, Edges, NullAnswer},
};

use crate::{
    http::{
        ability::Ability,
        answer::{answered, caught, elsewhere},
        call::{Call, RequestBody},
        error::{ApiError, TeiError},
        inputs::{Count, Object, at_least_one},
        metrics::Arity,
    },
    tasks::{Found, FoundAnswer, QuestionRequest, answer_question},
};

/// The request's body.
#[derive(Deserialize)]
pub(in crate::http) struct QuestionBody {
    inputs: Object<Inputs>,
    parameters: Option<Object<Parameters>>,
}

#[derive(Deserialize)]
struct Inputs {
    question: String,
    context: String,
}

#[derive(Default, Deserialize)]
struct Parameters {
    top_k: Option<Count>,
    doc_stride: Option<Count>,
    max_answer_len: Option<Count>,
    max_seq_len: Option<Count>,
    handle_impossible_answer: Option<bool>,
    align_to_words: Option<bool>,
}

impl RequestBody for QuestionBody {
    type Error = TeiError;
}

#[derive(Serialize)]
struct Answer<'a> {
    score: f32,
    start: usize,
    end: usize,
    answer: &'a str,
}

/// Greatest `max_answer_len`, in tokens: that many spans are scored for every token of the context.
const MOST_ANSWER_LEN: usize = 512;
/// Greatest `top_k`: that many answers are kept for every window.
const MOST_ANSWERS: usize = 1000;

/// `{"score", "start", "end", "answer"}`, a list of them for `top_k` above 1.
pub(in crate::http) async fn question_answering(
    Call { target, body, received }: Call<QuestionBody>,
) -> Result<Response, TeiError> {
    Ability::QuestionAnswering.check(&target)?;
    let Inputs { question, context } = body.inputs.0;
    let request = QuestionRequest { room: target.room(), ..QuestionRequest::new(question, context.clone()) };
    let request = body.parameters.unwrap_or_default().0.apply(request)?;
    let top_k = request.options.top_k;
    target.metrics().received(Arity::Single);
    let target = target.begun()?;
    let Found { found, usage } = caught(|| Box::pin(answer_question(target.engine(), request))).await?;
    // Counting the characters of a long context takes milliseconds.
    let body = elsewhere(move || Ok(json(&context, &found, top_k)));
    Ok(answered(&target, Arity::Single, &usage, received, body.await?))
}

impl Parameters {
    fn apply(self, mut request: QuestionRequest) -> Result<QuestionRequest, ApiError> {
        let default = request.options;
        for (name, value, limit) in
            [("top_k", self.top_k, MOST_ANSWERS), ("max_answer_len", self.max_answer_len, MOST_ANSWER_LEN)]
        {
            if let Some(Count(got)) = value.filter(|count| count.0 > limit) {
                return Err(ApiError::validation(format!("`{name}` is {got}, expected at most {limit}")));
            }
        }
        request.max_seq_len = at_least_one("max_seq_len", self.max_seq_len)?.unwrap_or(request.max_seq_len);
        request.stride = self.doc_stride.map_or(request.stride, |Count(stride)| stride);
        request.options = AnswerOptions {
            top_k: at_least_one("top_k", self.top_k)?.unwrap_or(default.top_k),
            max_answer_len: at_least_one("max_answer_len", self.max_answer_len)?
                .unwrap_or(default.max_answer_len),
            null_answer: match self.handle_impossible_answer {
                Some(true) => NullAnswer::Allowed,
                Some(false) | None => default.null_answer,
            },
            edges: match self.align_to_words {
                Some(false) => Edges::Tokens,
                Some(true) | None => default.edges,
            },
        };
        Ok(request)
    }
}

fn json(context: &str, found: &[FoundAnswer], top_k: usize) -> Vec<u8> {
    let characters = CharOffsets::of(context);
    let mut answers = found.iter().map(|found| {
        let range = characters.range(&found.bytes);
        Answer { score: found.score, start: range.start, end: range.end, answer: &found.text }
    });
    let none = Answer { score: 0.0, start: 0, end: 0, answer: "" };
    let json = match top_k {
        // An empty context has no answers: the result is an empty one with score 0.
        1 => serde_json::to_vec(&answers.next().unwrap_or(none)),
        _ => serde_json::to_vec(&answers.collect::<Vec<_>>()),
    };
    json.expect("numbers and strings are always JSON")
}
