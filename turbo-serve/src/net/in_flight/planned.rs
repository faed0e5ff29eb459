//! What an answer will take, held from before it is computed until it is written.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use super::tally::{Held, Tally};
use crate::engine::{AnswerRoom, EngineError, HoldAnswers};

/// An answer may have so many bytes more than were planned before it is looked whether there is room for them: such
/// answers are as many as are worked on at a time.
const MORE_THAN_PLANNED: usize = 64 << 10;

/// The room that is held for an answer that is not written yet; clones share it. An engine holds room for rows as soon
/// as it knows how many there will be.
#[derive(Clone, Debug)]
pub(crate) struct Planned(Arc<Plan>);

struct Plan {
    answers: Arc<Tally>,
    held: Mutex<Held>,
    /// Bytes that are written of a value.
    written: AtomicUsize,
    /// In order.
    then: Mutex<Vec<Then>>,
}

/// What is done when an answer goes out.
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

    /// Where it is counted.
    pub(super) fn answers(&self) -> &Arc<Tally> {
        &self.0.answers
    }

    /// From now on so many bytes are written of each value, beside its row.
    pub(crate) fn written_in(&self, bytes: usize) {
        self.0.written.store(bytes, Relaxed);
    }

    /// Whether an answer of so many values could ever be held; for one that is computed in parts, before the first of them.
    pub(crate) fn check(&self, values: usize) -> Result<(), EngineError> {
        self.0.answers.check_answer(self.0.bytes(values))
    }

    /// Where engines have it held.
    pub(crate) fn room(&self) -> AnswerRoom {
        AnswerRoom::of(self.0.clone())
    }

    /// Holds an answer that has so many bytes now, if there is room for it: for little more than was planned in any case.
    pub(crate) fn fits(&self, bytes: usize) -> Result<(), EngineError> {
        let mut held = self.0.lock();
        let more = bytes.saturating_sub(held.bytes);
        if more > MORE_THAN_PLANNED {
            let more = self.0.answers.take_for_answer(bytes, more)?;
            held.join(more);
        }
        Ok(())
    }

    /// The same, for as long as the result lives; nothing is left here.
    pub(crate) fn becomes(&self, bytes: usize) -> Result<Held, EngineError> {
        self.fits(bytes)?;
        let mut held = self.take();
        held.resize(bytes);
        Ok(held)
    }

    /// Has that done when the answer goes out; never, where it is given up.
    pub(crate) fn when_it_goes_out(&self, then: impl FnOnce() + Send + 'static) {
        self.0.lock_then().push(Box::new(then));
    }

    /// It goes out, and is not given up any more.
    pub(super) fn goes_out(&self) {
        let then = std::mem::take(&mut *self.0.lock_then());
        then.into_iter().for_each(|then| then());
    }

    /// What is held so far; nothing is left here.
    pub(super) fn take(&self) -> Held {
        std::mem::replace(&mut self.0.lock(), self.0.answers.add(0))
    }
}

impl Plan {
    /// What so many values take, and what is written of them.
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
