//! A span per request: the fields that its log lines share, and what is exported to a trace collector.
//!
//! In: a request of any protocol, with its client's id (`x-request-id`) and trace (`traceparent`,
//! <https://www.w3.org/TR/trace-context>), if it has them. Out: its answer, with the id. The span of a gRPC call lasts
//! until its answer has ended, which may be a stream. Fields have OpenTelemetry's names where there are some
//! (<https://opentelemetry.io/docs/specs/semconv/http/http-spans>).

use std::{
    borrow::Cow,
    fmt,
    future::Future,
    hash::{BuildHasher, RandomState},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    extract::{MatchedPath, Request},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
    middleware::Next,
    response::Response,
};
use tracing::{Instrument, Span, field::Empty};

use crate::{engine::Usage, grpc, http::route_behind_long_name};

/// The id of a request: its client's, or one generated here. It is returned with the answer.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A middleware that runs a request of any protocol in a span.
pub(crate) async fn span(request: Request, next: Next) -> Response {
    around(request, |request| next.run(request)).await
}

/// Runs `answer` in a request's span.
pub(crate) async fn around<F: Future<Output = Response>>(
    mut request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    let id = request.headers_mut().entry(REQUEST_ID).or_insert_with(new_id).clone();
    // Creating a span formats its fields for every request, so this happens only if a subscriber is interested.
    let span = tracing::debug_span!(
        "request",
        otel.name = %Name(&request),
        otel.kind = "server",
        http.request.method = method(&request).unwrap_or("_OTHER"),
        url.path = request.uri().path(),
        http.route = route(&request).as_deref(),
        id = id.to_str().ok(),
        http.response.status_code = Empty,
        otel.status_code = Empty,
        model = Empty,
        tokens = Empty,
        tokenization_us = Empty,
        queue_us = Empty,
        inference_us = Empty,
    );
    follow(&span, request.headers());
    let mut response = answer(request).instrument(span.clone()).await;
    let status = response.status();
    span.record("http.response.status_code", i64::from(status.as_u16()));
    let failed = status.is_server_error() || status == StatusCode::FAILED_DEPENDENCY;
    if failed || grpc::has_failed(response.headers()) {
        span.record("otel.status_code", "ERROR");
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// A span's name: the route, or a gRPC call's service and method. Collectors group requests by it, so there must be few
/// names, whatever paths clients request.
struct Name<'a>(&'a Request);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(request) = self;
        let (method, path) = (method(request).unwrap_or("HTTP"), request.uri().path());
        match route(request) {
            Some(_) if grpc::is_service(path) && grpc::is_call(request.headers()) => {
                f.write_str(path.trim_start_matches('/'))
            }
            Some(route) => write!(f, "{method} {route}"),
            None => f.write_str(method),
        }
    }
}

/// The route pattern that a request has matched.
fn route(request: &Request) -> Option<Cow<'_, str>> {
    match request.extensions().get::<MatchedPath>() {
        Some(matched) => Some(matched.as_str().into()),
        None => route_behind_long_name(request.uri().path()).map(Cow::Owned),
    }
}

/// The method of a request, if OpenTelemetry knows it.
fn method(request: &Request) -> Option<&str> {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE"];
    Some(request.method().as_str()).filter(|method| KNOWN.contains(method))
}

/// The id of a request.
pub(crate) fn id(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get(REQUEST_ID)
}

/// Copies the request id between headers.
pub(crate) fn copy_id(from: &HeaderMap, to: &mut HeaderMap) {
    if let Some(id) = id(from) {
        to.insert(REQUEST_ID, id.clone());
    }
}

/// Records usage and timings of a model's answer in the current span.
pub(crate) fn took(model: &str, usage: &Usage) {
    // OpenTelemetry's integers are signed.
    let micros = |time: Duration| time.as_micros() as i64;
    let timings = &usage.timings;
    Span::current()
        .record("model", model)
        .record("tokens", usage.tokens as i64)
        .record("tokenization_us", micros(timings.tokenization))
        .record("queue_us", micros(timings.queue))
        .record("inference_us", micros(timings.inference));
}

/// An id that is unique in this process, and unlikely to repeat in another.
fn new_id() -> HeaderValue {
    static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    let id = format!("{:016x}-{}", *PROCESS, REQUESTS.fetch_add(1, Relaxed));
    HeaderValue::try_from(id).expect("digits and a hyphen")
}

/// Makes a span part of the trace that the headers name.
#[cfg(feature = "otlp")]
fn follow(span: &Span, headers: &HeaderMap) {
    use opentelemetry::propagation::{Extractor, TextMapPropagator};
    use opentelemetry_sdk::propagation::TraceContextPropagator;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    struct Headers<'a>(&'a HeaderMap);

    impl Extractor for Headers<'_> {
        fn get(&self, key: &str) -> Option<&str> {
            self.0.get(key)?.to_str().ok()
        }

        fn keys(&self) -> Vec<&str> {
            self.0.keys().map(HeaderName::as_str).collect()
        }
    }

    if !span.is_disabled() && headers.contains_key("traceparent") {
        let parent = TraceContextPropagator::new().extract(&Headers(headers));
        // An error means that spans are not exported.
        let _ = span.set_parent(parent);
    }
}

#[cfg(not(feature = "otlp"))]
fn follow(_: &Span, _: &HeaderMap) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_not_given_twice() {
        let (one, other) = (new_id(), new_id());
        assert_ne!(one, other);
        assert_eq!(one.as_bytes()[..17], other.as_bytes()[..17], "of one process");
    }
}
