#![doc = include_str!("../README.md")]
//!
//! # Modules
//! What a batch would hold is a [`Candidate`]; what it may hold are [`Limits`], in a [`Layout`]; what it costs
//! is in [`cost`]; [`split`](fn@split) finds the cheapest cuts; [`Policy`] offers it beside its rivals;
//! [`Batcher`] decides what runs now; [`Outlook`] tells when a newcomer would be answered; [`Turns`] which of
//! several queues of one device goes next; [`sim`] drives that same batcher with invented traffic.

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
