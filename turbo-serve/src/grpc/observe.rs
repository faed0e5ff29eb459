//! A line per call when it ends, its span until then, and a count of what failed before it came to a method of ours.
//!
//! In: calls, inside their [spans](crate::request_span). Out: their answers, which may be streams: what is done for one
//! while its client reads it belongs to the call.

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

use super::status::{has_failed, is_public};
use crate::{
    metric_names::{ERR, REQUEST_FAILURE, failure},
    request_span,
};

/// Wraps what answers a call; who answers finds the [`Call`] among the request's extensions.
pub(super) async fn observe(mut request: Request, next: Next) -> Response {
    let call = Call::by(&request);
    request.extensions_mut().insert(call.clone());
    let response = next.run(request).await;
    match Status::from_header_map(response.headers()) {
        Some(status) => {
            call.end(&status);
            response
        }
        None => response.map(|body| Body::new(Answer { body, call, has_ended: false })),
    }
}

/// What a line of the log says of a call.
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

    /// It has ended so.
    fn end(&self, status: &Status) {
        // No error of ours has these codes: tonic has found a message that is too large, or is none, or no method. As
        // over HTTP, who looks how the server is is not counted.
        let is_found_before =
            matches!(status.code(), Code::OutOfRange | Code::Internal | Code::Unimplemented);
        if is_found_before && !is_public(self.path()) {
            counter!(REQUEST_FAILURE, ERR => failure::VALIDATION).increment(1);
        }
        self.log(status);
    }

    /// Logs how it has ended, or one of its messages. What is ours to mend is seen by default, as over HTTP.
    pub(super) fn log(&self, status: &Status) {
        let (path, id, latency_us) = (self.path(), self.id(), self.latency_us());
        let (code, why) = (status.code(), status.message());
        match code {
            Code::Ok => tracing::debug!(path, id, ?code, latency_us, "answered"),
            Code::FailedPrecondition | Code::Unavailable => {
                tracing::warn!(path, id, ?code, why, latency_us, "not answered");
            }
            _ => tracing::debug!(path, id, ?code, why, latency_us, "refused"),
        }
    }
}

/// The body of an answer, whose trailers say how its call has ended.
struct Answer {
    body: Body,
    call: Call,
    has_ended: bool,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { body, call, has_ended } = &mut *self;
        let _entered = call.span.enter();
        let frame = ready!(Pin::new(body).poll_frame(cx));
        let trailers = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.trailers_ref());
        if let Some(trailers) = trailers
            && let Some(status) = Status::from_header_map(trailers)
        {
            if has_failed(trailers) {
                call.span.record("otel.status_code", "ERROR");
            }
            *has_ended = true;
            call.end(&status);
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
        let Self { body, call, has_ended } = self;
        let _entered = call.span.enter();
        drop(std::mem::take(body)); // withdraws what it has asked
        if !*has_ended {
            // Its client has gone, or does not read it.
            tracing::debug!(path = call.path(), id = call.id(), latency_us = call.latency_us(), "given up");
        }
    }
}
