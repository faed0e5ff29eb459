//! A line per request when it ends, and a count of what failed.

use std::time::Instant;

use axum::{
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, Uri},
    middleware::Next,
    response::Response,
};
use metrics::counter;

use super::{
    error::{ApiError, Failure},
    router::{Server, refuse},
};
use crate::{
    metric_names::{ERR, REQUEST_FAILURE},
    request_span,
};

/// Wraps the handling of a request.
pub(super) async fn observe(State(server): State<Server>, request: Request, next: Next) -> Response {
    let (asked, start) = (Asked::by(&request), Instant::now());
    let asks = asked.method == Method::POST; // for embeddings; health is asked for otherwise
    let response = next.run(request).await;
    let failure = response.extensions().get::<Failure>().copied();
    if let Some(Failure(reason)) = failure.filter(|_| asks) {
        server.metrics().failed(reason);
    }
    asked.log(response.status(), failure, start);
    response
}

/// Refuses a request that comes to no route: it has a span, a line and a count like any other.
pub(crate) async fn turn_away(request: Request, error: ApiError) -> Response {
    request_span::around(request, |request| async move {
        let (asked, start) = (Asked::by(&request), Instant::now());
        let (status, failure) = (error.status(), error.failure());
        counter!(REQUEST_FAILURE, ERR => failure.0).increment(1);
        let response = refuse(&asked.uri, request, error).await;
        asked.log(status, Some(failure), start);
        response
    })
    .await
}

/// What a line of the log says of a request.
struct Asked {
    method: Method,
    uri: Uri,
    id: Option<HeaderValue>,
}

impl Asked {
    fn by(request: &Request) -> Self {
        let id = request_span::id(request.headers()).cloned();
        Self { method: request.method().clone(), uri: request.uri().clone(), id }
    }

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
