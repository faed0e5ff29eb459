//! The registry of models, with engines that detect requests after their end: look-up, loading, unloading, statistics,
//! and all of it under load.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod changes;
mod ensemble;
mod fake;
mod statistics;
mod stress;
