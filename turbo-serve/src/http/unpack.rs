//! Bodies that come compressed: unpacked piece by piece as they are read, bounded by what comes out of them.
//!
//! A byte of gzip unpacks to a thousand. So what comes out is counted among the bytes that the server holds, on top of
//! what came; and no more comes out than shows that it is too much, be it only to be thrown away. What its sender still
//! sends then is not read, and his connection ends with the answer.

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

/// Has these routes read bodies that are not packed any more, where the encoding is known. Who sends another one is told
/// so by whoever reads it, in the words of his protocol.
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
        Body::new(Unpacked { body, arrived: head.extensions.get().cloned(), left: Some(limit) })
    } else {
        Body::new(body)
    };
    Request::from_parts(head, body)
}

/// What comes out of a packed body: it ends with an error, or the piece that goes beyond the limit.
struct Unpacked<B> {
    body: B,
    /// Where it is counted; a router of somebody else's server counts nothing.
    arrived: Option<Arrived>,
    /// Bytes that may still come; `None` when nothing does.
    left: Option<usize>,
}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin> HttpBody for Unpacked<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(left) = self.left.take() else { return Poll::Ready(None) };
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_pending() {
            self.left = Some(left);
        }
        let Some(frame) = ready!(polled) else { return Poll::Ready(None) };
        let frame = frame.map_err(Into::into)?;
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        if let Some(arrived) = &self.arrived {
            arrived.unpacked(bytes)?;
        }
        self.left = left.checked_sub(bytes);
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
        let mut unpacked = Unpacked { body: endless, arrived: None, left: Some(limit) };
        let mut bytes = 0;
        let next = |unpacked: &mut Unpacked<Body>| {
            std::future::poll_fn(|cx| Pin::new(&mut *unpacked).poll_frame(cx)).now_or_never().unwrap()
        };
        while let Some(frame) = next(&mut unpacked) {
            bytes += frame.unwrap().into_data().unwrap().len();
        }
        bytes
    }

    #[test]
    fn no_more_comes_out_than_shows_that_it_is_too_much() {
        assert_eq!([0, 999, 1000, 2500].map(comes_out), [1000, 1000, 2000, 3000]);
    }
}
