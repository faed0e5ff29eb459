//! Routes about the server: `/info`, `/health`, `/metrics`.

use std::collections::BTreeMap;

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use serde::{Serialize, Serializer};

use crate::{
    engine::{EngineInfo, Health, ModelInfo, Pooling, Task},
    http::{
        error::{ApiError, TeiError},
        router::Server,
        target::{InPath, Target},
    },
    models::Models,
};

/// The answer of `GET /info`.
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
    cache_bytes: usize,
    version: &'a str,
    sha: Option<&'a str>,
    docker_label: Option<&'a str>,
}

/// The first three are text-embeddings-inference's; it serves no others.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum ModelType<'a> {
    Embedding { pooling: &'static str },
    Classifier(Labels<'a>),
    Reranker(Labels<'a>),
    TokenClassifier(Labels<'a>),
    QuestionAnswering {},
    MaskedLm { mask_token: Option<&'a str> },
}

#[derive(Serialize)]
struct Labels<'a> {
    #[serde(serialize_with = "in_order")]
    id2label: &'a [String],
    label2id: BTreeMap<&'a str, usize>,
}

/// `{"0": …, "1": …}`, in the order of the logits.
fn in_order<S: Serializer>(labels: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(labels.iter().enumerate().map(|(id, label)| (id.to_string(), label)))
}

impl<'a> From<&'a ModelInfo> for ModelType<'a> {
    fn from(model: &'a ModelInfo) -> Self {
        let labels = || Labels {
            id2label: &model.labels,
            label2id: model.labels.iter().enumerate().map(|(id, label)| (label.as_str(), id)).collect(),
        };
        match model.task {
            Task::Embedding { pooling } => Self::Embedding { pooling: pooling_name(pooling) },
            Task::SparseEmbedding => Self::Embedding { pooling: "splade" },
            Task::SequenceClassification if model.labels.len() == 1 => Self::Reranker(labels()),
            Task::SequenceClassification => Self::Classifier(labels()),
            Task::TokenClassification => Self::TokenClassifier(labels()),
            Task::QuestionAnswering => Self::QuestionAnswering {},
            Task::MaskedLm => {
                Self::MaskedLm { mask_token: model.mask_token.as_ref().map(|token| token.text.as_str()) }
            }
        }
    }
}

/// The name that text-embeddings-inference has for a pooling, or one in its style.
fn pooling_name(pooling: Pooling) -> &'static str {
    match pooling {
        Pooling::Cls => "cls",
        Pooling::Mean => "mean",
        Pooling::LastToken => "last_token",
        Pooling::Max => "max",
        Pooling::MeanSqrtLen => "mean_sqrt_len",
        Pooling::WeightedMean => "weighted_mean",
    }
}

impl<'a> From<&'a EngineInfo> for Info<'a> {
    fn from(info: &'a EngineInfo) -> Self {
        Self {
            model_id: &info.model.model_id,
            model_sha: info.model.sha.as_deref(),
            model_dtype: info.model.dtype,
            served_model_name: &info.model.name,
            model_type: ModelType::from(&info.model),
            max_concurrent_requests: info.max_concurrent_requests,
            max_input_length: info.max_input_length,
            max_batch_tokens: info.max_batch_tokens,
            max_batch_requests: info.max_batch_requests,
            max_client_batch_size: info.max_client_batch_size,
            auto_truncate: info.auto_truncate,
            tokenization_workers: info.tokenization_workers,
            cache_bytes: info.cache_bytes.unwrap_or(0),
            version: info.version,
            sha: None,
            docker_label: None,
        }
    }
}

/// `GET /info`.
pub(in crate::http) async fn info(target: Target) -> Response {
    axum::Json(Info::from(target.engine().info())).into_response()
}

/// `GET /health`: 200 without a body, or 503 with the reason; for all models together ([`Models::health`]), or for the
/// one that the path names. It never loads a model.
///
/// [`Models::health`]: crate::models::Models::health
pub(in crate::http) async fn health(State(server): State<Server>, path: InPath) -> Result<(), TeiError> {
    let models = server.models();
    let health = match path.wanted() {
        Some(wanted) => Some(models.find(wanted).map_err(ApiError::from)?.engine().health()),
        None => models.health(),
    };
    Ok(check(health, models)?)
}

/// Fails with the reason if the health is not `Ready`.
pub(in crate::http) fn check(health: Option<Health>, models: &Models) -> Result<(), ApiError> {
    let why = match health {
        Some(Health::Ready) => return Ok(()),
        Some(Health::Starting) => "the model is being prepared".to_owned(),
        Some(Health::Failing) => "the model cannot be run".to_owned(),
        Some(Health::Stopping) => "the server is stopping".to_owned(),
        None => models.failure().unwrap_or_else(|| "no model is loaded".to_owned()),
    };
    Err(ApiError::unhealthy(format!("unhealthy: {why}")))
}

/// `GET /metrics`: Prometheus' text format.
pub(in crate::http) async fn metrics(State(server): State<Server>) -> Response {
    let content_type = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (content_type, server.metrics().render()).into_response()
}
