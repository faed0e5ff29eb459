//! The body of an answer, counted until the socket has taken it.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use super::tally::Held;

/// The body of an answer.
pub(super) struct Outgoing {
    pub(super) body: Body,
    /// Bytes that are counted before they are read from the body.
    pub(super) announced: Held,
}

/// Bytes being sent. They count until all parts of them are dropped; hyper drops the last part when the socket has
/// taken it.
struct Counted {
    data: Bytes,
    #[expect(dead_code, reason = "held until the bytes are dropped")]
    held: Held,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let announced = &mut self.announced;
        let counted = |data: Bytes| {
            let mut held = announced.split(data.len());
            held.join(announced.tally.add(data.len() - held.bytes));
            Bytes::from_owner(Counted { data, held })
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(counted))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
