//! The OpenAPI document, and a page that shows it.
//!
//! Every route is added to the router together with its [`Operation`], so every route has one, and the document has no
//! others. A test (`tests/http/openapi.rs`) checks that each entry is true: it sends the examples and many invalid
//! requests, and validates every answer against the document.
//!
//! The document is written by hand, not derived from the handlers' types: bodies are defined by hand-written
//! deserializers ([`inputs`](super::inputs)), which a derive does not see.

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

/// The page: it loads the document beside it, and nothing else.
const PAGE: &str = include_str!("page.html");

/// The document of a router that is not nested.
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

/// The part of `path` before the router's own paths: as many segments as the pattern at which the router is nested has,
/// not counting the part for a model.
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
        // OpenAPI has no parameters of several segments: it is written as one of one segment.
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
        // A server may or may not have a key.
        "security": [{}, { "key": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
    })
}
