//! Usage records in, chunk offsets out: a memory planner for tensors whose sizes change from run to run.

pub mod baselines;
mod check;
mod config;
mod error;
mod plan;
mod planner;
mod record;
pub mod report;
mod strategy;

pub use check::{Ledger, Violation, check};
pub use config::{PlannerConfig, Policy};
pub use error::AllocError;
pub use plan::{Chunk, ChunkId, MemoryPlan, Placement};
pub use planner::Planner;
pub use record::{UsageRecord, peak_live_bytes};
pub use strategy::{DeviceUse, Strategy};
