//! The routes of sequence classifiers: `/predict` scores labels, `/rerank` orders texts by the score of the only one.

use axum::response::Response;
use serde::{Deserialize, Serialize};
use turbo_models::tasks::{LabelScore, TaskError, classify, rank};

use super::{TruncationDirection, truncation};
use crate::{
    engine::{EngineError, InferResponse, Input, ModelInfo, OutputKind, Row, ScoreFunction},
    http::{
        ability::Ability,
        answer::{Question, answer},
        call::{Call, RequestBody},
        error::{ApiError, TeiError},
        inputs::{Counted, PredictInputs},
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
}

/// Body of `POST /rerank`.
#[derive(Deserialize)]
pub(in crate::http) struct RerankBody {
    query: String,
    texts: Vec<String>,
    truncate: Option<bool>,
    truncation_direction: Option<TruncationDirection>,
    raw_scores: Option<bool>,
    return_text: Option<bool>,
}

impl RequestBody for PredictBody {
    type Error = TeiError;
}

impl RequestBody for RerankBody {
    type Error = TeiError;
}

#[derive(Serialize)]
struct Prediction<'a> {
    score: f32,
    label: &'a str,
}

#[derive(Serialize)]
struct Rank<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    score: f32,
}

/// How the logits of a model become scores between 0 and 1 here. The folder of a cross-encoder may say that its logits
/// are the scores; text-embeddings-inference does not look, and its clients' thresholds are made for that:
/// `raw_scores` is how they ask for logits.
fn score_function(model: &ModelInfo, raw_scores: Option<bool>) -> ScoreFunction {
    match model.score_function {
        _ if raw_scores == Some(true) => ScoreFunction::Identity,
        _ if model.labels.len() == 1 => ScoreFunction::Sigmoid,
        ScoreFunction::Sigmoid => ScoreFunction::Sigmoid,
        ScoreFunction::Softmax | ScoreFunction::Identity => ScoreFunction::Softmax,
    }
}

/// `[{"score", "label"}]` for one input, `[[…]]` for a batch; the best first.
pub(in crate::http) async fn predict(
    Call { target, body, received }: Call<PredictBody>,
) -> Result<Response, TeiError> {
    let model = &target.engine().info().model;
    Ability::Predict.check(model)?;
    let (labels, function) = (model.labels.clone(), score_function(model, body.raw_scores));
    let inputs = body.inputs.0;
    let arity = inputs.arity;
    let question = Question {
        inputs,
        output: OutputKind::RAW,
        truncation: Some(truncation(&target, body.truncate, body.truncation_direction)),
        prompt_name: None,
        received,
    };
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
    Ok(answer(&target, question, write).await?)
}

fn predictions<'a>(
    logits: &[f32],
    labels: &'a [String],
    function: ScoreFunction,
) -> Result<Vec<Prediction<'a>>, TaskError> {
    let prediction = |it: LabelScore| Prediction { score: it.score, label: &labels[it.index] };
    Ok(classify(logits, function)?.into_iter().map(prediction).collect())
}

/// `[{"index", "score", "text"}]`, the best first.
pub(in crate::http) async fn rerank(
    Call { target, body, received }: Call<RerankBody>,
) -> Result<Response, TeiError> {
    let model = &target.engine().info().model;
    Ability::Rerank.check(model)?;
    let RerankBody { query, texts, return_text, .. } = body;
    if texts.is_empty() {
        return Err(ApiError::empty("`texts` cannot be empty").into());
    }
    // Before the query is copied for each: a megabyte of query, and three hundred thousand empty texts, are 2 MB.
    let (got, limit) = (texts.len(), target.engine().info().max_client_batch_size);
    if got > limit {
        return Err(ApiError::from(EngineError::TooManyInputs { got, limit }).into());
    }
    let function = score_function(model, body.raw_scores);
    let returned = return_text.unwrap_or(false).then(|| texts.clone());
    let pairs = texts.into_iter().map(|text| Input::Pair(query.clone(), text)).collect();
    let question = Question {
        inputs: Counted::batch(pairs),
        output: OutputKind::RAW,
        truncation: Some(truncation(&target, body.truncate, body.truncation_direction)),
        prompt_name: None,
        received,
    };
    let write = move |response: &InferResponse| {
        check_finite(&response.rows)?;
        let score = |row: &Row| classify(&row.values, function).map(|scores| scores[0].score);
        let scores = response.rows.iter().map(score).collect::<Result<Vec<f32>, _>>()?;
        let text = |index: usize| returned.as_ref().map(|texts| texts[index].as_str());
        let ranked = |index| Rank { index, text: text(index), score: scores[index] };
        let ranks: Vec<Rank<'_>> = rank(&scores).into_iter().map(ranked).collect();
        Ok(serde_json::to_vec(&ranks).expect("numbers and strings are always JSON"))
    };
    Ok(answer(&target, question, write).await?)
}
