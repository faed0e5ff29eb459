//! The body of a request, counted as it comes; a call of gRPC is given up whose client does not go on.

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

/// Bytes that a stream may hold while it rests: room for packed messages, or what is kept for its end.
const MUCH: usize = 64 << 10;

/// The body of a request.
pub(super) struct Incoming {
    body: Body,
    /// What has come of a message that is not whole.
    coming: Held,
    /// Room for the largest of its messages that came packed.
    unpacking: Held,
    /// Holds whole messages until they are answered; gone when nothing will answer them.
    whole: Weak<Messages>,
    /// Of a call of gRPC; any other body is one message.
    framing: Option<Framing>,
    /// While more of what is held has to come. Of gRPC calls alone: the other routes have timeouts of their own.
    wait: Option<Wait>,
    /// Then what follows is read to be thrown away.
    is_refused: bool,
}

/// A wait for more of a message.
struct Wait {
    began: Instant,
    limit: Pin<Box<Sleep>>,
    /// At the limit it has dripped for so long, if that is why there is one.
    drips_for: Option<Duration>,
}

impl Wait {
    /// For more than so many bytes.
    fn begin(got: usize) -> Self {
        let began = Instant::now();
        let (until, drips_for) = patience(began, got);
        Self { began, limit: Box::pin(sleep_until(until)), drips_for }
    }

    /// The same when something has come, and there are so many.
    fn goes_on(mut self, got: usize) -> Self {
        let (until, drips_for) = patience(self.began, got);
        self.limit.as_mut().reset(until);
        Self { drips_for, ..self }
    }
}

impl Incoming {
    /// Counts among `bodies`, and keeps what is whole in `messages`; `framing` is that of a call of gRPC.
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
        // A call with one message can send others for ever: they do not begin its time anew.
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

    /// Counts more, or refuses it.
    fn take(&mut self, bytes: usize) -> Result<Held, BoxError> {
        self.coming.tally.take(bytes).map_err(|no_room| -> BoxError {
            self.is_refused = true;
            match self.framing {
                Some(_) => Box::new(grpc::counted(&ApiError::from(no_room))),
                None => Box::new(no_room),
            }
        })
    }

    /// Lets go of the room for packed messages that none of those so far has taken. Those of a stream are taken before more
    /// is asked for, so by then it is known what they became.
    fn settle_unpacking(&mut self) {
        if let Some(whole) = self.whole.upgrade().filter(|whole| whole.are_taken()) {
            let free = self.unpacking.bytes.saturating_sub(whole.unpacked.load(Relaxed));
            drop(self.unpacking.split(free));
        }
    }

    /// Whether something is held for which more has to come: half a message, a whole one whose call does not end, or much
    /// room for packed ones, of which there may be no more, or much that is kept for the end.
    fn is_unfinished(&self) -> bool {
        let waits = || self.whole.upgrade().is_some_and(|whole| !whole.are_taken() || whole.kept() > MUCH);
        self.framing.is_some() && (self.coming.bytes > 0 || self.unpacking.bytes > MUCH || waits())
    }

    /// Ends with an error when something is held of which nothing more comes, or too slowly, and others may need its room. A
    /// stream may stand still through no fault of its client: where others of its connection are not read, the window that
    /// they share is gone.
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
