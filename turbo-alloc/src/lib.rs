//! Usage records in, chunk offsets out: a memory planner for tensors whose sizes change from run to run.
//!
//! A program whose inputs vary in length needs tensors of other sizes in every run. This planner knows when each tensor is
//! alive. It lets tensors that are never alive together share bytes, and keeps device memory in chunks from one request
//! to the next. It owns no memory and sees no device: values in, values out.
//!
//! ```text
//!   usage records                     memory plan
//!   (first_op, last_op, size)         placements, grow, release
//!
//!   a (0, 2, 6 KiB)     ┌─────────┐   chunk 0 ┊ b b .       bytes ▲
//!   b (0, 1, 2 KiB)  ──▶│ Planner │──▶        ┊ a a a             │
//!   c (2, 3, 8 KiB)     └─────────┘   chunk 1 ┊ . . c c           └──▶ operators
//!                      keeps its chunks
//! ```
//!
//! ```
//! use turbo_alloc::{Planner, UsageRecord, check, peak_live_bytes};
//!
//! let mut planner = Planner::default();
//! for seq_len in [200usize, 240] {
//!     let tensor = |first_op, last_op, width| UsageRecord { first_op, last_op, size: seq_len * width * 4 };
//!     let records = [tensor(0, 1, 768), tensor(1, 2, 3072), tensor(2, 3, 768)];
//!     let plan = planner.plan(&records)?; // give back plan.release, obtain plan.grow, run
//!     assert_eq!(check(&records, &plan, 256), Ok(()));
//!     assert!(plan.footprint() >= peak_live_bytes(&records));
//! }
//! # Ok::<(), turbo_alloc::AllocError>(())
//! ```
//!
//! In reading order: [`UsageRecord`] and [`peak_live_bytes`] (the input), [`MemoryPlan`] (the output),
//! [`PlannerConfig`] and [`Policy`], [`Planner`] (Algorithm 1), [`check`](check()) and [`Ledger`] (is a
//! plan sound?), [`Strategy`] and [`baselines`] (other allocators), [`report`] (tables and pictures).

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

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
