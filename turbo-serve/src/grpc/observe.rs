//! Logs each call when it ends, keeps its span until then, and counts calls that fail before they reach a method.
//!
//! In: calls, inside their [spans](crate::request_span). Out: their answers, which may be streams. Work that is done
//! for a stream while its client reads it belongs to the call's span.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Instant,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{HeaderValue, Uri},
    middleware::Next,
    response::Response,
};
use hyper::body::{Frame, SizeHint};
use metrics::counter;
use tonic::{Code, Status};
use tracing::Span;

use super::status::{has_failed, is_public, reason_of, without_reason};
use crate::{
    metric_names::{ERR, REQUEST_FAILURE, failure},
    request_span,
};

/// A middleware; handlers find the [`Call`] among the request's extensions.
pub(super) async fn observe(mut request: Request, next: Next) -> Response {
    let call = Call::by(&request);
    request.extensions_mut().insert(call.clone());
    let mut underway = Underway { call, has_ended: false };
    let mut response = next.run(request).await;
    match Status::from_header_map(response.headers()) {
        Some(status) => {
            without_reason(response.headers_mut());
            underway.end(&status);
            response
        }
        None => response.map(|body| Body::new(Answer { body, underway })),
    }
}

/// What the log line reports about a call.
#[derive(Clone)]
pub(super) struct Call {
    uri: Uri,
    id: Option<HeaderValue>,
    start: Instant,
    span: Span,
}

impl Call {
    fn by(request: &Request) -> Self {
        let id = request_span::id(request.headers()).cloned();
        Self { uri: request.uri().clone(), id, start: Instant::now(), span: Span::current() }
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

    /// Logs that the call has ended with `status`.
    fn end(&self, status: &Status) {
        let (path, id, latency_us) = (self.path(), self.id(), self.latency_us());
        let (code, why, reason) = (status.code(), status.message(), reason_of(status));
        let is_found_before = reason.is_none() && is_tonics(code) && !is_public(path);
        // As over HTTP, health checks are not counted.
        if is_found_before {
            counter!(REQUEST_FAILURE, ERR => failure::VALIDATION).increment(1);
        }
        let reason = reason.or(is_found_before.then_some(failure::VALIDATION));
        match code {
            Code::Ok => tracing::debug!(path, id, ?code, latency_us, "answered"),
            _ if is_ours(code) => tracing::warn!(path, id, ?code, reason, why, latency_us, "not answered"),
            _ => tracing::debug!(path, id, ?code, reason, why, latency_us, "refused"),
        }
    }

    /// Logs that one message of a stream failed with `status`; the call goes on.
    pub(super) fn log_message(&self, status: &Status) {
        let (path, id) = (self.path(), self.id());
        let (code, why, reason) = (status.code(), status.message(), reason_of(status));
        match is_ours(code) {
            true => tracing::warn!(path, id, ?code, reason, why, "a message of a stream was not answered"),
            false => tracing::debug!(path, id, ?code, reason, why, "a message of a stream was refused"),
        }
    }
}

/// Whether the operator has to act: such failures are logged as warnings, as over HTTP.
fn is_ours(code: Code) -> bool {
    matches!(code, Code::FailedPrecondition | Code::Unavailable)
}

/// Whether tonic uses this code itself: for a message that is too large, packed or unpacked, or cannot be decoded, or
/// for an unknown method.
fn is_tonics(code: Code) -> bool {
    matches!(code, Code::OutOfRange | Code::ResourceExhausted | Code::Internal | Code::Unimplemented)
}

/// A call until it ends; dropped before that, it logs that the call was cancelled.
struct Underway {
    call: Call,
    has_ended: bool,
}

impl Underway {
    fn end(&mut self, status: &Status) {
        self.has_ended = true;
        self.call.end(status);
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        let Self { call, has_ended } = self;
        if !*has_ended {
            // The client has disconnected, or does not read the answer.
            let _entered = call.span.enter();
            tracing::debug!(path = call.path(), id = call.id(), latency_us = call.latency_us(), "given up");
        }
    }
}

/// The body of an answer, whose trailers say how its call has ended.
struct Answer {
    body: Body,
    underway: Underway,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { body, underway } = &mut *self;
        let span = underway.call.span.clone();
        let _entered = span.enter();
        let mut frame = ready!(Pin::new(body).poll_frame(cx));
        let trailers = frame.as_mut().and_then(|frame| frame.as_mut().ok()?.trailers_mut());
        if let Some(trailers) = trailers
            && let Some(status) = Status::from_header_map(trailers)
        {
            if has_failed(trailers) {
                span.record("otel.status_code", "ERROR");
            }
            without_reason(trailers);
            underway.end(&status);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let _entered = self.underway.call.span.enter();
        drop(std::mem::take(&mut self.body)); // cancels its requests inside the span
    }
}
