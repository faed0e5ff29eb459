//! `POST /rerank` in text-embeddings-inference's form.

use axum::response::Response;
use serde::{Deserialize, Serialize};

use super::order::{best_first, check, check_copies, check_count, pairs};
use crate::{
    engine::{InferResponse, OutputKind},
    http::{
        answer::{Question, answer},
        call::{Call, RequestBody},
        error::TeiError,
        metrics::Arity,
        tei::{TruncationDirection, score_function, truncation},
    },
};

/// The request's body.
#[derive(Deserialize)]
pub(super) struct TextsBody {
    query: String,
    texts: Vec<String>,
    truncate: Option<bool>,
    truncation_direction: Option<TruncationDirection>,
    raw_scores: Option<bool>,
    return_text: Option<bool>,
}

impl RequestBody for TextsBody {
    type Error = TeiError;
}

#[derive(Serialize)]
struct Rank<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    score: f32,
}

/// `[{"index", "score", "text"}]`, the best first.
pub(super) async fn rerank(Call { target, body, received }: Call<TextsBody>) -> Result<Response, TeiError> {
    let TextsBody { query, texts, return_text, .. } = body;
    check(&target, "texts", texts.len())?;
    check_count(texts.len(), target.engine().info().max_client_batch_size)?;
    check_copies("query", &query, texts.len())?;
    let function = score_function(&target.engine().info().model, body.raw_scores);
    let returned = return_text.unwrap_or(false).then(|| texts.clone());
    let truncation = truncation(&target, body.truncate, body.truncation_direction);
    let question = Question { truncation, ..Question::new(Arity::Batch, OutputKind::RAW, received) };
    let inputs = pairs(query, texts).collect();
    let write = move |response: &InferResponse| {
        let text = |index: usize| returned.as_ref().map(|texts| texts[index].as_str());
        let rank = |(index, score)| Rank { index, text: text(index), score };
        let ranks: Vec<Rank<'_>> = best_first(response, function)?.into_iter().map(rank).collect();
        Ok(serde_json::to_vec(&ranks).expect("numbers and strings are always JSON"))
    };
    Ok(answer(&target, question, inputs, write).await?)
}
