//! What has come of a request and was not answered yet.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use super::{
    planned::Planned,
    tally::{Held, NoRoom, Tally},
};

/// Most bytes that one of DEFLATE's becomes.
const MOST_UNPACKED: usize = 1032;

/// Of all answers together those of one stream may be one part in so many.
const STREAMS_SHARE: usize = 4;

/// What has come of a body and is held, message by message, until it is answered.
#[derive(Default)]
pub(super) struct Messages {
    held: Mutex<VecDeque<Held>>,
    /// Then nothing is held of what follows: it is read to be thrown away.
    are_discarded: AtomicBool,
    /// Most bytes that a compressed message of the call may unpack to.
    unpacked_limit: AtomicUsize,
    /// The most that one has become so far.
    pub(super) unpacked: AtomicUsize,
    /// What the handler keeps of messages that it has taken, until the call ends.
    kept: Mutex<Option<Held>>,
}

impl Messages {
    pub(super) fn lock(&self) -> MutexGuard<'_, VecDeque<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn keep(&self, message: Held) {
        self.lock().push_back(message);
    }

    /// Keeps a piece of the only message with those before it: it may be one byte, and what would hold it alone is more.
    pub(super) fn keep_piece(&self, piece: Held) {
        let mut held = self.lock();
        match held.back_mut() {
            Some(message) => message.join(piece),
            None => held.push_back(piece),
        }
    }

    /// Whether the handler has taken all of them.
    pub(super) fn are_taken(&self) -> bool {
        self.lock().is_empty()
    }

    pub(super) fn are_discarded(&self) -> bool {
        self.are_discarded.load(Relaxed)
    }

    fn lock_kept(&self) -> MutexGuard<'_, Option<Held>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are kept until the call ends.
    pub(super) fn kept(&self) -> usize {
        self.lock_kept().as_ref().map_or(0, |kept| kept.bytes)
    }

    /// Most bytes that so many packed ones become.
    pub(super) fn unpack_to(&self, bytes: usize) -> usize {
        bytes.saturating_mul(MOST_UNPACKED).min(self.unpacked_limit.load(Relaxed))
    }
}

/// What has come of a request and was not answered yet, and what is held of its answer. An extension of the request,
/// for a handler that answers piece by piece.
#[derive(Clone)]
pub(crate) struct Arrived {
    pub(super) messages: Arc<Messages>,
    pub(super) bodies: Arc<Tally>,
    pub(super) planned: Planned,
}

impl Arrived {
    /// The next message of a stream of gRPC, which is read no sooner than it is here.
    pub(crate) fn message(&self) -> Option<Held> {
        self.messages.lock().pop_front()
    }

    /// So many bytes came out of a packed body.
    pub(crate) fn unpacked(&self, bytes: usize) -> Result<(), NoRoom> {
        if !self.messages.are_discarded() {
            self.messages.keep_piece(self.bodies.take(bytes)?);
        }
        Ok(())
    }

    /// From now on messages of gRPC that come packed become no more than that, each.
    pub(crate) fn unpacks_to(&self, limit: usize) {
        self.messages.unpacked_limit.store(limit, Relaxed);
    }

    /// So many bytes the next message of gRPC has, even if it came packed.
    pub(crate) fn unpacked_message(&self, bytes: usize) -> Result<(), NoRoom> {
        if let Some(message) = self.messages.lock().front_mut()
            && bytes > message.bytes
        {
            self.messages.unpacked.fetch_max(bytes, Relaxed);
            message.join(self.bodies.take(bytes - message.bytes)?);
        }
        Ok(())
    }

    /// Holds so many bytes more of what messages said, until the whole call is answered.
    pub(crate) fn keep_for_end(&self, bytes: usize) -> Result<(), NoRoom> {
        let more = self.bodies.take(bytes)?;
        self.messages.lock_kept().get_or_insert_with(|| self.bodies.add(0)).join(more);
        Ok(())
    }

    /// Lets go of all that has come; what follows is thrown away as it comes.
    pub(crate) fn discard(&self) {
        self.messages.are_discarded.store(true, Relaxed);
        self.messages.lock().clear();
    }

    /// The answer to it, until it is written.
    pub(crate) fn planned(&self) -> Planned {
        self.planned.clone()
    }

    /// The answer to one message of a stream, until it is written.
    pub(crate) fn planned_of_message(&self) -> Planned {
        Planned::among(self.planned.answers())
    }

    /// How many answers of so many values at most may be made for one stream at a time: what they take leaves room for
    /// others.
    pub(crate) fn at_once(&self, values: usize, written: usize) -> usize {
        let share = self.planned.answers().limit / STREAMS_SHARE;
        (share / values.saturating_mul(size_of::<f32>() + written).max(1)).max(1)
    }
}
