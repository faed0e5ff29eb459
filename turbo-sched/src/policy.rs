//! How a queue is cut into batches: the split and its rivals behind one interface.
//!
//! In: lengths in order of service, and the cost of a [`Candidate`]. Out: [`Batches`] of positions in that list.
//! All policies honour the same [`Limits`], so they can be exchanged under a running server.

use std::num::{NonZeroU32, NonZeroUsize};

use crate::baselines::{fill_in_order, length_buckets, one_by_one};
use crate::batches::Batches;
use crate::candidate::Candidate;
use crate::cost::BatchTotal;
use crate::limits::{Layout, Limits};
use crate::split::Splitter;

/// Which requests share a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// No batching.
    OneByOne,
    /// As many as fit from the front of the queue, counted padded: the naive scheduler of the paper.
    WholeQueue,
    /// As many of similar length as fit, first come first served inside a bucket.
    LengthBuckets {
        /// Lengths per bucket.
        width: NonZeroU32,
    },
    /// As many as fit from the front of the queue, counted in the machine's layout: the queue of
    /// text-embeddings-inference. Differs from `WholeQueue` only for packed batches.
    TokenBudget,
    /// As many as fit, from the shortest on, of all that are planned at once: as in servers that sort a window of their
    /// queue by length. It cuts only where a batch is full, even between lengths that differ much.
    SortedWindow,
    /// The cuts of least total cost: in length order when padded, in order of service when packed.
    OptimalSplit,
}

/// A policy with its limits, and the buffers that it reuses from plan to plan.
#[derive(Debug, Clone)]
pub struct Planner {
    policy: Policy,
    /// The limits of any batch of this policy, with tokens counted as `layout` says.
    limits: Limits,
    layout: Layout,
    splitter: Splitter,
    order: Vec<usize>,
    ordered_lens: Vec<u32>,
    sizes: Vec<usize>,
    batches: Batches,
}

impl Planner {
    /// A planner that has seen no queue.
    #[must_use]
    pub fn new(policy: Policy, limits: Limits, layout: Layout) -> Self {
        let (limits, layout) = match policy {
            Policy::OneByOne => (Limits { max_batch_size: NonZeroUsize::MIN, ..limits }, layout),
            Policy::WholeQueue => (limits, Layout::Padded),
            _ => (limits, layout),
        };
        Self {
            policy,
            limits,
            layout,
            splitter: Splitter::default(),
            order: Vec::new(),
            ordered_lens: Vec::new(),
            sizes: Vec::new(),
            batches: Batches::default(),
        }
    }

    /// Cuts a queue into batches; every request is in exactly one.
    ///
    /// * `lens`: `seq_len` of each waiting request, in the order in which they should be served.
    /// * `cost`: of a whole batch. [`Policy::OptimalSplit`] finds the best of all partitions if the batches are padded
    ///   and the cost never falls with length, and the best of all cuts of `lens` if they are packed.
    ///
    /// Allocates only when the queue is longer than any before.
    pub fn plan(&mut self, lens: &[u32], cost: impl Fn(&Candidate) -> BatchTotal) -> &Batches {
        self.batches.clear();
        let (limits, layout, batches) = (self.limits, self.layout, &mut self.batches);
        match self.policy {
            Policy::OneByOne => one_by_one(lens, cost, batches),
            Policy::WholeQueue | Policy::TokenBudget => {
                fill_in_order(0..lens.len(), lens, |batch| limits.admits(layout, batch), cost, batches);
            }
            Policy::LengthBuckets { width } => {
                let admits = |batch: &Candidate| limits.admits(layout, batch);
                length_buckets(lens, width, admits, cost, &mut self.order, batches);
            }
            Policy::SortedWindow => {
                by_length(lens, &mut self.order);
                let order = self.order.iter().copied();
                fill_in_order(order, lens, |batch| limits.admits(layout, batch), cost, batches);
            }
            Policy::OptimalSplit => self.split(lens, cost),
        }
        &self.batches
    }

    /// Whether the policy may run this as one batch.
    #[must_use]
    pub fn admits(&self, batch: &Candidate) -> bool {
        self.limits.admits(self.layout, batch)
    }

    /// Whether no request, however short, could join this batch.
    #[must_use]
    pub fn is_full(&self, batch: &Candidate) -> bool {
        self.limits.is_full(self.layout, batch)
    }

    /// How full this batch is, compared with the largest of this policy: see [`Limits::fill`].
    #[must_use]
    pub fn fill(&self, batch: &Candidate) -> f64 {
        self.limits.fill(self.layout, batch)
    }

    /// The batches of the last plan.
    #[must_use]
    pub fn batches(&self) -> &Batches {
        &self.batches
    }

    fn split(&mut self, lens: &[u32], cost: impl Fn(&Candidate) -> BatchTotal) {
        match self.layout {
            Layout::Padded => by_length(lens, &mut self.order),
            Layout::Packed => in_order(lens, &mut self.order),
        }
        self.ordered_lens.clear();
        self.ordered_lens.extend(self.order.iter().map(|&position| lens[position]));
        self.splitter.split_into(&self.ordered_lens, &self.limits, self.layout, &cost, &mut self.sizes);

        let mut order = self.order.as_slice();
        for &size in &self.sizes {
            let members;
            (members, order) = order.split_at(size);
            self.batches.push(members.iter().copied(), lens, &cost);
        }
    }
}

/// All positions, in the given order.
fn in_order(lens: &[u32], order: &mut Vec<usize>) {
    order.clear();
    order.extend(0..lens.len());
}

/// All positions, the shortest first.
fn by_length(lens: &[u32], order: &mut Vec<usize>) {
    in_order(lens, order);
    order.sort_unstable_by_key(|&position| (lens[position], position));
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU64, NonZeroUsize};

    use super::*;

    /// Batches of at most 3 requests and 60 tokens, as lists of positions.
    fn plan(policy: Policy, layout: Layout, lens: &[u32]) -> Vec<Vec<usize>> {
        let limits = Limits {
            max_batch_size: NonZeroUsize::new(3).unwrap(),
            max_batch_tokens: NonZeroU64::new(60).unwrap(),
        };
        let cost = |batch: &Candidate| BatchTotal(20.0 + layout.tokens(batch) as f64);
        let mut planner = Planner::new(policy, limits, layout);
        planner.plan(&[9; 50], cost); // what an earlier queue leaves behind must not show
        planner.plan(lens, cost).iter().map(|batch| batch.members.to_vec()).collect()
    }

    #[test]
    fn each_policy_cuts_its_way() {
        let lens = [5, 30, 6, 31, 90, 7];
        let buckets = Policy::LengthBuckets { width: NonZeroU32::new(10).unwrap() };
        for (policy, layout, expected) in [
            (Policy::OneByOne, Layout::Packed, &[&[0][..], &[1], &[2], &[3], &[4], &[5]][..]),
            (Policy::WholeQueue, Layout::Padded, &[&[0, 1], &[2], &[3], &[4], &[5]]),
            (Policy::WholeQueue, Layout::Packed, &[&[0, 1], &[2], &[3], &[4], &[5]]),
            (Policy::TokenBudget, Layout::Padded, &[&[0, 1], &[2], &[3], &[4], &[5]]),
            (Policy::TokenBudget, Layout::Packed, &[&[0, 1, 2], &[3], &[4], &[5]]),
            (buckets, Layout::Packed, &[&[0, 2, 5], &[1], &[3], &[4]]),
            (Policy::SortedWindow, Layout::Packed, &[&[0, 2, 5], &[1], &[3], &[4]]),
            (Policy::SortedWindow, Layout::Padded, &[&[0, 2, 5], &[1], &[3], &[4]]),
            (Policy::OptimalSplit, Layout::Padded, &[&[0, 2, 5], &[1], &[3], &[4]]),
            // Under a linear cost no cuts beat filling from the front.
            (Policy::OptimalSplit, Layout::Packed, &[&[0, 1, 2], &[3], &[4], &[5]]),
        ] {
            assert_eq!(plan(policy, layout, &lens), expected, "{policy:?} {layout:?}");
        }
    }

    #[test]
    fn a_sorted_window_is_filled_where_the_split_would_cut() {
        let lens = [1, 19, 2, 20];
        assert_eq!(plan(Policy::SortedWindow, Layout::Padded, &lens), [vec![0, 2, 1], vec![3]]);
        // 57 tokens and 20 with a start each, against 4 and 40
        assert_eq!(plan(Policy::OptimalSplit, Layout::Padded, &lens), [[0, 2], [1, 3]]);
    }

    #[test]
    fn buckets_hold_their_upper_end() {
        let buckets = Policy::LengthBuckets { width: NonZeroU32::new(10).unwrap() };
        assert_eq!(plan(buckets, Layout::Packed, &[11, 10, 1, 20]), [&[1, 2], &[0, 3]]);
    }
}
