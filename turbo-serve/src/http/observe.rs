//! One span per request, one line when it ends, and a count of what failed.

use std::time::Instant;

use axum::{
    extract::{Request, State},
    http::{HeaderName, Method, StatusCode},
    middleware::Next,
    response::Response,
};
use tracing::{Instrument, Span};

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
    let failure = response.extensions().get::<Failure>().copied();
    if let Some(Failure(reason)) = failure.filter(|_| asks) {
        server.metrics().failed(reason);
    }
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    log(&span, response.status(), failure, start);
    response
}

/// What is ours to mend is seen by default. What a client does wrong it is told itself, and it is counted: a line for
/// each would be the loudest when an overloaded server has the least time to write it.
fn log(span: &Span, status: StatusCode, reason: Option<Failure>, start: Instant) {
    let (status, latency_us) = (status.as_u16(), start.elapsed().as_micros() as u64);
    let reason = reason.map(|Failure(reason)| reason);
    // a level is part of the call site, so each has its own
    match status {
        424 | 500.. => tracing::warn!(parent: span, status, reason, latency_us, "not answered"),
        400.. => tracing::debug!(parent: span, status, reason, latency_us, "refused"),
        _ => tracing::debug!(parent: span, status, latency_us, "answered"),
    }
}
