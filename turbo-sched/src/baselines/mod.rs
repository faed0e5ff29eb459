//! What the split is compared with: how other servers form batches.
//!
//! In: lengths in order of arrival. Out: batches, appended to a plan. None of these looks at the cost except
//! to write it down.

mod buckets;
mod fifo;

pub(crate) use buckets::length_buckets;
pub(crate) use fifo::{fill_in_order, one_by_one};
