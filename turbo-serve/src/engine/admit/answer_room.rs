//! Room for answers, reserved before they are computed.
//!
//! It is reserved once a request's tokens are counted: their number determines how many values its rows have.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::engine::EngineError;

/// Bounds the size of the answers of all requests together.
pub trait HoldAnswers: fmt::Debug + Send + Sync {
    /// Reserves room for this many more values of this request.
    ///
    /// # Errors
    /// [`EngineError::AnswerTooLarge`], [`EngineError::NoRoomForAnswer`].
    fn hold(&self, values: usize) -> Result<(), EngineError>;

    /// Releases this many of the held values: they are not computed, and the request may be retried.
    fn let_go(&self, values: usize);
}

/// The room that a request's answer is held in; unbounded by default. The values that it holds are released when this,
/// its clones and the holder that they were made from are dropped.
#[derive(Clone, Debug, Default)]
pub struct AnswerRoom(Option<Arc<dyn HoldAnswers>>);

impl AnswerRoom {
    /// A room bounded by `holder`.
    #[must_use]
    pub fn of(holder: Arc<dyn HoldAnswers>) -> Self {
        Self(Some(holder))
    }

    /// This room, or `other` where this one is unbounded.
    #[must_use]
    pub(crate) fn or(self, other: &Self) -> Self {
        Self(self.0.or_else(|| other.0.clone()))
    }

    /// Reserves room for this many values.
    ///
    /// # Errors
    /// Those of [`HoldAnswers::hold`].
    pub fn hold(&self, values: usize) -> Result<(), EngineError> {
        self.0.as_ref().map_or(Ok(()), |holder| holder.hold(values))
    }

    /// Releases this many of the held values.
    pub(crate) fn let_go(&self, values: usize) {
        if let Some(holder) = &self.0 {
            holder.let_go(values);
        }
    }

    /// A part of this room, for an attempt at an answer.
    pub(crate) fn attempt(self) -> (Attempt, Self) {
        let Some(whole) = self.0 else { return (Attempt(None), Self(None)) };
        let part = Arc::new(Part { whole, held: Mutex::new(Some(0)) });
        (Attempt(Some(Arc::clone(&part))), Self::of(part))
    }
}

/// An attempt at an answer. Dropping it releases the values held in its room, unless it was [answered](Self::answered);
/// in either case the room holds nothing from then on.
pub(crate) struct Attempt(Option<Arc<Part>>);

impl Attempt {
    /// Hands the held values over to the whole room, of which the attempt's own is a part.
    pub(crate) fn answered(self) {
        if let Some(part) = &self.0 {
            *part.held() = None;
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(part) = &self.0
            && let Some(values) = part.held().take()
        {
            part.whole.let_go(values);
        }
    }
}

#[derive(Debug)]
struct Part {
    whole: Arc<dyn HoldAnswers>,
    /// Values that are held; `None` once the attempt is over.
    held: Mutex<Option<usize>>,
}

impl Part {
    fn held(&self) -> MutexGuard<'_, Option<usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HoldAnswers for Part {
    fn hold(&self, values: usize) -> Result<(), EngineError> {
        if let Some(held) = &mut *self.held() {
            self.whole.hold(values)?;
            *held += values;
        }
        Ok(())
    }

    fn let_go(&self, values: usize) {
        if let Some(held) = &mut *self.held() {
            self.whole.let_go(values);
            *held -= values;
        }
    }
}

/// Always equal: where an answer is held does not tell two requests apart.
impl PartialEq for AnswerRoom {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for AnswerRoom {}

#[cfg(test)]
pub(in crate::engine) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// Holds without a limit, and counts the held values.
    #[derive(Debug, Default)]
    pub(in crate::engine) struct Holder(pub(in crate::engine) AtomicUsize);

    impl HoldAnswers for Holder {
        fn hold(&self, values: usize) -> Result<(), EngineError> {
            self.0.fetch_add(values, SeqCst);
            Ok(())
        }

        fn let_go(&self, values: usize) {
            self.0.fetch_sub(values, SeqCst);
        }
    }

    #[test]
    fn what_an_attempt_held_goes_with_it_unless_it_was_answered() {
        let holder = Arc::new(Holder::default());
        let held = || holder.0.load(SeqCst);
        let (attempt, room) = AnswerRoom::of(holder.clone()).attempt();
        room.hold(5).unwrap();
        room.hold(3).unwrap();
        room.let_go(5);
        assert_eq!(held(), 3);
        drop(attempt);
        assert_eq!(held(), 0);
        room.hold(7).unwrap(); // by a thread that has not heard of it
        room.let_go(7);
        assert_eq!(held(), 0);
        let (attempt, room) = AnswerRoom::of(holder.clone()).attempt();
        room.hold(5).unwrap();
        attempt.answered();
        drop(room);
        assert_eq!(held(), 5);
    }
}
