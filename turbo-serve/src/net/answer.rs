//! An answer on its way to a client that may not read it.
//!
//! Over HTTP/1.1 an answer has the connection for itself, and [`StallLimit`](super::stall::StallLimit) sees that nothing
//! moves. Over HTTP/2 a client stops one answer and goes on with the others: then that answer is given up, and its
//! memory with it.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::{Response, Version},
};
use hyper::body::{Frame, SizeHint};
use tokio::sync::mpsc;

use super::underway::OneUnderway;

/// Bytes that are handed to HTTP/2 at a time. What was handed over is out of reach when the client does not take it.
const PIECE: usize = 16 << 10;

/// The answer as it is sent: it is underway until all of it was handed over, and given up when its client takes nothing
/// of it for `stall`.
pub(super) fn sent(
    answer: Response<Body>,
    version: Version,
    stall: Duration,
    underway: OneUnderway,
) -> Response<Sent> {
    answer.map(|body| {
        let small = body.size_hint().exact().is_some_and(|size| size <= PIECE as u64);
        if version == Version::HTTP_2 && !small {
            Sent { body: in_pieces(body, stall, underway), underway: None }
        } else {
            Sent { body, underway: Some(underway) }
        }
    })
}

/// A body, and the note that it is underway, where nobody else holds it.
pub(super) struct Sent {
    body: Body,
    #[expect(dead_code, reason = "held until the body is dropped")]
    underway: Option<OneUnderway>,
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Part> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What comes of a body: data, trailers, what broke it, and in the end `None`.
type Part = Option<Result<Frame<Bytes>, axum::Error>>;

/// The same body, read on a task of its own, piece by piece as it is taken.
fn in_pieces(body: Body, stall: Duration, underway: OneUnderway) -> Body {
    let (parts, taken) = mpsc::channel(1);
    tokio::spawn(async move {
        read(body, parts, stall).await;
        drop(underway);
    });
    Body::new(Pieces(taken))
}

/// Reads a body until nobody takes more of it: it has ended, its client has gone, or has taken nothing for `stall`.
async fn read(mut body: Body, parts: mpsc::Sender<Part>, stall: Duration) {
    loop {
        let part = tokio::select! {
            part = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)) => part,
            () = parts.closed() => return,
        };
        let ended = part.is_none();
        for piece in pieces(part) {
            if parts.send_timeout(piece, stall).await.is_err() {
                return;
            }
        }
        if ended {
            return;
        }
    }
}

fn pieces(part: Part) -> Vec<Part> {
    let mut data = match part.map(|frame| frame.map(Frame::into_data)) {
        Some(Ok(Ok(data))) => data,
        Some(Ok(Err(trailers))) => return vec![Some(Ok(trailers))],
        Some(Err(error)) => return vec![Some(Err(error))],
        None => return vec![None],
    };
    let mut pieces = Vec::with_capacity(data.len().div_ceil(PIECE));
    while !data.is_empty() {
        let piece = data.split_to(data.len().min(PIECE));
        pieces.push(Some(Ok(Frame::data(piece))));
    }
    pieces
}

/// What [`read`] hands over.
struct Pieces(mpsc::Receiver<Part>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Part> {
        let given_up = || io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer");
        let part = ready!(self.0.poll_recv(cx));
        Poll::Ready(part.unwrap_or_else(|| Some(Err(axum::Error::new(given_up())))))
    }
}
