//! One span per request, one line when it ends, and a count of what failed.

use std::time::Instant;

use axum::{
    extract::{Request, State},
    http::{HeaderName, Method, StatusCode},
    middleware::Next,
    response::Response,
};
use tracing::{Instrument, Level, Span};

use super::{error::Failure, router::Server};

/// A client's own name for its request; comes back with the answer.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Wraps the handling of a request.
pub(super) async fn observe(State(server): State<Server>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = request.headers().get(REQUEST_ID).cloned();
    let span = tracing::info_span!(
        "request",
        method = %request.method(),
        path = request.uri().path(),
        id = id.as_ref().and_then(|id| id.to_str().ok()),
    );
    let asks = request.method() == Method::POST; // for embeddings; health is asked for otherwise
    let mut response = next.run(request).instrument(span.clone()).await;
    if let Some(Failure(reason)) = response.extensions().get().filter(|_| asks) {
        server.metrics().failed(reason);
    }
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    log(&span, response.status(), start);
    response
}

/// Success is of interest to few, a client's error to some, ours to all.
fn log(span: &Span, status: StatusCode, start: Instant) {
    let level = match status {
        status if status.is_success() => Level::DEBUG,
        StatusCode::FAILED_DEPENDENCY => Level::ERROR,
        status if status.is_server_error() => Level::WARN,
        _ => Level::INFO,
    };
    let (status, latency_us) = (status.as_u16(), start.elapsed().as_micros() as u64);
    // a level is part of the call site, so each has its own
    match level {
        Level::ERROR => tracing::error!(parent: span, status, latency_us, "failed"),
        Level::WARN => tracing::warn!(parent: span, status, latency_us, "not answered"),
        Level::INFO => tracing::info!(parent: span, status, latency_us, "refused"),
        _ => tracing::debug!(parent: span, status, latency_us, "answered"),
    }
}
