//! Compressed bodies: unpacked piece by piece as they are read, with a limit on the unpacked size.
//!
//! A byte of gzip may unpack to a thousand. So unpacked bytes count among the bytes that the server holds, on top of
//! those that arrived, and unpacking stops at the piece that exceeds the limit. The rest of the body is passed on
//! packed, so that the handler that refuses it can read it to its end.

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

/// Unpacks the bodies of these routes, where the encoding is known. Bodies in other encodings are refused by the
/// handler that reads them, in its protocol's form.
pub(super) fn unpacked(router: Router<Server>, limit: usize) -> Router<Server> {
    router.layer((
        MapRequestLayer::new(note),
        RequestDecompressionLayer::new().pass_through_unaccepted(true),
        MapRequestLayer::new(move |request| bounded(request, limit)),
    ))
}

/// Marks a request with a `Content-Encoding`, which is removed from its head when the body is unpacked.
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

/// A known coding in the spelling that tower-http knows: names are case-insensitive, and gzip has two.
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

/// The unpacked body up to an error or the piece that exceeds the limit; after that the rest as it arrives, packed.
struct Unpacked<B> {
    body: B,
    /// The packed body.
    raw: fn(&mut B) -> &mut Body,
    /// Where it is counted; `None` if the router is nested in another server, which does not count bytes.
    arrived: Option<Arrived>,
    /// Bytes that may still be unpacked; `None` once unpacking has ended.
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
        this.left = None; // unless it is set again below
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

    /// How many bytes of an endless body are unpacked.
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
