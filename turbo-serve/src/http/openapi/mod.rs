//! The OpenAPI document, and a page that shows it.
//!
//! Every route is entered into the router together with its [`Operation`], so none of them is without one, and the
//! document has no others. That it is true of each, a test finds out (`tests/http/openapi.rs`): it sends the examples and
//! a lot that is wrong, and holds every answer against the document.
//!
//! Written by hand beside the handlers' types instead of derived from them: what a body may be is said by readers of
//! its own ([`inputs`](super::inputs)), which no derive sees.

mod operation;
mod operations;
mod schemas;

use std::sync::LazyLock;

use axum::{
    extract::{NestedPath, OriginalUri, rejection::NestedPathRejection},
    http::header,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};

use super::{kserve::routes as of_kserve, model_path::MODEL, router::routes};

pub(super) use operation::Operation;
pub(super) use operations::{cohere, kserve, openai, pipeline, rerank, server, tei, vllm};

/// The page: it reads the document that lies beside it, and nothing else.
const PAGE: &str = include_str!("page.html");

/// The document of a router that is nested nowhere.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| document("").to_string());

/// `GET /openapi.json` and `GET /api-doc/openapi.json`.
pub(super) async fn openapi(
    OriginalUri(uri): OriginalUri,
    nested: Result<NestedPath, NestedPathRejection>,
) -> Response {
    let json = [(header::CONTENT_TYPE, "application/json")];
    match nested.as_ref().map_or("", |nested| above(uri.path(), nested.as_str())) {
        "" => (json, DOCUMENT.as_str()).into_response(),
        above => (json, document(above).to_string()).into_response(),
    }
}

/// What stands before the router's own paths in `path`: as many segments as the pattern has that it is nested at, without
/// the part that is of a model.
fn above<'a>(path: &'a str, pattern: &str) -> &'a str {
    let pattern = pattern.find(&*MODEL).map_or(pattern, |at| &pattern[..at]);
    let segments = pattern.trim_end_matches('/').matches('/').count();
    path.match_indices('/').nth(segments).map_or(path, |(end, _)| &path[..end])
}

/// `GET /docs`.
pub(super) async fn page() -> Response {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], PAGE).into_response()
}

/// The document of a router whose paths follow `above`.
fn document(above: &str) -> Value {
    let root = if above.is_empty() { "/" } else { above };
    let mut paths = Map::new();
    for (method, path, operation) in routes().operations.into_iter().chain(of_kserve().operations) {
        // A parameter of many segments is written as one.
        let path = path.replace("{*", "{");
        let path = paths.entry(path).or_insert_with(|| json!({}));
        path[method] = operation.into_json(root);
    }
    let version = |name: &str| json!({ "default": name, "description": "as GET /v1/models lists it" });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "turbo",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Transformer models whose inputs vary in length",
            "description": "Routes of text-embeddings-inference, OpenAI's and Cohere's embeddings, Cohere's and Jina's rerankers, vLLM's scores, classes and rows, \
                the tasks of Hugging Face's inference clients, and KServe's Open Inference Protocol. A route that the model is not for answers 424 and names the \
                route to use.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [
            { "url": root, "description": "the default model, or the one that the body names" },
            {
                "url": format!("{above}/models/{{model}}"),
                "description": "one of several models",
                "variables": { "model": version("model") },
            },
            {
                "url": format!("{above}/models/{{model}}/versions/{{version}}"),
                "description": "one version of it",
                "variables": { "model": version("model"), "version": version("latest") },
            },
        ],
        // A server has a key or none.
        "security": [{}, { "key": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
    })
}
