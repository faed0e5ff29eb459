//! The rest of a request body that is unread when the answer is ready.
//!
//! Over HTTP/1.1 the rest of a body lies between this request and the next one: it has to be read to its end, or the
//! connection closes after the answer. In that case the answer says so (RFC 9112, section 9.6). Otherwise a client that
//! reuses connections would send its next request on this one, where it is lost or read as the rest of the body.

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

/// A body that notes when it has been read to its end.
pub(super) struct Noted<B> {
    body: B,
    has_ended: Arc<AtomicBool>,
    /// Set by an error: what looks like the end of the body afterwards is not its end.
    is_broken: bool,
}

/// The request with a body that notes when it has come to its end.
pub(super) fn noted<B: Body>(request: Request<B>) -> (Request<Noted<B>>, Rest) {
    let has_ended = Arc::new(AtomicBool::new(request.body().is_end_stream()));
    let rest = Rest(Arc::clone(&has_ended));
    (request.map(|body| Noted { body, has_ended, is_broken: false }), rest)
}

impl Rest {
    /// Adds `Connection: close` to an HTTP/1 answer unless the body was read to its end.
    pub(super) fn tell<B>(self, answer: &mut Response<B>, version: Version) {
        if !self.0.load(Relaxed) {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            // hyper adds `keep-alive` to an answer whose version differs from its request's
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
