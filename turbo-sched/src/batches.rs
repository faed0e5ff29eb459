//! A queue cut into batches, in three flat arrays that are reused from plan to plan.
//!
//! In: members and costs, from a policy. Out: an iterator over the batches.

use crate::candidate::Candidate;
use crate::cost::BatchTotal;

/// Batches of positions in the list of lengths that was planned; every position is in exactly one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batches {
    members: Vec<usize>,
    spans: Vec<Span>,
}

/// Where a batch ends in `members`, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Span {
    end: usize,
    candidate: Candidate,
    cost: BatchTotal,
}

/// One batch of a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlannedBatch<'a> {
    /// Positions in the list of lengths that was planned.
    pub members: &'a [usize],
    /// What the batch holds.
    pub candidate: Candidate,
    /// What it is expected to cost.
    pub cost: BatchTotal,
}

impl Batches {
    /// The batches, in the order in which the policy formed them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = PlannedBatch<'_>> {
        (0..self.spans.len()).map(|batch| {
            let start = if batch == 0 { 0 } else { self.spans[batch - 1].end };
            let Span { end, candidate, cost } = self.spans[batch];
            PlannedBatch { members: &self.members[start..end], candidate, cost }
        })
    }

    /// Number of batches.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is no batch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Cost of running all batches one after the other.
    #[must_use]
    pub fn total_cost(&self) -> BatchTotal {
        BatchTotal(self.spans.iter().map(|span| span.cost.0).sum())
    }

    /// Removes all batches and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.members.clear();
        self.spans.clear();
    }

    /// Appends a batch; `members` must not be empty.
    pub(crate) fn push(
        &mut self,
        members: impl IntoIterator<Item = usize>,
        lens: &[u32],
        cost: impl Fn(&Candidate) -> BatchTotal,
    ) {
        let start = self.members.len();
        self.members.extend(members);
        let candidate = self.members[start..].iter().map(|&member| lens[member]).collect();
        self.spans.push(Span { end: self.members.len(), candidate, cost: cost(&candidate) });
    }
}
