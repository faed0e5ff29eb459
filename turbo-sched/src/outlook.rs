//! When a request that comes now would be answered: asked before it is let in, so that nobody waits in vain.
//!
//! In: who waits, what runs, what batches cost. Out: a time. It sees what a [`Batcher`](crate::Batcher) sees, but it is no
//! queue: whoever lets requests in keeps it beside the batcher, which may be busy on another thread. Time is an argument.
//!
//! A request is served behind what runs now, behind all that goes before it in the order of service, and at the end of its
//! own batch. Where the batcher looks for the cheapest cuts, batches are counted as filled in its order: under the line of
//! packed costs that is what the cuts come to, and in the padded layout they are a little cheaper.
//!
//! Predictions are held against what came of them ([`Outlook::answered`]), so that what no cost knows (other work of the
//! machine, batches that are filled up by who comes later) is learnt, too.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::cost::CostModel;
use crate::dispatch::{BatcherConfig, Priority, Request, RequestId};
use crate::limits::Layout;
use crate::pace::Pace;
use crate::policy::{Planner, Policy};

/// All that lies before a request, as far as it is known.
#[derive(Debug, Clone)]
pub struct Outlook {
    cost: CostModel,
    overdue_after: Duration,
    /// Whether priorities and deadlines decide who goes first.
    by_rank: bool,
    planner: Planner,
    /// Lengths of what is planned.
    lens: Vec<u32>,
    /// Lengths of those who wait, in order of service.
    waiting: BTreeMap<Place, u32>,
    busy_until: Duration,
    pace: Pace,
}

/// What is predicted of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prediction {
    /// What the costs of all batches up to its own say.
    pub by_cost: Duration,
    /// What has to be expected after what such predictions came to: more often than not it is less.
    pub expected: Duration,
}

/// Where a request stands in the order of service, but for what becomes overdue: by priority, by deadline, by arrival; then
/// by id, so that no two are equal.
type Place = (Reverse<Priority>, Duration, Duration, RequestId);

impl Outlook {
    /// An outlook on a batcher with this configuration, before which nobody waits.
    #[must_use]
    pub fn new(config: &BatcherConfig, cost: CostModel) -> Self {
        let policy = match (config.policy, cost.layout()) {
            (Policy::OptimalSplit, Layout::Packed) => Policy::TokenBudget,
            (Policy::OptimalSplit, Layout::Padded) => Policy::SortedWindow,
            (policy, _) => policy,
        };
        Self {
            planner: Planner::new(policy, config.limits, cost.layout()),
            cost,
            overdue_after: config.overdue_after,
            by_rank: config.policy == Policy::OptimalSplit,
            lens: Vec::new(),
            waiting: BTreeMap::new(),
            busy_until: Duration::ZERO,
            pace: Pace::default(),
        }
    }

    /// A request waits from now on. Whose length is not known yet comes with a guess, and again when it is.
    pub fn enter(&mut self, request: &Request) {
        self.waiting.insert(self.place(request), request.seq_len);
    }

    /// A request does not wait any more: it runs, or was given up. `false` when it did not wait.
    pub fn leave(&mut self, request: &Request) -> bool {
        self.waiting.remove(&self.place(request)).is_some()
    }

    /// What runs is predicted to be done then.
    pub fn busy_until(&mut self, then: Duration) {
        self.busy_until = then;
    }

    /// Batches cost what `cost` says from now on.
    pub fn learn(&mut self, cost: &CostModel) {
        self.cost.clone_from(cost);
    }

    /// Time from `now` until requests like `first`, of these lengths, would all be answered, if no more came. They do not
    /// wait yet.
    ///
    /// O(n) for n that wait, or O(n log n) where they are sorted by length.
    pub fn time_until_answered(&mut self, first: &Request, lens: &[u32], now: Duration) -> Prediction {
        let place = self.place(first);
        let is_overdue = |arrived| now.saturating_sub(arrived) >= self.overdue_after;
        let goes_before = |of: &Place| *of < place || is_overdue(of.2);
        self.lens.clear();
        self.lens.extend(self.waiting.iter().filter(|(of, _)| goes_before(of)).map(|(_, &len)| len));
        self.lens.extend_from_slice(lens);
        self.time(now)
    }

    /// Time that requests of these lengths would take if nobody else were there.
    pub fn time_alone(&mut self, lens: &[u32]) -> Prediction {
        self.lens.clear();
        self.lens.extend_from_slice(lens);
        let busy_until = std::mem::take(&mut self.busy_until);
        let time = self.time(Duration::ZERO);
        self.busy_until = busy_until;
        time
    }

    /// Time from `now` until all that is known is answered.
    pub fn time_left(&mut self, now: Duration) -> Duration {
        self.lens.clear();
        self.lens.extend(self.waiting.values());
        self.time(now).by_cost
    }

    /// A request of which that was predicted, and that was allowed to take `allowed`, took `taken`, or was given up after
    /// it.
    pub fn answered(&mut self, predicted: Prediction, allowed: Duration, taken: Duration) {
        self.pace.observe(predicted.by_cost, allowed, taken);
    }

    /// A request was not let in, and will tell nothing.
    pub fn refused(&mut self) {
        self.pace.forget();
    }

    /// What `lens` take behind what runs.
    fn time(&mut self, now: Duration) -> Prediction {
        let planned = self.planner.plan(&self.lens, |batch| self.cost.cost(batch)).total_cost();
        let by_cost = self.busy_until.saturating_sub(now).saturating_add(planned.as_duration());
        Prediction { by_cost, expected: self.pace.expected(by_cost) }
    }

    fn place(&self, request: &Request) -> Place {
        let Request { id, arrived, deadline, priority, .. } = *request;
        match self.by_rank {
            true => (Reverse(priority), deadline.unwrap_or(Duration::MAX), arrived, id),
            false => (Reverse(Priority::default()), Duration::ZERO, arrived, id),
        }
    }
}
