//! When a request that comes now would be answered: for admission, so that no request waits in vain.
//!
//! In: what waits, what runs, what batches cost. Out: a time. It sees what a [`Batcher`](crate::Batcher) sees, but it
//! is not a queue: admission keeps it beside the batcher, which may be busy on another thread. Time is an argument.
//!
//! A request is answered after the batch that runs now, after everything that goes before it in the order of service,
//! and at the end of its own batch. Before each batch up to its own goes at most one batch of overdue requests of lower
//! priorities ([`BatcherConfig::overdue_after`](crate::BatcherConfig::overdue_after)). If the batcher looks for the
//! cheapest cuts, batches are counted here as if filled in its order: in the padded layout the real cuts are a little
//! cheaper, and real packed batches are smaller, so that their starts cost up to 2 % more.
//!
//! Predictions are compared with their outcomes ([`Outlook::answered`]), so that what no cost knows (other work of the
//! machine, batches that later requests fill up) is learnt, too.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::candidate::Candidate;
use crate::cost::{BatchTotal, CostModel};
use crate::dispatch::{BatcherConfig, Priority, Request, RequestId};
use crate::error::SchedError;
use crate::limits::Layout;
use crate::pace::Pace;
use crate::policy::{Planner, Policy};
use crate::turns::Sharers;

/// Everything that lies before a request, as far as it is known.
#[derive(Debug, Clone)]
pub struct Outlook {
    cost: CostModel,
    overdue_after: Duration,
    /// Whether priorities and deadlines decide the order of service.
    by_rank: bool,
    planner: Planner,
    /// Lengths of the requests that are planned.
    lens: Vec<u32>,
    /// Lengths of overdue requests of lower priorities, whose batches go in between.
    between: Vec<u32>,
    /// Lengths of waiting requests, in order of service.
    waiting: BTreeMap<Place, u32>,
    busy_until: Duration,
    /// Other queues of the machine.
    sharers: Sharers,
    pace: Pace,
}

/// The predicted time until a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prediction {
    /// The time according to the costs of all batches up to its own.
    pub by_cost: Duration,
    /// `by_cost`, corrected by how earlier predictions came out, on the safe side. On an idle machine it is `by_cost`:
    /// nothing else adds to it, and a refused request would teach nothing.
    pub expected: Duration,
}

/// The most iterations over the requests that become overdue during a wait, which makes the wait longer.
const LOOKS: usize = 4;

/// Where a request stands in the order of service, leaving aside overdue requests: by priority, by deadline, by
/// arrival; then by id, so that no two are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    priority: Reverse<Priority>,
    deadline: Duration,
    arrived: Duration,
    id: RequestId,
}

impl Place {
    fn has_lower_priority_than(&self, other: &Self) -> bool {
        self.priority > other.priority
    }
}

impl Outlook {
    /// An outlook on a batcher with this configuration and an empty queue.
    #[must_use]
    pub fn new(config: &BatcherConfig, cost: CostModel) -> Self {
        let policy = match (config.policy, cost.layout()) {
            (Policy::OptimalSplit, Layout::Packed) => Policy::TokenBudget,
            (Policy::OptimalSplit, Layout::Padded) => Policy::SortedWindow,
            (policy, _) => policy,
        };
        Self {
            planner: config.planner(policy, cost.layout()),
            cost,
            overdue_after: config.overdue_after,
            by_rank: config.policy == Policy::OptimalSplit,
            lens: Vec::new(),
            between: Vec::new(),
            waiting: BTreeMap::new(),
            busy_until: Duration::ZERO,
            sharers: Sharers::default(),
            pace: Pace::default(),
        }
    }

    /// Adds a waiting request. Called again with another `seq_len`, it replaces the first, which may be a guess.
    pub fn enter(&mut self, request: &Request) {
        self.waiting.insert(self.place(request), request.seq_len);
    }

    /// Removes a request that runs or was given up; `false` if it did not wait.
    pub fn leave(&mut self, request: &Request) -> bool {
        self.waiting.remove(&self.place(request)).is_some()
    }

    /// Sets the time at which the running batch is predicted to be done.
    pub fn busy_until(&mut self, then: Duration) {
        self.busy_until = then;
    }

    /// Sets the other queues of the machine; there are none at first. Before each batch of this queue goes an equally
    /// long one of each queue that asks for a turn. If another queue's batch runs now, which [`Outlook::busy_until`]
    /// counts, one more of that queue goes before each batch but the last.
    pub fn shared_with(&mut self, others: Sharers) {
        self.sharers = others;
    }

    /// Learns how long a batch took, as the batcher does.
    ///
    /// # Errors
    /// Those of [`Batcher::observe`](crate::Batcher::observe); nothing is learnt.
    pub fn observe(&mut self, candidate: &Candidate, measured: Duration) -> Result<(), SchedError> {
        self.cost.update(candidate, BatchTotal::from_duration(measured))
    }

    /// Time from `now` until requests like `first`, of these lengths, would all be answered if no more came. They are
    /// not waiting yet.
    ///
    /// O(n) for n waiting requests, or O(n log n) where they are sorted by length.
    pub fn time_until_answered(
        &mut self,
        first: &Request,
        lens: impl IntoIterator<Item = u32, IntoIter: Clone>,
        now: Duration,
    ) -> Prediction {
        let (place, own) = (self.place(first), lens.into_iter());
        let is_idle = self.waiting.is_empty() && self.busy_until <= now;
        // Requests that become overdue while it waits go before it, too, and prolong its wait.
        let (mut before, mut by_cost) = (None, Duration::ZERO);
        for _ in 0..LOOKS {
            let counted = self.gather(&place, now.saturating_add(by_cost));
            if before.replace(counted) == Some(counted) {
                break;
            }
            self.lens.extend(own.clone());
            let [earlier, last] = self.times();
            let earlier = earlier.saturating_add(self.time_between());
            by_cost = self.busy_until.saturating_sub(now).saturating_add(self.of_all(earlier, last));
        }
        let expected = if is_idle { by_cost } else { self.pace.expected(by_cost, now) };
        Prediction { by_cost, expected }
    }

    /// Time that requests of these lengths would take on an idle machine.
    pub fn time_alone(&mut self, lens: impl IntoIterator<Item = u32>) -> Duration {
        self.lens.clear();
        self.lens.extend(lens);
        let [earlier, last] = self.times();
        earlier.saturating_add(last)
    }

    /// Time from `now` until all known requests are answered.
    pub fn time_left(&mut self, now: Duration) -> Duration {
        self.lens.clear();
        self.lens.extend(self.waiting.values());
        let [earlier, last] = self.times();
        self.busy_until.saturating_sub(now).saturating_add(self.of_all(earlier, last))
    }

    /// Records that a request with this prediction, which was allowed to take `allowed`, was answered or given up at
    /// `now`, `taken` after the prediction.
    pub fn answered(&mut self, predicted: Prediction, allowed: Duration, taken: Duration, now: Duration) {
        self.pace.observe(predicted.by_cost, allowed, taken, now);
    }

    /// Collects the lengths of the requests that go before `place` or are overdue at `then`: in `between` those of lower
    /// priorities, in `lens` the others. Returns how many `lens` and `between` hold.
    fn gather(&mut self, place: &Place, then: Duration) -> (usize, usize) {
        self.lens.clear();
        self.between.clear();
        for (of, &len) in &self.waiting {
            let is_overdue = then.saturating_sub(of.arrived) >= self.overdue_after;
            match of < place || is_overdue {
                true if of.has_lower_priority_than(place) => self.between.push(len),
                true => self.lens.push(len),
                false => {}
            }
        }
        (self.lens.len(), self.between.len())
    }

    /// The time that the batches of `lens` take on an unshared machine: all but the last together, and the last.
    fn times(&mut self) -> [Duration; 2] {
        let batches = self.planner.plan(&self.lens, |batch| self.cost.cost(batch));
        let (all, last) = (batches.total_cost(), batches.iter().last().map_or(0.0, |batch| batch.cost.0));
        [BatchTotal((all.0 - last).max(0.0)), BatchTotal(last)].map(BatchTotal::as_duration)
    }

    /// The time of the batches that go in between: one before each batch of the last plan.
    fn time_between(&mut self) -> Duration {
        let most = self.planner.batches().len();
        let batches = self.planner.plan(&self.between, |batch| self.cost.cost(batch));
        BatchTotal(batches.iter().take(most).map(|batch| batch.cost.0).sum()).as_duration()
    }

    /// How long batches take, including those of other queues that go before them.
    fn of_all(&self, earlier: Duration, last: Duration) -> Duration {
        let Sharers { asking, running } = self.sharers;
        let asking = u32::try_from(asking).unwrap_or(u32::MAX);
        let each = asking.saturating_add(1);
        earlier.saturating_mul(each.saturating_add(running.into())).saturating_add(last.saturating_mul(each))
    }

    fn place(&self, request: &Request) -> Place {
        let Request { id, arrived, deadline, priority, .. } = *request;
        let (priority, deadline) = match self.by_rank {
            true => (priority, deadline.unwrap_or(Duration::MAX)),
            false => (Priority::default(), Duration::ZERO),
        };
        Place { priority: Reverse(priority), deadline, arrived, id }
    }
}
