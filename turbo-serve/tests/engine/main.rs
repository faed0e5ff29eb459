//! The engine over a runner whose speed and failures the tests command.

mod admission;
mod answers;
mod batches;
mod failures;
mod fake;
mod stop;
