//! Which path leads where, and what all routes share.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    http::{HeaderValue, StatusCode},
    middleware,
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};

use super::{
    Metrics,
    ability::Ability,
    body::discard,
    error::{ApiError, OpenAiError, TeiError},
    headers, observe, openai, pipeline, tei,
};
use crate::engine::{Infer, ModelInfo};

/// What can be chosen about HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpOptions {
    /// Most bytes of a request's body; more is 413.
    pub payload_limit: usize,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self { payload_limit: 2_000_000 }
    }
}

/// What every handler may ask for; cheap to clone.
#[derive(Clone)]
pub(super) struct Server(Arc<Shared>);

struct Shared {
    engine: Arc<dyn Infer>,
    metrics: Metrics,
    options: HttpOptions,
    compute_type: HeaderValue,
}

impl Server {
    pub(super) fn engine(&self) -> &dyn Infer {
        &*self.0.engine
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(super) fn payload_limit(&self) -> usize {
        self.0.options.payload_limit
    }

    /// Value of `x-compute-type`.
    pub(super) fn compute_type(&self) -> HeaderValue {
        self.0.compute_type.clone()
    }
}

/// All routes of the server, for [`serve`](super::serve()) or for nesting in a server of one's own.
pub fn router(engine: Arc<dyn Infer>, metrics: Metrics, options: HttpOptions) -> Router {
    let model = &engine.info().model;
    let (main, compute_type) = (main_route(model), headers::compute_type(&model.device));
    let server = Server(Arc::new(Shared { engine, metrics, options, compute_type }));
    Router::new()
        .route("/embed", post(tei::embed))
        .route("/embed_all", post(tei::embed_all))
        .route("/embed_sparse", post(tei::embed_sparse))
        .route("/similarity", post(tei::similarity))
        .route("/predict", post(tei::predict))
        .route("/rerank", post(tei::rerank))
        .route("/pipeline/feature-extraction", post(tei::embed))
        .route("/pipeline/sentence-similarity", post(tei::similarity))
        .route("/pipeline/text-classification", post(pipeline::text_classification))
        .route("/pipeline/token-classification", post(pipeline::token_classification))
        .route("/pipeline/question-answering", post(pipeline::question_answering))
        .route("/pipeline/fill-mask", post(pipeline::fill_mask))
        .route("/tokenize", post(tei::tokenize))
        .route("/decode", post(tei::decode))
        .route("/v1/embeddings", post(openai::embeddings))
        .route("/embeddings", post(openai::embeddings))
        .route("/info", get(tei::info))
        .route("/health", get(tei::health))
        .route("/ping", get(tei::health))
        .route("/", main.clone().get(tei::health))
        .route("/invocations", main)
        .route("/metrics", get(tei::metrics))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(server.clone(), observe::observe))
        .with_state(server)
}

/// What `POST /` leads to: the route that answers for this model.
fn main_route(model: &ModelInfo) -> MethodRouter<Server> {
    match Ability::of(model) {
        Ability::EmbedSparse => post(tei::embed_sparse),
        Ability::Predict => post(tei::predict),
        Ability::Rerank => post(tei::rerank),
        Ability::Embed | Ability::EmbedAll | Ability::Similarity => post(tei::embed),
        Ability::TokenClassification => post(pipeline::token_classification),
        Ability::QuestionAnswering => post(pipeline::question_answering),
        Ability::FillMask => post(pipeline::fill_mask),
    }
}

async fn unknown_route(request: Request) -> Response {
    let message = format!("no route `{}`", request.uri().path());
    refuse(request, StatusCode::NOT_FOUND, message).await
}

async fn wrong_method(request: Request) -> Response {
    let message = format!("`{}` does not take {}", request.uri().path(), request.method());
    refuse(request, StatusCode::METHOD_NOT_ALLOWED, message).await
}

/// Refuses in the words of the protocol that the path belongs to.
async fn refuse(request: Request, status: StatusCode, message: String) -> Response {
    let (head, body) = request.into_parts();
    discard(&head.headers, body).await;
    let error = ApiError::refused(status, message);
    let path = head.uri.path();
    if path.starts_with("/v1/") || path == "/embeddings" {
        OpenAiError::from(error).into_response()
    } else {
        TeiError::from(error).into_response()
    }
}
