//! The registry of models, with engines that report calls after their end: finding, loading, unloading, counting, and
//! all of it under traffic.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod changes;
mod ensemble;
mod fake;
mod statistics;
mod stress;
