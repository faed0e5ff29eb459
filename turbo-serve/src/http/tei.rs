//! The routes of text-embeddings-inference, as its clients call them.

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};

use super::{
    answer::{Question, answer},
    body::{Json, RequestBody},
    error::{ApiError, TeiError},
    inputs::Inputs,
    router::Server,
    write,
};
use crate::engine::{Health, ModelInfo, OutputKind, Truncation};

/// Which end of a long input is cut off.
#[derive(Clone, Copy, Debug, Deserialize)]
enum TruncationDirection {
    #[serde(alias = "left")]
    Left,
    #[serde(alias = "right")]
    Right,
}

/// Body of `POST /embed`. Fields not named here are ignored; `null` is as good as leaving one out.
#[derive(Deserialize)]
pub(super) struct EmbedBody {
    inputs: Inputs,
    truncate: Option<bool>,
    truncation_direction: Option<TruncationDirection>,
    prompt_name: Option<String>,
    normalize: Option<bool>,
    dimensions: Option<usize>,
}

/// Body of `POST /embed_all`: as [`EmbedBody`], without what concerns pooled rows.
#[derive(Deserialize)]
pub(super) struct EmbedAllBody {
    inputs: Inputs,
    truncate: Option<bool>,
    truncation_direction: Option<TruncationDirection>,
    prompt_name: Option<String>,
}

impl RequestBody for EmbedBody {
    type Error = TeiError;
}

impl RequestBody for EmbedAllBody {
    type Error = TeiError;
}

/// `POST /embed` and `POST /`: `[[f32]]`, nested for a single input too.
pub(super) async fn embed(
    State(server): State<Server>,
    Json { body, received }: Json<EmbedBody>,
) -> Result<Response, TeiError> {
    no_prompt(body.prompt_name.as_deref())?;
    let question = Question {
        inputs: body.inputs,
        output: OutputKind::Pooled { normalize: body.normalize.unwrap_or(true), dimensions: body.dimensions },
        truncation: Some(truncation(&server, body.truncate, body.truncation_direction)),
        received,
    };
    Ok(answer(&server, question, |response| write::embeddings(&response.rows)).await?)
}

/// `POST /embed_all`: `[[[f32]]]`, a row per token.
pub(super) async fn embed_all(
    State(server): State<Server>,
    Json { body, received }: Json<EmbedAllBody>,
) -> Result<Response, TeiError> {
    no_prompt(body.prompt_name.as_deref())?;
    let question = Question {
        inputs: body.inputs,
        output: OutputKind::Tokens,
        truncation: Some(truncation(&server, body.truncate, body.truncation_direction)),
        received,
    };
    Ok(answer(&server, question, |response| write::token_embeddings(&response.rows)).await?)
}

fn truncation(server: &Server, truncate: Option<bool>, direction: Option<TruncationDirection>) -> Truncation {
    match (truncate.unwrap_or(server.engine().info().auto_truncate), direction) {
        (false, _) => Truncation::Off,
        (true, Some(TruncationDirection::Left)) => Truncation::Left,
        (true, Some(TruncationDirection::Right) | None) => Truncation::Right,
    }
}

/// No model folder that is served defines prompts, so whichever is asked for is unknown.
fn no_prompt(name: Option<&str>) -> Result<(), ApiError> {
    match name {
        None => Ok(()),
        Some(name) => {
            let message = format!("`prompt_name` is `{name}`, but this model has no prompts: leave it out");
            Err(ApiError::validation(message))
        }
    }
}

/// What `GET /info` tells.
#[derive(Serialize)]
struct Info<'a> {
    model_id: &'a str,
    model_sha: Option<&'a str>,
    model_dtype: &'a str,
    served_model_name: &'a str,
    model_type: ModelType<'a>,
    max_concurrent_requests: usize,
    max_input_length: usize,
    max_batch_tokens: usize,
    max_batch_requests: Option<usize>,
    max_client_batch_size: usize,
    auto_truncate: bool,
    tokenization_workers: usize,
    version: &'a str,
    sha: Option<&'a str>,
    docker_label: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum ModelType<'a> {
    Embedding { pooling: &'a str },
}

impl<'a> From<&'a ModelInfo> for Info<'a> {
    fn from(info: &'a ModelInfo) -> Self {
        Self {
            model_id: &info.model_id,
            model_sha: None,
            model_dtype: info.dtype,
            served_model_name: &info.name,
            model_type: ModelType::Embedding { pooling: info.pooling },
            max_concurrent_requests: info.max_concurrent_requests,
            max_input_length: info.max_input_length,
            max_batch_tokens: info.max_batch_tokens,
            max_batch_requests: info.max_batch_requests,
            max_client_batch_size: info.max_client_batch_size,
            auto_truncate: info.auto_truncate,
            tokenization_workers: info.tokenization_workers,
            version: info.version,
            sha: None,
            docker_label: None,
        }
    }
}

/// `GET /info`.
pub(super) async fn info(State(server): State<Server>) -> Response {
    axum::Json(Info::from(server.engine().info())).into_response()
}

/// `GET /health`: 200 and nothing else, or 503 and why.
pub(super) async fn health(State(server): State<Server>) -> Result<(), TeiError> {
    let why = match server.engine().health() {
        Health::Ready => return Ok(()),
        Health::Starting => "the model is being prepared",
        Health::Failing => "the model cannot be run",
        Health::Stopping => "the server is stopping",
    };
    Err(ApiError::unhealthy(format!("unhealthy: {why}")).into())
}

/// `GET /metrics`: Prometheus' text format.
pub(super) async fn metrics(State(server): State<Server>) -> Response {
    let content_type = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (content_type, server.metrics().render()).into_response()
}
