//! Room for an answer: asked for when the tokens of a request are counted, and with them the numbers of its rows, and before
//! any of them is computed.

use std::{fmt, sync::Arc};

use super::EngineError;

/// Who bounds the answers of all requests together.
pub trait HoldAnswers: fmt::Debug + Send + Sync {
    /// Holds so many values for this request, beside those that it has held before.
    ///
    /// # Errors
    /// [`EngineError::AnswerTooLarge`], [`EngineError::NoRoomForAnswer`].
    fn hold(&self, values: usize) -> Result<(), EngineError>;

    /// Lets go of so many that were held: they are not computed after all, and may be asked for again.
    fn let_go(&self, values: usize);
}

/// Where a request has its answer held; by default nobody bounds it. What it holds is let go when this, its clones and what
/// they were made from are gone.
#[derive(Clone, Debug, Default)]
pub struct AnswerRoom(Option<Arc<dyn HoldAnswers>>);

impl AnswerRoom {
    /// Among those that `holder` bounds.
    #[must_use]
    pub fn of(holder: Arc<dyn HoldAnswers>) -> Self {
        Self(Some(holder))
    }

    /// This one, or the other where nobody bounds this.
    #[must_use]
    pub(crate) fn or(self, other: &Self) -> Self {
        Self(self.0.or_else(|| other.0.clone()))
    }

    /// Holds so many values.
    ///
    /// # Errors
    /// Those of [`HoldAnswers::hold`].
    pub(super) fn hold(&self, values: usize) -> Result<(), EngineError> {
        self.0.as_ref().map_or(Ok(()), |holder| holder.hold(values))
    }

    /// Lets go of so many values that were held.
    pub(super) fn let_go(&self, values: usize) {
        if let Some(holder) = &self.0 {
            holder.let_go(values);
        }
    }
}

/// A request is the same whoever holds its answer.
impl PartialEq for AnswerRoom {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for AnswerRoom {}
