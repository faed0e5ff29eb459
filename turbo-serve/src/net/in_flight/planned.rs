//! Room for an answer, held from before it is computed until it is written.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use super::tally::{Held, Tally};
use crate::engine::{AnswerRoom, EngineError, HoldAnswers};

/// Bytes by which an answer may exceed its plan without a check for room: there are no more such answers than requests
/// that are worked on at a time.
const MORE_THAN_PLANNED: usize = 64 << 10;

/// The room held for a request's answer that is not written yet; clones share it. An engine reserves room for the rows
/// as soon as it knows how many there will be.
#[derive(Clone, Debug)]
pub(crate) struct Planned(Arc<Plan>);

struct Plan {
    answers: Arc<Tally>,
    held: Mutex<Held>,
    /// Bytes written for each value, in addition to its `f32`.
    written: AtomicUsize,
    /// Run in order when the answer goes out.
    then: Mutex<Vec<Then>>,
}

/// A callback for when an answer goes out.
type Then = Box<dyn FnOnce() + Send>;

impl Planned {
    pub(super) fn among(answers: &Arc<Tally>) -> Self {
        Self(Arc::new(Plan {
            answers: Arc::clone(answers),
            held: Mutex::new(answers.add(0)),
            written: 0.into(),
            then: Mutex::default(),
        }))
    }

    /// The tally in which it is counted.
    pub(super) fn answers(&self) -> &Arc<Tally> {
        &self.0.answers
    }

    /// From now on reserves `bytes` bytes for writing each value, in addition to its row.
    pub(crate) fn written_in(&self, bytes: usize) {
        self.0.written.store(bytes, Relaxed);
    }

    /// Checks whether an answer of `values` values could ever be held. Called before the first part of an answer that
    /// is computed in parts.
    pub(crate) fn check(&self, values: usize) -> Result<(), EngineError> {
        self.0.answers.check_answer(self.0.bytes(values))
    }

    /// The handle through which engines reserve room.
    pub(crate) fn room(&self) -> AnswerRoom {
        AnswerRoom::of(self.0.clone())
    }

    /// Reserves room for an answer of `bytes` bytes, if there is room. Up to [`MORE_THAN_PLANNED`] bytes more than are
    /// held always fit, and are not counted here.
    pub(crate) fn fits(&self, bytes: usize) -> Result<(), EngineError> {
        let mut held = self.0.lock();
        let more = bytes.saturating_sub(held.bytes);
        if more > MORE_THAN_PLANNED {
            let more = self.0.answers.take_for_answer(bytes, more)?;
            held.join(more);
        }
        Ok(())
    }

    /// The same, then moves the held bytes to the result, which counts all of the answer's bytes.
    pub(crate) fn becomes(&self, bytes: usize) -> Result<Held, EngineError> {
        self.fits(bytes)?;
        let mut held = self.take();
        held.resize(bytes);
        Ok(held)
    }

    /// Runs `then` when the answer goes out; never, if it is dropped instead.
    pub(crate) fn when_it_goes_out(&self, then: impl FnOnce() + Send + 'static) {
        self.0.lock_then().push(Box::new(then));
    }

    /// Runs the callbacks: the answer goes out, and cannot be refused any more.
    pub(super) fn goes_out(&self) {
        let then = std::mem::take(&mut *self.0.lock_then());
        then.into_iter().for_each(|then| then());
    }

    /// Moves the bytes held so far to the result.
    pub(super) fn take(&self) -> Held {
        std::mem::replace(&mut self.0.lock(), self.0.answers.add(0))
    }
}

impl Plan {
    /// Bytes of `values` values and of what is written of them.
    fn bytes(&self, values: usize) -> usize {
        values.saturating_mul(size_of::<f32>() + self.written.load(Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_then(&self) -> MutexGuard<'_, Vec<Then>> {
        self.then.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HoldAnswers for Plan {
    fn let_go(&self, values: usize) {
        drop(self.lock().split(self.bytes(values)));
    }

    fn hold(&self, values: usize) -> Result<(), EngineError> {
        let more = self.bytes(values);
        let mut held = self.lock();
        let bytes = held.bytes.saturating_add(more);
        held.join(self.answers.take_for_answer(bytes, more)?);
        Ok(())
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("bytes", &self.lock().bytes).finish_non_exhaustive()
    }
}
