//! Logs each request when it ends, and counts failures.

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

/// Middleware that logs a request, and counts it if it fails.
pub(super) async fn observe(State(server): State<Server>, request: Request, next: Next) -> Response {
    let asked = Asked::by(&request);
    let response = next.run(request).await;
    let failure = response.extensions().get::<Failure>().copied();
    if let Some(Failure(reason)) = failure.filter(|_| asked.counts()) {
        server.metrics().failed(reason);
    }
    asked.end(response.status(), failure);
    response
}

/// Refuses a request before it reaches a route: it has a span, a log line and a count like any other.
pub(crate) async fn turn_away(request: Request, error: ApiError) -> Response {
    request_span::around(request, |request| async move {
        let asked = Asked::by(&request);
        let (status, failure) = (error.status(), error.failure());
        if asked.counts() {
            counter!(REQUEST_FAILURE, ERR => failure.0).increment(1);
        }
        let response = refuse(&asked.uri, request, error).await;
        asked.end(status, Some(failure));
        response
    })
    .await
}

/// What the log line reports about a request.
struct Asked {
    method: Method,
    uri: Uri,
    id: Option<HeaderValue>,
    start: Instant,
    has_ended: bool,
}

impl Asked {
    fn by(request: &Request) -> Self {
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            id: request_span::id(request.headers()).cloned(),
            start: Instant::now(),
            has_ended: false,
        }
    }

    /// Whether its failure is counted: requests to models use `POST`, health checks and the like do not.
    fn counts(&self) -> bool {
        self.method == Method::POST
    }

    fn path(&self) -> &str {
        self.uri.path()
    }

    fn id(&self) -> Option<&str> {
        self.id.as_ref().and_then(|id| id.to_str().ok())
    }

    fn latency_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Logs its answer. Failures of the server are warnings, visible by default. Failures of clients are counted and
    /// logged at debug level: they are most frequent when an overloaded server has the least time to write lines.
    fn end(mut self, status: StatusCode, reason: Option<Failure>) {
        self.has_ended = true;
        let (method, path, id) = (&self.method, self.path(), self.id());
        let (status, latency_us) = (status.as_u16(), self.latency_us());
        let reason = reason.map(|Failure(reason)| reason);
        // the level is part of a call site, so each level has its own
        match status {
            424 | 500.. => {
                tracing::warn!(%method, path, id, status, reason, latency_us, "not answered");
            }
            // A gRPC call that reaches no service is refused with status 200.
            _ if status >= 400 || reason.is_some() => {
                tracing::debug!(%method, path, id, status, reason, latency_us, "refused");
            }
            _ => tracing::debug!(%method, path, id, status, latency_us, "answered"),
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.has_ended {
            // The client has disconnected, the handler has panicked, or the grace of a stopping server is over.
            let (method, path, id, latency_us) = (&self.method, self.path(), self.id(), self.latency_us());
            tracing::debug!(%method, path, id, latency_us, "given up");
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn what_is_turned_away_counts_where_it_asks_for_embeddings() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let turned_away = |method: Method| {
            let mut request = Request::new(Body::empty());
            *request.method_mut() = method;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let refused = turn_away(request, ApiError::unauthorized("no key"));
            metrics::with_local_recorder(&recorder, || runtime.block_on(refused));
            recorder.handle().render()
        };
        let counted = r#"te_request_failure{err="unauthorized"}"#;
        let after_get = turned_away(Method::GET);
        assert!(!after_get.contains(counted), "{after_get}");
        let after_post = turned_away(Method::POST);
        assert!(after_post.contains(&format!("{counted} 1")), "{after_post}");
    }
}
