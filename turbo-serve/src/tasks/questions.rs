//! Answers to a question in a context of any length, by overlapping windows.

use std::ops::Range;

use turbo_models::tasks::{AnswerOptions, AnswerWindow, answers};

use super::{Found, Meter, aside, input, patience::AskedBefore};
use crate::engine::{
    Encoding, EngineError, Extent, Infer, InferRequest, OutputKind, Prompt, SpecialTokens, Texts,
    TokenizeRequest,
};

/// A question, and the text that holds its answer.
#[derive(Clone, Debug)]
pub struct QuestionRequest {
    /// The question.
    pub question: String,
    /// The text that is searched for the answer.
    pub context: String,
    /// Most tokens of a window, limited by what the model takes.
    pub max_seq_len: usize,
    /// Tokens of the context that neighbouring windows share, at most half a window.
    pub stride: usize,
    /// What counts as an answer.
    pub options: AnswerOptions,
}

impl QuestionRequest {
    /// With windows of 384 tokens that share 128, as the transformers library has them.
    #[must_use]
    pub fn new(question: String, context: String) -> Self {
        Self { question, context, max_seq_len: 384, stride: 128, options: AnswerOptions::default() }
    }
}

/// A part of the context.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundAnswer {
    /// Between 0 and 1.
    pub score: f32,
    /// The part of the context; empty if there is no answer.
    pub text: String,
    /// Its bytes.
    pub bytes: Range<usize>,
}

/// The answers to a question, the best first.
///
/// The windows go to the model in requests of as many as one request may have, one after the other: a long context
/// takes longer, not more slots. If no slots are free for the first of them it fails; the others wait for slots.
///
/// # Errors
/// Those of the engine. A question that leaves no room in a window is [`EngineError::Tokenizer`], a context of too many
/// windows [`EngineError::TooManyWindows`], or [`EngineError::TooManyAnswers`] for so many answers of each.
pub async fn answer_question(
    engine: &dyn Infer,
    request: QuestionRequest,
) -> Result<Found<Vec<FoundAnswer>>, EngineError> {
    let QuestionRequest { question, context, max_seq_len, stride, options } = request;
    let mut meter = Meter::start(question.chars().count() + context.chars().count());
    let max_len = max_seq_len.min(engine.info().max_input_length);
    let stride = stride.min(max_len / 2);
    let windows = windows(engine, &question, context.len(), max_len, stride).await?;
    check_size(windows, max_len, &options)?;
    let extent = Extent::Windows { max_len, stride };
    let texts = vec![Texts::Pair(question, context.clone())];
    let asked = AskedBefore::new(engine);
    let tokenized = asked.tokenize(TokenizeRequest { texts, extent, prompt: Prompt::None }).await?;
    let windows: Vec<_> = tokenized.into_iter().flat_map(|it| it.encodings).collect();
    meter.tokenized();

    let mut logits = Vec::with_capacity(windows.len());
    for some in windows.chunks(engine.info().max_client_batch_size) {
        let inputs = some.iter().map(|window| input(window, Vec::new())).collect();
        let request = InferRequest::new(inputs, OutputKind::Tokens);
        let response = match logits.is_empty() {
            true => engine.infer(request).await?,
            false => asked.infer(request).await?,
        };
        meter.inferred(&response.usage);
        logits.extend(response.rows);
    }
    let found = aside(move || {
        let windows: Vec<_> = windows
            .iter()
            .zip(&logits)
            .map(|(encoding, row)| AnswerWindow { encoding, logits: &row.values })
            .collect();
        let answers = answers(&context, &windows, &options)?;
        Ok(answers.into_iter().map(|answer| found_answer(&context, answer.score, answer.bytes)).collect())
    });
    Ok(meter.finish(found.await?))
}

/// Most tokens of all windows over a context together, its bytes counted as tokens: each takes some 200 bytes of
/// memory. With the default windows that is 2.5 MB of text. The limit is for questions that nearly fill a window: each
/// window then advances by a few tokens, and the windows of a long context would take all memory.
const MOST_WINDOW_TOKENS: usize = 1 << 22;
/// Most tokens of candidate answers, `top_k` of each window: each is a text that is kept and compared.
const MOST_ANSWER_TOKENS: usize = 1 << 24;
/// Special tokens around and between a question and its context, at most.
const SPECIAL_TOKENS: usize = 4;

/// The greatest possible number of windows.
async fn windows(
    engine: &dyn Infer,
    question: &str,
    context_bytes: usize,
    max_len: usize,
    stride: usize,
) -> Result<usize, EngineError> {
    let texts = vec![Texts::One(question.to_owned())];
    let extent = Extent::Whole(SpecialTokens::Without);
    let tokenized = engine.tokenize(TokenizeRequest { texts, extent, prompt: Prompt::None }).await?;
    let taken: usize = tokenized.iter().flat_map(|it| &it.encodings).map(Encoding::len).sum();
    let step = max_len.saturating_sub(taken + SPECIAL_TOKENS + stride).max(1);
    Ok(context_bytes.div_ceil(step))
}

/// Refuses requests that would take too long or too much memory, before the windows are built.
fn check_size(windows: usize, max_len: usize, options: &AnswerOptions) -> Result<(), EngineError> {
    if windows.saturating_mul(max_len) > MOST_WINDOW_TOKENS {
        return Err(EngineError::TooManyWindows { windows, max_len, limit: MOST_WINDOW_TOKENS });
    }
    let (top_k, answer_len) = (options.top_k, options.max_answer_len.min(max_len));
    if windows.saturating_mul(top_k).saturating_mul(answer_len) > MOST_ANSWER_TOKENS {
        return Err(EngineError::TooManyAnswers { windows, top_k, answer_len, limit: MOST_ANSWER_TOKENS });
    }
    Ok(())
}

fn found_answer(context: &str, score: f32, bytes: Range<usize>) -> FoundAnswer {
    FoundAnswer { score, text: context.get(bytes.clone()).unwrap_or_default().to_owned(), bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::fake::{Crowded, wait};

    #[test]
    fn a_question_that_was_begun_waits_for_room() {
        let request = QuestionRequest::new("b".to_owned(), "cde".to_owned());
        let found = wait(answer_question(&Crowded::new(), request));
        assert_eq!(found.found.len(), 1, "of three windows, two at a time");
    }
}
