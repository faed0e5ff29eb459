//! A span per request: what its lines in the log have in common, and what a collector of traces is sent.
//!
//! In: a request of any protocol, with its client's name for it (`x-request-id`) and the trace that it is a part of
//! (`traceparent`, <https://www.w3.org/TR/trace-context>), where it has them. Out: its answer, with the name. The span of a
//! call of gRPC goes on until its answer has ended, which may be a stream.

use std::{
    future::Future,
    hash::{BuildHasher, RandomState},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
    middleware::Next,
    response::Response,
};
use tracing::{Instrument, Span, field::Empty};

use crate::{engine::Usage, grpc};

/// The name of a request: its client's, or one that is given here. It comes back with the answer.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Wraps all that is done for a request, whatever its protocol.
pub(crate) async fn span(request: Request, next: Next) -> Response {
    around(request, |request| next.run(request)).await
}

/// Wraps what answers a request.
pub(crate) async fn around<F: Future<Output = Response>>(
    mut request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    let id = request.headers_mut().entry(REQUEST_ID).or_insert_with(new_id).clone();
    // Fields are written out when a span begins, for every request: so only where somebody looks at them.
    let span = tracing::debug_span!(
        "request",
        otel.name = %format_args!("{} {}", request.method(), request.uri().path()),
        otel.kind = "server",
        method = %request.method(),
        path = request.uri().path(),
        id = id.to_str().ok(),
        status = Empty,
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
    span.record("status", i64::from(status.as_u16()));
    let failed = status.is_server_error() || status == StatusCode::FAILED_DEPENDENCY;
    if failed || grpc::has_failed(response.headers()) {
        span.record("otel.status_code", "ERROR");
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The name of a request.
pub(crate) fn id(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get(REQUEST_ID)
}

/// Has the headers of an answer name the request that those of another one name.
pub(crate) fn copy_id(from: &HeaderMap, to: &mut HeaderMap) {
    if let Some(id) = id(from) {
        to.insert(REQUEST_ID, id.clone());
    }
}

/// Tells the span of the request that is worked on what a model's answer took.
pub(crate) fn took(model: &str, usage: &Usage) {
    // OpenTelemetry's whole numbers are signed.
    let micros = |time: Duration| time.as_micros() as i64;
    let timings = &usage.timings;
    Span::current()
        .record("model", model)
        .record("tokens", usage.tokens as i64)
        .record("tokenization_us", micros(timings.tokenization))
        .record("queue_us", micros(timings.queue))
        .record("inference_us", micros(timings.inference));
}

/// A name that no other request of this process has, and hardly one of another.
fn new_id() -> HeaderValue {
    static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    let id = format!("{:016x}-{}", *PROCESS, REQUESTS.fetch_add(1, Relaxed));
    HeaderValue::try_from(id).expect("digits and a hyphen")
}

/// Makes a span part of the trace that the headers tell of.
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
        // Where no spans are sent there is nothing to follow.
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
