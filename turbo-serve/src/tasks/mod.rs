//! Tasks that make several engine requests or interpret an engine's rows: answers to questions about long texts,
//! entities, words that fit into a gap. They run over any [`Infer`], independent of protocols.
//!
//! ```text
//! question, context ─tokenize─▶ windows ─infer, a few at a time─▶ logits ─▶ answers ─▶ parts of the context
//! ```
//!
//! Pure functions in [`turbo_models::tasks`] interpret the logits. This module builds the inputs and gathers the
//! results, within the limits that hold for every request.

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
pub use parts::{IfFull, infer_in_parts};
pub(crate) use patience::{Door, patiently};
pub use questions::{FoundAnswer, QuestionRequest, answer_question};

/// Types of the crate below, by which a request says how its logits are read.
pub use turbo_models::tasks::{Aggregation, AnswerOptions, Edges, NullAnswer};

use std::time::{Duration, Instant};

use crate::engine::{Encoded, Encoding, EngineError, Infer, Input, Task, Usage};

/// A result with its usage.
#[derive(Clone, Debug, PartialEq)]
pub struct Found<T> {
    /// The result.
    pub found: T,
    /// Its usage and timings.
    pub usage: Usage,
}

/// Adds up the usage of a task's requests.
struct Meter {
    started: Instant,
    usage: Usage,
}

impl Meter {
    /// For a task over texts of this many characters.
    fn start(characters: usize) -> Self {
        Self { started: Instant::now(), usage: Usage { characters, ..Usage::default() } }
    }

    /// Records that tokenization has ended: it took the time since the start.
    fn tokenized(&mut self) {
        self.usage.timings.tokenization = self.started.elapsed();
    }

    /// Adds the usage of an engine request.
    fn inferred(&mut self, usage: &Usage) {
        self.usage.add_work(usage);
    }

    fn finish<T>(mut self, found: T) -> Found<T> {
        self.usage.timings.total = self.started.elapsed().max(Duration::from_nanos(1));
        Found { found, usage: self.usage }
    }
}

/// Refuses an engine whose model is not for `task`, since the model's rows mean something else.
fn check_task(engine: &dyn Infer, task: Task, rows: &'static str) -> Result<(), EngineError> {
    match engine.info().model.task {
        its if its == task => Ok(()),
        its => Err(EngineError::NoSuchRows { task: its, rows }),
    }
}

/// The model's input for tokens that are known already.
fn input(encoding: &Encoding, selected: Vec<u32>) -> Input {
    Input::Encoded(Encoded { selected, ..encoded(encoding) })
}

/// The same, with nothing selected.
pub(crate) fn encoded(encoding: &Encoding) -> Encoded {
    let turbo_models::Encoded { input_ids, token_type_ids } = encoding.encoded();
    Encoded { input_ids, token_type_ids, selected: Vec::new() }
}

/// Runs long work on a thread where blocking is allowed.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, turbo_models::tasks::TaskError> + Send + 'static,
) -> Result<T, EngineError> {
    let failed = |why: String| EngineError::Backend(why);
    let worked = tokio::task::spawn_blocking(work).await;
    worked.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}
