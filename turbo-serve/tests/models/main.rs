//! The registry of models, with engines that tell when they are asked after their end: who is found, loading, unloading,
//! what is counted, and all of it under traffic.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod changes;
mod ensemble;
mod fake;
mod statistics;
mod stress;
