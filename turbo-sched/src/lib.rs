#![doc = include_str!("../README.md")]
//!
//! # Modules
//! [`Candidate`] is what a batch would hold; [`Limits`] say what it may hold, in a [`Layout`]; [`cost`] says what it
//! costs. [`split`](fn@split) finds the cheapest cuts, and [`Policy`] offers it beside its rivals. [`Batcher`] decides
//! what runs now. [`Outlook`] predicts when a newcomer would be answered. [`Turns`] says which of several queues on one
//! device goes next. [`sim`] drives the same batcher with invented traffic.

mod baselines;
mod batches;
mod candidate;
pub mod cost;
mod dispatch;
mod error;
mod limits;
mod outlook;
mod pace;
mod policy;
pub mod sim;
mod split;
mod turns;

pub use batches::{Batches, PlannedBatch};
pub use candidate::Candidate;
pub use cost::{BatchTotal, CostModel, CostRows, CostTable, Drift, Estimate, PackedCost, PerRequest, Source};
pub use dispatch::{
    BatchOrder, Batcher, BatcherConfig, Decision, Dispatch, Priority, Request, RequestId, Run,
};
pub use error::SchedError;
pub use limits::{Layout, Limits};
pub use outlook::{Outlook, Prediction};
pub use policy::{Planner, Policy};
pub use split::{Splitter, split};
pub use turns::{Member, Sharers, Turns};
