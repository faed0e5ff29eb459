//! Compressed bodies: unpacked piece by piece as they are read, with a limit on the unpacked size.
//!
//! A byte of gzip may unpack to a thousand. So unpacked bytes count among the bytes that the server holds, on top of
//! those that arrived, and unpacking stops at the piece that exceeds the limit. The rest of the body is passed on
//! packed, so that the handler that refuses it can read it to its end.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use async_compression::tokio::bufread::{GzipDecoder, ZlibDecoder};
use axum::{
    BoxError, Router,
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{HeaderValue, header},
};
use futures_util::Stream;
use hyper::body::Frame;
use tokio::io::AsyncBufRead;
use tokio_util::io::{StreamReader, poll_read_buf};
use tower::util::MapRequestLayer;

use super::router::Server;
use crate::net::Arrived;

/// Most bytes of an unpacked piece.
const PIECE: usize = 4 << 10;

/// Unpacks the bodies of these routes, where the encoding is known. Bodies in other encodings are refused by the
/// handler that reads them, in its protocol's form.
pub(super) fn unpacked(router: Router<Server>, limit: usize) -> Router<Server> {
    router.layer(MapRequestLayer::new(move |request| unpack(request, limit)))
}

fn unpack(mut request: Request, limit: usize) -> Request {
    let said = request.headers().get(header::CONTENT_ENCODING);
    let Some(coding) = said.and_then(Coding::of) else { return request };
    request.headers_mut().remove(header::CONTENT_ENCODING);
    if request.body().is_end_stream() {
        return request;
    }
    let decoder: fn(Packed) -> Decoder = match coding {
        Coding::Identity => return request,
        Coding::Gzip => Decoder::gzip,
        Coding::Zlib => |packed| Decoder::Zlib(ZlibDecoder::new(packed)),
    };
    request.headers_mut().remove(header::CONTENT_LENGTH);
    let arrived = request.extensions().get().cloned();
    request.map(|body| {
        let body = decoder(StreamReader::new(Pieces(body)));
        Body::new(Unpacked { body, raw: Decoder::raw, arrived, left: Some(limit) })
    })
}

/// How a body is packed.
enum Coding {
    Identity,
    Gzip,
    /// What HTTP calls deflate.
    Zlib,
}

impl Coding {
    /// Finds a coding by its name, ignoring case; gzip has two names.
    fn of(said: &HeaderValue) -> Option<Self> {
        let codings = [
            ("identity", Self::Identity),
            ("gzip", Self::Gzip),
            ("x-gzip", Self::Gzip),
            ("deflate", Self::Zlib),
        ];
        let is_said = |name: &str| said.as_bytes().eq_ignore_ascii_case(name.as_bytes());
        codings.into_iter().find(|(name, _)| is_said(name)).map(|(_, coding)| coding)
    }
}

/// The packed body as a decoder reads it.
type Packed = StreamReader<Pieces, Bytes>;

struct Pieces(Body);

impl Stream for Pieces {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            match ready!(Pin::new(&mut self.0).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => return Poll::Ready(Some(Ok(data))),
                    Err(_trailers) => {}
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(io::Error::other(error)))),
                None => return Poll::Ready(None),
            }
        }
    }
}

/// Unpacks a body. Bytes after the end of the packed data are an error.
enum Decoder {
    Gzip(GzipDecoder<Packed>),
    Zlib(ZlibDecoder<Packed>),
}

impl Decoder {
    /// A gzip body is a series of members, one after the other. Source: RFC 1952, 2.2.
    fn gzip(packed: Packed) -> Self {
        let mut decoder = GzipDecoder::new(packed);
        decoder.multiple_members(true);
        Self::Gzip(decoder)
    }

    /// The rest of the packed body, without the bytes that the decoder has read ahead.
    fn raw(&mut self) -> &mut Body {
        let packed = match self {
            Self::Gzip(decoder) => decoder.get_mut(),
            Self::Zlib(decoder) => decoder.get_mut(),
        };
        &mut packed.get_mut().0
    }

    /// The next piece, empty at the end.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        let mut piece = Vec::with_capacity(PIECE);
        match self {
            Self::Gzip(decoder) => ready!(poll_read_buf(Pin::new(decoder), cx, &mut piece))?,
            Self::Zlib(decoder) => {
                let read = ready!(poll_read_buf(Pin::new(&mut *decoder), cx, &mut piece))?;
                if read == 0 && !ready!(Pin::new(decoder.get_mut()).poll_fill_buf(cx))?.is_empty() {
                    return Poll::Ready(Err(io::Error::other(
                        "there are bytes after the end of the compressed data",
                    )));
                }
                read
            }
        };
        Poll::Ready(Ok(piece))
    }
}

impl HttpBody for Decoder {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let piece = ready!(self.poll_piece(cx));
        Poll::Ready(match piece {
            Ok(piece) if piece.is_empty() => None,
            piece => Some(piece.map(|piece| Frame::data(piece.into()))),
        })
    }
}

/// The unpacked body up to an error or the piece that exceeds the limit; after that the rest as it arrives, packed.
struct Unpacked<B> {
    body: B,
    /// The packed body.
    raw: fn(&mut B) -> &mut Body,
    /// Where unpacked bytes are counted; `None` if the router is nested in another server, which does not count bytes.
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
