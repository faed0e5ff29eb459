//! A request body, counted as it arrives. A gRPC call is cancelled if its client stops sending.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    BoxError,
    body::{Body, Bytes, HttpBody},
};
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use super::{
    framing::{Ended, Framing},
    messages::Messages,
    tally::{Held, Tally},
};
use crate::{
    grpc,
    http::{ApiError, patience, too_slow},
};

/// Bytes that a stream may hold without a time limit: room for packed messages, or what is kept for its end.
const MUCH: usize = 64 << 10;

/// The body of a request.
pub(super) struct Incoming {
    body: Body,
    /// The bytes that have arrived of an incomplete message.
    coming: Held,
    /// Room for unpacking the largest of its packed messages.
    unpacking: Held,
    /// Where complete messages are held until they are answered; gone when the request is no longer being answered.
    whole: Weak<Messages>,
    /// `Some` for a gRPC call; any other body is one message.
    framing: Option<Framing>,
    /// The time limit while more has to arrive. Only for gRPC calls: other bodies are timed where they are read.
    wait: Option<Wait>,
    /// Set on refusal: whatever follows is read and discarded.
    is_refused: bool,
}

/// A wait for more of a message.
struct Wait {
    began: Instant,
    limit: Pin<Box<Sleep>>,
    /// How long data will have arrived too slowly when the limit is reached, if slowness sets the limit.
    drips_for: Option<Duration>,
}

impl Wait {
    /// Begins a wait for more than the `got` bytes of a message.
    fn begin(got: usize) -> Self {
        let began = Instant::now();
        let (until, drips_for) = patience(began, got);
        Self { began, limit: Box::pin(sleep_until(until)), drips_for }
    }

    /// The same wait after more has arrived, `got` bytes by now.
    fn goes_on(mut self, got: usize) -> Self {
        let (until, drips_for) = patience(self.began, got);
        self.limit.as_mut().reset(until);
        Self { drips_for, ..self }
    }
}

impl Incoming {
    /// Counts among `bodies`, and keeps complete messages in `messages`; `framing` is given for a gRPC call.
    pub(super) fn new(
        body: Body,
        bodies: &Arc<Tally>,
        messages: &Arc<Messages>,
        framing: Option<Framing>,
    ) -> Self {
        Self {
            body,
            coming: bodies.add(0),
            unpacking: bodies.add(0),
            whole: Arc::downgrade(messages),
            framing,
            wait: None,
            is_refused: false,
        }
    }

    fn count(&mut self, data: &[u8]) -> Result<(), BoxError> {
        let whole = self.whole.upgrade();
        if self.is_refused || whole.as_ref().is_some_and(|whole| whole.are_discarded()) {
            return Ok(());
        }
        let more = self.take(data.len())?;
        let Some(framing) = &mut self.framing else {
            if let Some(whole) = whole {
                whole.keep_piece(more);
            }
            return Ok(());
        };
        self.coming.join(more);
        let ended = framing.ends(data);
        // More messages to a call that takes only one do not restart its time limit: it could go on for ever otherwise.
        let same = ended.is_empty() || whole.as_ref().is_some_and(|whole| !whole.are_taken());
        for Ended { bytes, is_packed } in ended {
            let message = self.coming.split(bytes);
            let Some(whole) = &whole else { continue };
            if is_packed {
                let more = self.take(whole.unpack_to(bytes).saturating_sub(self.unpacking.bytes))?;
                self.unpacking.join(more);
            }
            whole.keep(message);
        }
        self.wait = self.wait.take().filter(|_| same).map(|wait| wait.goes_on(self.coming.bytes));
        Ok(())
    }

    /// Counts `bytes` more, or refuses the request.
    fn take(&mut self, bytes: usize) -> Result<Held, BoxError> {
        self.coming.tally.take(bytes).map_err(|no_room| -> BoxError {
            self.is_refused = true;
            match self.framing {
                Some(_) => Box::new(grpc::counted(&ApiError::from(no_room))),
                None => Box::new(no_room),
            }
        })
    }

    /// Releases the room for unpacking that no message so far has needed. The messages of a stream are taken before the
    /// next one is polled, so their unpacked sizes are known by then.
    fn settle_unpacking(&mut self) {
        if let Some(whole) = self.whole.upgrade().filter(|whole| whole.are_taken()) {
            let free = self.unpacking.bytes.saturating_sub(whole.unpacked.load(Relaxed));
            drop(self.unpacking.split(free));
        }
    }

    /// Whether bytes are held until the client sends more: part of a message, a whole message whose call does not end,
    /// much room for unpacking, or much content that is kept for the end.
    fn is_unfinished(&self) -> bool {
        let waits = || self.whole.upgrade().is_some_and(|whole| !whole.are_taken() || whole.kept() > MUCH);
        self.framing.is_some() && (self.coming.bytes > 0 || self.unpacking.bytes > MUCH || waits())
    }

    /// Resolves to an error if bytes are held, more does not arrive or arrives too slowly, and room is scarce. While
    /// room is not scarce, the wait begins anew at its limit: nobody else needs the room.
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<BoxError> {
        self.settle_unpacking();
        if !self.is_unfinished() {
            return Poll::Pending;
        }
        let got = self.coming.bytes;
        loop {
            let wait = self.wait.get_or_insert_with(|| Wait::begin(got));
            ready!(wait.limit.as_mut().poll(cx));
            if self.coming.tally.is_pressed() {
                break;
            }
            self.wait = None;
        }
        let wait = self.wait.as_ref().expect("its limit was reached");
        let why = too_slow(got, wait.drips_for);
        drop((self.coming.split(got), self.unpacking.split(usize::MAX)));
        self.wait = None;
        Poll::Ready(Box::new(grpc::unfinished(&why)))
    }
}

impl HttpBody for Incoming {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(frame)) => frame,
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => return self.poll_wait(cx).map(|error| Some(Err(error))),
        };
        let counted = frame.map_err(BoxError::from).and_then(|frame| {
            let counted = frame.data_ref().map_or(Ok(()), |data| self.count(data));
            counted.map(|()| frame)
        });
        Poll::Ready(Some(counted))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
