//! The engine over a runner whose speed and failures the tests command.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod admission;
mod ahead;
mod answers;
mod batches;
mod cache;
mod deadlines;
mod failures;
mod fake;
mod observed;
mod paced;
mod predictions;
mod stop;
mod stress;
mod texts;
