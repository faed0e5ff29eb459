//! From what a client asks to what a model is asked, and back: answers to questions about long texts, entities, words
//! that fit into a gap. Over any [`Infer`](crate::engine::Infer), in the words of no protocol.
//!
//! ```text
//! question, context ─tokenize─▶ windows ─infer, a few at a time─▶ logits ─▶ answers ─▶ parts of the context
//! ```
//!
//! What the logits mean is decided by the pure functions of [`turbo_models::tasks`]; here inputs are made and gathered,
//! within the limits that every request has.

mod entities;
#[cfg(test)]
mod fake;
mod gaps;
mod parts;
mod patience;
mod questions;

pub use entities::{EntityRequest, FoundEntity, entities};
pub use gaps::{Filled, GapRequest, MOST_FILLED, MOST_TARGETS, fill_gaps};
pub(crate) use parts::AT_ONCE;
pub use parts::{NoRoom, infer_in_parts};
pub(crate) use patience::{Door, patiently};
pub use questions::{FoundAnswer, QuestionRequest, answer_question};

use std::time::{Duration, Instant};

use crate::engine::{Encoded, Encoding, EngineError, Input, Usage};

/// What was found, and what it took.
#[derive(Clone, Debug, PartialEq)]
pub struct Found<T> {
    /// What was found.
    pub found: T,
    /// What it took.
    pub usage: Usage,
}

/// Adds up what the parts of a task take.
struct Meter {
    started: Instant,
    usage: Usage,
}

impl Meter {
    /// Of a task over texts of so many characters.
    fn start(characters: usize) -> Self {
        Self { started: Instant::now(), usage: Usage { characters, ..Usage::default() } }
    }

    /// The texts have been tokens for the time since the start.
    fn tokenized(&mut self) {
        self.usage.timings.tokenization = self.started.elapsed();
    }

    /// A request for the model took this.
    fn inferred(&mut self, usage: &Usage) {
        let (sum, timings) = (&mut self.usage.timings, &usage.timings);
        sum.tokenization += timings.tokenization;
        sum.queue += timings.queue;
        sum.inference += timings.inference;
        self.usage.tokens += usage.tokens;
    }

    fn finish<T>(mut self, found: T) -> Found<T> {
        self.usage.timings.total = self.started.elapsed().max(Duration::from_nanos(1));
        Found { found, usage: self.usage }
    }
}

/// What the model reads of tokens that were looked at before.
fn input(encoding: &Encoding, selected: Vec<u32>) -> Input {
    Input::Encoded(Encoded { selected, ..encoded(encoding) })
}

/// The same, with nothing selected.
pub(crate) fn encoded(encoding: &Encoding) -> Encoded {
    let turbo_models::Encoded { input_ids, token_type_ids } = encoding.encoded();
    Encoded { input_ids, token_type_ids, selected: Vec::new() }
}

/// Does long work on a blocking thread.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, turbo_models::tasks::TaskError> + Send + 'static,
) -> Result<T, EngineError> {
    let failed = |why: String| EngineError::Backend(why);
    let worked = tokio::task::spawn_blocking(work).await;
    worked.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}
