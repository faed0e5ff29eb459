//! `POST /classify`: the label of each text, and the probability of every label.

use axum::response::Response;
use serde::{Deserialize, Serialize, de::IgnoredAny};
use turbo_models::tasks::{TaskError, rank, scores};

use super::{
    List,
    fields::{
        Cut, Padding, Side, activation, check_input, check_padding, check_special_tokens, not_null, word,
    },
    id_of,
};
use crate::{
    engine::{InferResponse, OutputKind, ScoreFunction},
    http::{
        ability::Ability,
        answer::{Question, answer_in_parts},
        call::{Call, RequestBody},
        error::OpenAiError,
        inputs::{Counted, Inputs, Whole},
        openai::check_count,
        write::{BYTES_PER_VALUE, check_finite},
    },
    tasks::IfFull,
};

/// The request's body.
#[derive(Deserialize)]
pub(in crate::http) struct ClassifyBody {
    model: Option<String>,
    #[serde(default, deserialize_with = "not_null")]
    input: Option<Inputs>,
    messages: Option<IgnoredAny>,
    use_activation: Option<bool>,
    activation: Option<bool>,
    softmax: Option<bool>,
    truncate_prompt_tokens: Option<Whole>,
    #[serde(default, deserialize_with = "word")]
    truncation_side: Option<Side>,
    #[serde(default, deserialize_with = "word")]
    padding: Option<Padding>,
    add_special_tokens: Option<bool>,
    request_id: Option<String>,
}

impl RequestBody for ClassifyBody {
    type Error = OpenAiError;

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

#[derive(Serialize)]
struct Class<'a> {
    index: usize,
    label: Option<&'a str>,
    /// In the order of the model's labels.
    probs: Vec<f32>,
    num_classes: usize,
}

/// `{"data": [{"index", "label", "probs", "num_classes"}], …}` in the order of the inputs.
pub(in crate::http) async fn classes(
    Call { target, body, received }: Call<ClassifyBody>,
) -> Result<Response, OpenAiError> {
    Ability::Predict.check(&target)?;
    let target = target.writing(BYTES_PER_VALUE);
    let Counted { inputs, arity } = check_input(body.input, body.messages)?;
    check_padding(body.padding)?;
    check_special_tokens(body.add_special_tokens)?;
    check_count(&target, inputs.len())?;
    let Cut { truncation, max_input_length } =
        Cut::of(&target, body.truncate_prompt_tokens, body.truncation_side)?;
    let model = &target.engine().info().model;
    target.check_values(inputs.len() * model.rows.pooled.unwrap_or(0))?;
    let function = match activation([body.use_activation, body.activation, body.softmax]) {
        Some(false) => ScoreFunction::Identity,
        Some(true) | None => model.score_function,
    };
    let (name, labels) = (model.name.clone(), model.labels.clone());
    let question =
        Question { truncation, max_input_length, ..Question::new(arity, OutputKind::RAW, received) };
    let id = id_of("classify", body.request_id);
    let write = move |response: &InferResponse| {
        check_finite(&response.rows)?;
        let rows = response.rows.iter().enumerate();
        let data = rows.map(|(index, row)| class(index, &row.values, &labels, function));
        Ok(List::new(id, &name, data.collect::<Result<_, _>>()?, response.usage.tokens).json())
    };
    Ok(answer_in_parts(target, question, inputs.into_iter(), IfFull::Fails, write).await?)
}

fn class<'a>(
    index: usize,
    logits: &[f32],
    labels: &'a [String],
    function: ScoreFunction,
) -> Result<Class<'a>, TaskError> {
    let probs = scores(logits, function)?;
    let best = rank(&probs).first().copied();
    let label = best.and_then(|best| labels.get(best)).map(String::as_str);
    Ok(Class { index, label, num_classes: probs.len(), probs })
}
