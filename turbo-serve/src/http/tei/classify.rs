//! The route of sequence classifiers: `/predict` scores labels. Ranking texts by the score of a model's only label is
//! in [`rerank`](crate::http::rerank).

use axum::response::Response;
use serde::{Deserialize, Serialize, de::IgnoredAny};
use turbo_models::tasks::{LabelScore, TaskError, classify};

use super::{TruncationDirection, truncation};
use crate::{
    engine::{InferResponse, ModelInfo, OutputKind, ScoreFunction},
    http::{
        ability::Ability,
        answer::{Question, answer},
        call::{Call, RequestBody},
        error::{ApiError, TeiError},
        inputs::{Counted, Object, PredictInputs},
        metrics::Arity,
        write::check_finite,
    },
};

/// Body of `POST /predict`.
#[derive(Deserialize)]
pub(in crate::http) struct PredictBody {
    inputs: PredictInputs,
    truncate: Option<bool>,
    truncation_direction: Option<TruncationDirection>,
    raw_scores: Option<bool>,
    /// Sent by clients for zero-shot classification.
    parameters: Option<Object<Parameters>>,
}

#[derive(Default, Deserialize)]
struct Parameters {
    candidate_labels: Option<IgnoredAny>,
}

impl RequestBody for PredictBody {
    type Error = TeiError;
}

#[derive(Serialize)]
struct Prediction<'a> {
    score: f32,
    label: &'a str,
}

/// How a model's logits become scores between 0 and 1 on text-embeddings-inference's routes. A cross-encoder's folder
/// may say that the logits are the scores. text-embeddings-inference ignores that, and its clients' thresholds are made
/// for scores in that range: they ask for logits with `raw_scores`.
pub(crate) fn score_function(model: &ModelInfo, raw_scores: Option<bool>) -> ScoreFunction {
    match model.score_function {
        _ if raw_scores == Some(true) => ScoreFunction::Identity,
        _ if model.labels.len() == 1 => ScoreFunction::Sigmoid,
        ScoreFunction::Sigmoid => ScoreFunction::Sigmoid,
        ScoreFunction::Softmax | ScoreFunction::Identity => ScoreFunction::Softmax,
    }
}

/// Refuses labels of the client's own: it would get the model's labels instead.
pub(in crate::http) fn check_labels(
    model: &ModelInfo,
    candidate_labels: Option<IgnoredAny>,
) -> Result<(), ApiError> {
    if candidate_labels.is_none() {
        return Ok(());
    }
    let labels = model.labels.join("`, `");
    Err(ApiError::validation(format!(
        "`candidate_labels` is not possible: this model scores its own labels, `{labels}`; leave it out"
    )))
}

/// `[{"score", "label"}]` for one input, `[[…]]` for a batch; the best first.
pub(in crate::http) async fn predict(
    Call { target, body, received }: Call<PredictBody>,
) -> Result<Response, TeiError> {
    let model = &target.engine().info().model;
    Ability::Predict.check(&target)?;
    check_labels(model, body.parameters.unwrap_or_default().0.candidate_labels)?;
    let (labels, function) = (model.labels.clone(), score_function(model, body.raw_scores));
    let Counted { inputs, arity } = body.inputs.0;
    let truncation = truncation(&target, body.truncate, body.truncation_direction);
    let question = Question { truncation, ..Question::new(arity, OutputKind::RAW, received) };
    let write = move |response: &InferResponse| {
        check_finite(&response.rows)?;
        let all = response.rows.iter().map(|row| predictions(&row.values, &labels, function));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        let json = match arity {
            Arity::Single => serde_json::to_vec(&all[0]),
            Arity::Batch => serde_json::to_vec(&all),
        };
        Ok(json.expect("numbers and strings are always JSON"))
    };
    Ok(answer(&target, question, inputs, write).await?)
}

fn predictions<'a>(
    logits: &[f32],
    labels: &'a [String],
    function: ScoreFunction,
) -> Result<Vec<Prediction<'a>>, TaskError> {
    let prediction = |it: LabelScore| Prediction { score: it.score, label: &labels[it.index] };
    Ok(classify(logits, function)?.into_iter().map(prediction).collect())
}
