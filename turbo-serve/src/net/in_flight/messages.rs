//! The messages of a request that have arrived and are not answered yet.

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

/// Most bytes that one byte of DEFLATE data unpacks to.
const MOST_UNPACKED: usize = 1032;

/// The planned answers of one stream may take one part in this many of the room for answers.
const STREAMS_SHARE: usize = 4;

/// The bytes of a body that have arrived, held message by message until they are answered.
#[derive(Default)]
pub(super) struct Messages {
    held: Mutex<VecDeque<Held>>,
    /// Set by [`Arrived::discard`]: whatever follows is not counted.
    are_discarded: AtomicBool,
    /// Most bytes that a packed message unpacks to, in a call whose messages are unpacked.
    unpacked_limit: AtomicUsize,
    /// Unpacked size of the largest packed message so far.
    pub(super) unpacked: AtomicUsize,
    /// Content of taken messages that the handler keeps until the call ends.
    kept: Mutex<Option<Held>>,
}

impl Messages {
    pub(super) fn lock(&self) -> MutexGuard<'_, VecDeque<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn keep(&self, message: Held) {
        self.lock().push_back(message);
    }

    /// Joins a piece of the only message with those before it: a piece may be a single byte, less than an entry of its
    /// own would take.
    pub(super) fn keep_piece(&self, piece: Held) {
        let mut held = self.lock();
        match held.back_mut() {
            Some(message) => message.join(piece),
            None => held.push_back(piece),
        }
    }

    /// Whether the handler has taken all messages so far.
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

    /// Most bytes that `bytes` packed bytes unpack to.
    pub(super) fn unpack_to(&self, bytes: usize) -> usize {
        bytes.saturating_mul(MOST_UNPACKED).min(self.unpacked_limit.load(Relaxed))
    }
}

/// The bytes held of a request that is not answered yet, and of its answer. An extension of the request, for handlers
/// that answer it piece by piece.
#[derive(Clone)]
pub(crate) struct Arrived {
    pub(super) messages: Arc<Messages>,
    pub(super) bodies: Arc<Tally>,
    pub(super) planned: Planned,
}

impl Arrived {
    /// Takes the next message of a gRPC stream, which is counted before it can be read.
    pub(crate) fn message(&self) -> Option<Held> {
        self.messages.lock().pop_front()
    }

    /// Counts `bytes` bytes that were unpacked from a packed body.
    pub(crate) fn unpacked(&self, bytes: usize) -> Result<(), NoRoom> {
        if !self.messages.are_discarded() {
            self.messages.keep_piece(self.bodies.take(bytes)?);
        }
        Ok(())
    }

    /// From now on a packed gRPC message unpacks to at most `limit` bytes.
    pub(crate) fn unpacks_to(&self, limit: usize) {
        self.messages.unpacked_limit.store(limit, Relaxed);
    }

    /// Counts the next gRPC message, if it was packed, with its unpacked size `bytes`.
    pub(crate) fn unpacked_message(&self, bytes: usize) -> Result<(), NoRoom> {
        if let Some(message) = self.messages.lock().front_mut()
            && bytes > message.bytes
        {
            self.messages.unpacked.fetch_max(bytes, Relaxed);
            message.join(self.bodies.take(bytes - message.bytes)?);
        }
        Ok(())
    }

    /// Holds `bytes` more bytes of messages' content until the whole call is answered.
    pub(crate) fn keep_for_end(&self, bytes: usize) -> Result<(), NoRoom> {
        let more = self.bodies.take(bytes)?;
        self.messages.lock_kept().get_or_insert_with(|| self.bodies.add(0)).join(more);
        Ok(())
    }

    /// Releases all that has arrived; whatever follows is not counted.
    pub(crate) fn discard(&self) {
        self.messages.are_discarded.store(true, Relaxed);
        self.messages.lock().clear();
    }

    /// The room of its answer, until that is written.
    pub(crate) fn planned(&self) -> Planned {
        self.planned.clone()
    }

    /// Room for the answer to one message of a stream, until that is written.
    pub(crate) fn planned_of_message(&self) -> Planned {
        Planned::among(self.planned.answers())
    }

    /// How many answers of up to `values` values may be made for one stream at a time, so that room is left for other
    /// requests. `written` is the number of bytes written for each value.
    pub(crate) fn at_once(&self, values: usize, written: usize) -> usize {
        let share = self.planned.answers().limit / STREAMS_SHARE;
        (share / values.saturating_mul(size_of::<f32>() + written).max(1)).max(1)
    }
}
