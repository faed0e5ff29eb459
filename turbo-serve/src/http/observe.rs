//! A line per request when it ends, and a count of what failed.

use std::time::Instant;

use axum::{
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, Uri},
    middleware::Next,
    response::Response,
};

use super::{error::Failure, router::Server};
use crate::request_span;

/// Wraps the handling of a request.
pub(super) async fn observe(State(server): State<Server>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = request_span::id(request.headers()).cloned();
    let asked = Asked { method: request.method().clone(), uri: request.uri().clone(), id };
    let asks = asked.method == Method::POST; // for embeddings; health is asked for otherwise
    let response = next.run(request).await;
    let failure = response.extensions().get::<Failure>().copied();
    if let Some(Failure(reason)) = failure.filter(|_| asks) {
        server.metrics().failed(reason);
    }
    asked.log(response.status(), failure, start);
    response
}

/// What a line of the log says of a request.
struct Asked {
    method: Method,
    uri: Uri,
    id: Option<HeaderValue>,
}

impl Asked {
    fn path(&self) -> &str {
        self.uri.path()
    }

    fn id(&self) -> Option<&str> {
        self.id.as_ref().and_then(|id| id.to_str().ok())
    }

    /// What is ours to mend is seen by default. What a client does wrong it is told itself, and it is counted: a line
    /// for each would be the loudest when an overloaded server has the least time to write it.
    fn log(&self, status: StatusCode, reason: Option<Failure>, start: Instant) {
        let (status, latency_us) = (status.as_u16(), start.elapsed().as_micros() as u64);
        let (method, path, id) = (&self.method, self.path(), self.id());
        let reason = reason.map(|Failure(reason)| reason);
        // a level is part of the call site, so each has its own
        match status {
            424 | 500.. => {
                tracing::warn!(%method, path, id, status, reason, latency_us, "not answered");
            }
            400.. => tracing::debug!(%method, path, id, status, reason, latency_us, "refused"),
            _ => tracing::debug!(%method, path, id, status, latency_us, "answered"),
        }
    }
}
