//! An answer on its way to a client that may not read it.
//!
//! Over HTTP/1.1 an answer has the connection for itself, and [`StallLimit`](super::stall::StallLimit) notices when too
//! little moves. Over HTTP/2 a client may stop reading one answer and go on with the others. That answer is then
//! cancelled and its memory released, except for the piece or two that were handed over; a small answer is one piece
//! and handed over whole. What was handed over does not count as underway, so the connection of a client that sends no
//! more requests is closed as idle. If the client goes on sending, the connection is closed once too much of this
//! [stays](Unread).

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
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use super::{
    in_flight::Room,
    stall::{Pace, PaceOfOne, until},
    underway::OneUnderway,
    unread::{Handed, Unread},
};

/// Bytes that are handed to HTTP/2 at a time. Bytes that were handed over cannot be taken back when the client does not
/// read them.
const PIECE: usize = 16 << 10;

/// Whether the whole body is handed to HTTP/2 at once.
pub(super) fn is_one_piece(body: &Body) -> bool {
    body.size_hint().exact().is_some_and(|size| size <= PIECE as u64)
}

/// The answer as it is sent. It is underway until all of it was handed over. It is cancelled when its client takes
/// nothing of it for `stall`, or too little; what was handed over by then counts in `unread`. Over HTTP/1.1, where an
/// answer has the connection for itself, `pace` is set to the answer's pace.
pub(super) fn sent(
    mut answer: Response<Body>,
    version: Version,
    stall: Duration,
    underway: OneUnderway,
    unread: &Unread,
    pace: &PaceOfOne,
) -> Response<Sent> {
    let room = answer.extensions_mut().remove::<Room>();
    answer.map(|body| match version {
        Version::HTTP_2 if is_one_piece(&body) => Sent { body, underway: None, handed: Some(unread.small()) },
        Version::HTTP_2 => {
            let body = in_pieces(body, stall, room, underway, unread.large());
            Sent { body, underway: None, handed: None }
        }
        _ => {
            let bytes = body.size_hint().exact().and_then(|bytes| bytes.try_into().ok());
            pace.set(Pace { bytes: bytes.unwrap_or(0), room });
            Sent { body, underway: Some(underway), handed: None }
        }
    })
}

/// A body, and its count as underway unless the task of [`in_pieces`] holds that.
pub(super) struct Sent {
    body: Body,
    #[expect(dead_code, reason = "held until the body is dropped")]
    underway: Option<OneUnderway>,
    /// Counts its data, where they are not counted already.
    handed: Option<Handed>,
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Part> {
        let part = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let Some(handed) = &self.handed else { return Poll::Ready(part) };
        Poll::Ready(part.map(|frame| frame.map(|frame| frame.map_data(|data| handed.data(data)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What a body yields: data, trailers or an error, and `None` at the end.
type Part = Option<Result<Frame<Bytes>, axum::Error>>;

/// The same body, read on a task of its own, one piece at a time as HTTP/2 takes them.
fn in_pieces(body: Body, stall: Duration, room: Option<Room>, underway: OneUnderway, handed: Handed) -> Body {
    let (parts, taken) = mpsc::channel(1);
    let of_pieces = handed.clone();
    tokio::spawn(async move {
        read(body, parts, stall, room, &of_pieces).await;
        drop(underway);
    });
    Body::new(Pieces { taken, _handed: handed })
}

/// Reads a body until it has ended, its client has disconnected, or the client has taken nothing for `stall`, or too
/// little. A part is a whole answer, or those answers of a stream that were ready; there is no limit between parts.
async fn read(
    mut body: Body,
    parts: mpsc::Sender<Part>,
    stall: Duration,
    room: Option<Room>,
    handed: &Handed,
) {
    loop {
        let part = tokio::select! {
            part = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)) => part,
            () = parts.closed() => return,
        };
        let ended = part.is_none();
        let (began, mut sent) = (Instant::now(), 0);
        let data = part.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        let pace = Pace { bytes: data.map_or(0, Bytes::len), room: room.clone() };
        for piece in pieces(part) {
            let taken = timeout_at(until(began, sent, stall, &pace), parts.send(copied(piece, handed)));
            let Ok(Ok(())) = taken.await else { return handed.give_up() };
            sent += PIECE;
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

/// A copy of a piece: a piece that HTTP/2 retains must keep the whole answer neither in memory nor counted for ever.
fn copied(piece: Part, handed: &Handed) -> Part {
    let copied = |data: Bytes| handed.data(Bytes::copy_from_slice(&data));
    piece.map(|frame| frame.map(|frame| frame.map_data(copied)))
}

/// The receiving end of [`read`].
struct Pieces {
    taken: mpsc::Receiver<Part>,
    _handed: Handed,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Part> {
        let given_up = || io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer");
        let part = ready!(self.taken.poll_recv(cx));
        Poll::Ready(part.unwrap_or_else(|| Some(Err(axum::Error::new(given_up())))))
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use futures_util::{StreamExt, stream};

    use super::*;
    use crate::net::underway::Underway;

    /// Bytes whose release the test can observe.
    struct Shared(Arc<Vec<u8>>);

    impl AsRef<[u8]> for Shared {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_drips_an_answer_is_not_waited_for() {
        let second = Duration::from_secs(1);
        let rests = stream::iter(vec![vec![7_u8; 100]; 10]).then(move |part| async move {
            tokio::time::sleep(60 * second).await;
            Ok::<_, Infallible>(part)
        });
        let large = || Body::from(vec![7_u8; 4 << 20]);
        let pressed = || Some(Room::pressed());
        for (what, body, pause, room, expected) in [
            ("drips", large(), 29 * second, None, false),
            ("takes a thousand bytes a second", large(), 16 * second, None, true),
            ("does so where there is little room", large(), 16 * second, pressed(), false),
            ("takes all in five minutes", large(), second, pressed(), true),
            ("takes little slowly", Body::from(vec![7_u8; 300_000]), 16 * second, pressed(), true),
            ("rests", Body::from_stream(rests), Duration::ZERO, pressed(), true),
        ] {
            let (underway, handed) = (Underway::default().begin(), Unread::default().large());
            let mut pieces = in_pieces(body, 30 * second, room, underway, handed);
            let began = Instant::now();
            let comes = loop {
                match poll_fn(|cx| Pin::new(&mut pieces).poll_frame(cx)).await {
                    Some(Ok(_)) => tokio::time::sleep(pause).await,
                    Some(Err(_)) => break false,
                    None => break true,
                }
            };
            assert_eq!(comes, expected, "{what}");
            assert!(comes || began.elapsed() < 600 * second, "{what}: {:?}", began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_handed_over_does_not_hold_the_rest() {
        let bytes = Arc::new(vec![7; 4 * PIECE]);
        let body = Body::from(Bytes::from_owner(Shared(bytes.clone())));
        let stall = Duration::from_secs(1);
        let (underway, handed) = (Underway::default().begin(), Unread::default().large());
        let mut pieces = in_pieces(body, stall, None, underway, handed);
        let mut next = async || poll_fn(|cx| Pin::new(&mut pieces).poll_frame(cx)).await.unwrap();
        let taken = next().await.unwrap().into_data().unwrap();
        tokio::time::sleep(2 * stall).await;
        assert_eq!(Arc::strong_count(&bytes), 1, "nobody has it any more");
        assert_eq!(taken, vec![7; PIECE]);
        next().await.unwrap();
        next().await.unwrap_err();
    }
}
