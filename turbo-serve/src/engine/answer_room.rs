//! Room for answers: reserved once a request's tokens are counted, which tells how many values its rows have, and
//! before any of them is computed.

use std::{fmt, sync::Arc};

use super::EngineError;

/// Bounds the size of the answers of all requests together.
pub trait HoldAnswers: fmt::Debug + Send + Sync {
    /// Reserves room for this many values of this request, in addition to those that it holds.
    ///
    /// # Errors
    /// [`EngineError::AnswerTooLarge`], [`EngineError::NoRoomForAnswer`].
    fn hold(&self, values: usize) -> Result<(), EngineError>;

    /// Releases this many of the held values: they are not computed, and the request may be retried.
    fn let_go(&self, values: usize);
}

/// The room of a request's answer; unbounded by default. What it holds is released when this, its clones and the holder
/// that they were made from are dropped.
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
    pub(crate) fn hold(&self, values: usize) -> Result<(), EngineError> {
        self.0.as_ref().map_or(Ok(()), |holder| holder.hold(values))
    }

    /// Releases this many of the held values.
    pub(crate) fn let_go(&self, values: usize) {
        if let Some(holder) = &self.0 {
            holder.let_go(values);
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
