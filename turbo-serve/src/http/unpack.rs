//! Bodies that come compressed: unpacked piece by piece as they are read, bounded by what comes out of them.
//!
//! A byte of gzip unpacks to a thousand. So what comes out is counted among the bytes that the server holds, on top of
//! what came; and no more comes out than shows that it is too much, be it only to be thrown away. What its sender still
//! sends then comes as it is, so that the body can be read to its end after a refusal.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::{
    BoxError, Router,
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{self, HeaderValue, header},
};
use hyper::body::Frame;
use tower::util::MapRequestLayer;
use tower_http::decompression::{DecompressionBody, RequestDecompressionLayer};

use super::router::Server;
use crate::net::Arrived;

/// Has these routes read unpacked bodies, where the encoding is known. Another encoding is refused by the handler that
/// reads the body, in the words of its protocol.
pub(super) fn unpacked(router: Router<Server>, limit: usize) -> Router<Server> {
    router.layer((
        MapRequestLayer::new(note),
        RequestDecompressionLayer::new().pass_through_unaccepted(true),
        MapRequestLayer::new(move |request| bounded(request, limit)),
    ))
}

/// On a request whose head said that its body is packed; that goes from the head when it is unpacked.
#[derive(Clone)]
struct Packed;

fn note(mut request: Request) -> Request {
    if let Some(said) = request.headers_mut().get_mut(header::CONTENT_ENCODING) {
        if let Some(coding) = coding(said) {
            *said = coding;
        }
        request.extensions_mut().insert(Packed);
    }
    request
}

/// A known coding in the spelling that is looked for: names have no case, and gzip has two.
fn coding(said: &HeaderValue) -> Option<HeaderValue> {
    let codings = [("gzip", "gzip"), ("x-gzip", "gzip"), ("deflate", "deflate"), ("identity", "identity")];
    let is_said = |name: &str| said.as_bytes().eq_ignore_ascii_case(name.as_bytes());
    codings.into_iter().find(|(name, _)| is_said(name)).map(|(_, coding)| HeaderValue::from_static(coding))
}

fn bounded(request: http::Request<DecompressionBody<Body>>, limit: usize) -> Request {
    let (mut head, body) = request.into_parts();
    let noted = head.extensions.remove::<Packed>().is_some();
    let body = if noted && !head.headers.contains_key(header::CONTENT_ENCODING) {
        let raw = DecompressionBody::get_mut;
        Body::new(Unpacked { body, raw, arrived: head.extensions.get().cloned(), left: Some(limit) })
    } else {
        Body::new(body)
    };
    Request::from_parts(head, body)
}

/// What comes out of a packed body, up to an error, or the piece that goes beyond the limit; behind that what still
/// comes of the body as it is.
struct Unpacked<B> {
    body: B,
    /// What it is unpacked from.
    raw: fn(&mut B) -> &mut Body,
    /// Where it is counted; a router that is part of another server counts nothing.
    arrived: Option<Arrived>,
    /// Bytes that may still come out; `None` when nothing does.
    left: Option<usize>,
}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin> HttpBody for Unpacked<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let Some(left) = this.left else {
            return Pin::new((this.raw)(&mut this.body)).poll_frame(cx).map_err(Into::into);
        };
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        this.left = None; // unless all is well
        let Some(frame) = frame else { return Poll::Ready(None) };
        let frame = frame.map_err(Into::into)?;
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        if let Some(arrived) = &this.arrived {
            arrived.unpacked(bytes)?;
        }
        this.left = left.checked_sub(bytes);
        Poll::Ready(Some(Ok(frame)))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{FutureExt, stream};

    use super::*;

    /// So much of a body without end comes out.
    fn comes_out(limit: usize) -> usize {
        let endless = Body::from_stream(stream::repeat_with(|| Ok::<_, Infallible>(vec![b' '; 1000])));
        let mut unpacked = Unpacked { body: endless, raw: |body| body, arrived: None, left: Some(limit) };
        let mut bytes = 0;
        let next = |unpacked: &mut Unpacked<Body>| {
            std::future::poll_fn(|cx| Pin::new(&mut *unpacked).poll_frame(cx)).now_or_never().unwrap()
        };
        while unpacked.left.is_some() {
            bytes += next(&mut unpacked).unwrap().unwrap().into_data().unwrap().len();
        }
        bytes
    }

    #[test]
    fn no_more_comes_out_than_shows_that_it_is_too_much() {
        assert_eq!([0, 999, 1000, 2500].map(comes_out), [1000, 1000, 2000, 3000]);
    }
}
