//! What is left of a request when its answer is there.
//!
//! Over HTTP/1.1 the rest of a body lies between this request and the next one: it has to be read to its end, or the
//! connection ends behind the answer. The answer says so then (RFC 9112, section 9.6). A client that keeps connections would
//! send its next request into this one otherwise, where it is lost, or read as the rest.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use axum::http::{HeaderValue, Request, Response, Version, header};
use hyper::body::{Body, Frame, SizeHint};

/// Whether a body has come to its end.
pub(super) struct Rest(Arc<AtomicBool>);

/// A body that notes it.
pub(super) struct Noted<B> {
    body: B,
    has_ended: Arc<AtomicBool>,
    /// Then what looks like its end is none.
    is_broken: bool,
}

/// The request with a body that notes when it has come to its end.
pub(super) fn noted<B: Body>(request: Request<B>) -> (Request<Noted<B>>, Rest) {
    let has_ended = Arc::new(AtomicBool::new(request.body().is_end_stream()));
    let rest = Rest(Arc::clone(&has_ended));
    (request.map(|body| Noted { body, has_ended, is_broken: false }), rest)
}

impl Rest {
    /// Has an answer to this version of HTTP/1 say that the connection ends behind it, where it does.
    pub(super) fn tell<B>(self, answer: &mut Response<B>, version: Version) {
        if !self.0.load(Relaxed) {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            // to an answer of another version than its request's hyper adds `keep-alive`
            *answer.version_mut() = version;
        }
    }
}

impl<B: Body + Unpin> Body for Noted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.is_broken |= matches!(frame, Some(Err(_)));
        if !self.is_broken && (frame.is_none() || self.body.is_end_stream()) {
            self.has_ended.store(true, Relaxed);
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
