//! Counts the bytes held of one kind, and refuses more when there is no room.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use metrics::{Gauge, counter};

use crate::{
    engine::EngineError,
    metric_names::{ADMISSION_REFUSALS, REASON, refusal},
};

/// When to retry: a fixed time, since it is unknown when clients will read on.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The bytes held of one kind.
pub(super) struct Tally {
    pub(super) held: AtomicUsize,
    pub(super) limit: usize,
    what: &'static str,
    flag: &'static str,
    gauge: Gauge,
}

/// Some of the bytes of a tally, released when this is dropped.
pub(crate) struct Held {
    pub(super) tally: Arc<Tally>,
    pub(super) bytes: usize,
}

/// The tally that counts an answer until its client has taken it. An extension of the answer, for the code that sends
/// the answer.
#[derive(Clone)]
pub(in crate::net) struct Room(pub(super) Arc<Tally>);

impl Room {
    /// Whether half of the room or more is taken.
    pub(in crate::net) fn is_pressed(&self) -> bool {
        self.0.is_pressed()
    }

    /// A room for which [`Room::is_pressed`] holds.
    #[cfg(test)]
    pub(in crate::net) fn pressed() -> Self {
        Self(Tally::new(0, "answers", "--no-flag", Gauge::noop()))
    }
}

/// The limit is reached.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the server holds {held} bytes of {what}, and takes no more than {limit} (`{flag}`): retry in {} s",
    RETRY_AFTER.as_secs()
)]
pub(crate) struct NoRoom {
    held: usize,
    what: &'static str,
    limit: usize,
    flag: &'static str,
}

impl NoRoom {
    /// When to retry.
    pub(crate) fn retry_after() -> Duration {
        RETRY_AFTER
    }

    /// The `NoRoom` among the causes of an error that reading a body gave, if any.
    pub(crate) fn behind<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let mut causes = std::iter::successors(Some(error), |&error| error.source());
        causes.find_map(|error| error.downcast_ref())
    }
}

impl Tally {
    pub(super) fn new(limit: usize, what: &'static str, flag: &'static str, gauge: Gauge) -> Arc<Self> {
        gauge.set(0.0);
        Arc::new(Self { held: 0.into(), limit, what, flag, gauge })
    }

    pub(super) fn is_full(&self) -> bool {
        self.held.load(Relaxed) >= self.limit
    }

    /// Whether half of the room or more is taken.
    pub(super) fn is_pressed(&self) -> bool {
        self.held.load(Relaxed) >= self.limit / 2
    }

    /// Counts bytes that are held in any case, without checking the limit.
    pub(super) fn add(self: &Arc<Self>, bytes: usize) -> Held {
        self.held.fetch_add(bytes, Relaxed);
        self.gauge.increment(bytes as f64);
        Held { tally: Arc::clone(self), bytes }
    }

    /// Counts bytes unless they exceed the limit.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Result<Held, NoRoom> {
        let taken = self.add(bytes);
        if self.held.load(Relaxed) > self.limit {
            drop(taken);
            return Err(self.no_room());
        }
        Ok(taken)
    }

    /// Checks whether an answer of `bytes` bytes could ever be held.
    pub(super) fn check_answer(&self, bytes: usize) -> Result<(), EngineError> {
        let limit = self.limit;
        if bytes > limit { Err(EngineError::AnswerTooLarge { bytes, limit }) } else { Ok(()) }
    }

    /// Counts `more` bytes of an answer that then has `bytes` bytes.
    pub(super) fn take_for_answer(self: &Arc<Self>, bytes: usize, more: usize) -> Result<Held, EngineError> {
        self.check_answer(bytes)?;
        let limit = self.limit;
        let no_room = |NoRoom { held, .. }| EngineError::NoRoomForAnswer {
            bytes,
            held,
            limit,
            retry_after: RETRY_AFTER,
        };
        self.take(more).map_err(no_room)
    }

    pub(super) fn no_room(&self) -> NoRoom {
        counter!(ADMISSION_REFUSALS, REASON => refusal::BYTES).increment(1);
        let Self { what, limit, flag, .. } = *self;
        NoRoom { held: self.held.load(Relaxed), what, limit, flag }
    }
}

impl Held {
    /// Splits off `bytes` bytes, or all if there are fewer.
    pub(super) fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { tally: Arc::clone(&self.tally), bytes }
    }

    /// Adds the bytes of `other`.
    pub(super) fn join(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Holds exactly `bytes` bytes from now on, without checking the limit.
    pub(super) fn resize(&mut self, bytes: usize) {
        drop(self.split(self.bytes.saturating_sub(bytes)));
        self.join(self.tally.add(bytes - self.bytes));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.tally.held.fetch_sub(self.bytes, Relaxed);
        self.tally.gauge.decrement(self.bytes as f64);
    }
}
