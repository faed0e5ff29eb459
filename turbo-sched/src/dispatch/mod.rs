//! The batcher: which requests run now.
//!
//! In: requests as they arrive, what finished batches cost, and the current time as an argument. Out: a batch,
//! or the moment at which to ask again. It owns no clock and no thread: a server and a simulator drive it alike.
//! Source: Fang et al., PPoPP'21, §5 (hungry and lazy, the half-SLO rule). Beyond it: an order among batches,
//! deadlines, priorities, and a bound on how long a request is passed over (see [`BatcherConfig::overdue_after`]).

mod order;
mod request;

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::batches::PlannedBatch;
use crate::candidate::Candidate;
use crate::cost::{BatchTotal, CostModel, Drift, relative_error};
use crate::error::SchedError;
use crate::limits::{Layout, Limits};
use crate::policy::{Planner, Policy};

pub use order::BatchOrder;
pub use request::{Priority, Request, RequestId};

/// When a batch is formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatch {
    /// Whenever the runner is free: for a machine under load.
    Hungry,
    /// As soon as the waiting requests fill a batch; with [`Policy::OptimalSplit`] of packed batches, as soon as the
    /// start of their batch would be a small share of its cost. Otherwise when the oldest has waited for `timeout`, or
    /// when the wait of a request plus the estimated time of everything waiting reaches half of `slo`, or half of the
    /// time from arrival to deadline: the other half is for what no estimate knows.
    Lazy {
        /// Longest wait for company.
        timeout: Duration,
        /// Time from arrival to answer that was promised.
        slo: Duration,
    },
}

/// What a [`Batcher`] does with its queue.
///
/// The policy decides which requests share a batch, not which batch goes first. With [`Policy::OptimalSplit`] that is
/// decided, in this order, by an overdue request ([`BatcherConfig::overdue_after`]); the highest priority in a batch;
/// the earliest deadline at that priority; [`BatchOrder`]. The other policies serve the batch of the oldest request.
///
/// With [`Policy::OptimalSplit`] a packed batch is also no larger than is needed to make its start cheap, and is cut
/// shorter if it then ends before a deadline of its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatcherConfig {
    /// Which requests share a batch.
    pub policy: Policy,
    /// When a batch is formed.
    pub dispatch: Dispatch,
    /// Which batch goes first where neither priorities nor deadlines decide.
    pub order: BatchOrder,
    /// The largest batch.
    pub limits: Limits,
    /// How many requests are planned at once, from the front of the order of service. This bounds the time that
    /// planning takes; no batch holds more.
    pub window: NonZeroUsize,
    /// Wait after which a request is overdue. With [`Policy::OptimalSplit`] the batch of the oldest overdue request
    /// goes first, whatever its priority. If a request of higher priority is waiting then, the next batch is chosen as
    /// if none were overdue: otherwise priorities would mean nothing as soon as more requests arrive than are served in
    /// time.
    ///
    /// Example, batches of one: A and B of priority 0 are overdue, newer C and D have priority 1. They go A, C, B, D.
    ///
    /// With [`Dispatch::Hungry`] a request starts at most this long after its arrival, plus the batch that runs then,
    /// plus one batch for each older request; if priorities differ, two for each, and one more.
    pub overdue_after: Duration,
}

impl BatcherConfig {
    /// [`Policy::OptimalSplit`], [`Dispatch::Hungry`], [`BatchOrder::AgeAndCost`], overdue after one second. The window
    /// is as large as the largest batch, but at least 256 and at most 1024 requests.
    #[must_use]
    pub fn with_limits(limits: Limits) -> Self {
        const LEAST_WINDOW: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not 0");
        const MOST_WINDOW: NonZeroUsize = NonZeroUsize::new(1024).expect("1024 is not 0");
        Self {
            policy: Policy::OptimalSplit,
            dispatch: Dispatch::Hungry,
            order: BatchOrder::AgeAndCost,
            limits,
            window: limits.max_batch_size.clamp(LEAST_WINDOW, MOST_WINDOW),
            overdue_after: Duration::from_secs(1),
        }
    }

    /// The limits of the batches that are formed: the window is a limit, too.
    #[must_use]
    pub fn batch_limits(&self) -> Limits {
        Limits { max_batch_size: self.limits.max_batch_size.min(self.window), ..self.limits }
    }

    /// A planner for this policy, with these limits, for a machine of this layout.
    pub(crate) fn planner(&self, policy: Policy, layout: Layout) -> Planner {
        Planner::new(policy, self.batch_limits(), layout)
    }
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decision<'a> {
    /// Run this batch. Its requests have left the queue.
    Run(Run<'a>),
    /// Ask again at this moment, or when a request arrives before it.
    WaitUntil(Duration),
    /// Nothing waits: ask again when a request arrives.
    Idle,
}

/// A batch to run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run<'a> {
    /// Its requests: by length where batches are padded, else in order of service.
    pub ids: &'a [RequestId],
    /// What it holds, to be passed to [`Batcher::observe`].
    pub candidate: Candidate,
    /// Seconds it is expected to take.
    pub cost: BatchTotal,
    /// How full it is: see [`Limits::fill`].
    pub fill: f64,
}

/// The greatest share of its time that the start of a packed batch may take. On a CPU a few hundred tokens suffice, a
/// quarter of what fills a tenth of a second; if starts are dear, as on GPUs, no batch is large enough to be cut.
const SHARE_OF_START: f64 = 0.02;

/// How much dearer a token may become when a batch is cut short for the sake of a deadline.
const DEARER_FOR_A_DEADLINE: f64 = 1.1;

/// The waiting requests of one runner. Times are since an epoch of the caller's choice; costs are in seconds.
#[derive(Debug, Clone)]
pub struct Batcher {
    config: BatcherConfig,
    cost: CostModel,
    drift: Drift,
    /// In order of arrival.
    queue: Vec<Request>,
    planner: Planner,
    /// Whether the last batch went first for an overdue request while one of a higher priority waited: see
    /// [`BatcherConfig::overdue_after`].
    overdue_last: bool,
    /// Positions in `queue`, in order of service; what the planner sees.
    order: Vec<usize>,
    lens: Vec<u32>,
    /// The chosen batch: positions in `queue`, then its ids.
    chosen: Vec<usize>,
    ids: Vec<RequestId>,
}

impl Batcher {
    /// A batcher with an empty queue. Batches are formed for the layout of the cost model.
    #[must_use]
    pub fn new(config: BatcherConfig, cost: CostModel) -> Self {
        Self {
            planner: config.planner(config.policy, cost.layout()),
            config,
            cost,
            drift: Drift::default(),
            queue: Vec::new(),
            overdue_last: false,
            order: Vec::new(),
            lens: Vec::new(),
            chosen: Vec::new(),
            ids: Vec::new(),
        }
    }

    /// Adds a request. Its id must differ from all that wait.
    pub fn push(&mut self, request: Request) {
        self.queue.push(request);
    }

    /// Switches to [`Dispatch::Hungry`]: no more requests will come that others could wait for.
    pub fn hurry(&mut self) {
        self.config.dispatch = Dispatch::Hungry;
    }

    /// Takes a request back; `false` when it does not wait here (it may be running).
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let position = self.queue.iter().position(|request| request.id == id);
        position.map(|position| self.queue.remove(position)).is_some()
    }

    /// Takes back every request for whose id `gone` returns `true`, in one pass; returns how many.
    pub fn cancel_all(&mut self, gone: impl Fn(RequestId) -> bool) -> usize {
        let waiting = self.queue.len();
        self.queue.retain(|request| !gone(request.id));
        waiting - self.queue.len()
    }

    /// Learns how long a batch took, nothing from one without tokens. Returns the relative error of the prediction.
    ///
    /// # Errors
    /// [`SchedError::Cost`] when `measured` is zero, [`SchedError::Zero`] for an empty batch; nothing is learnt.
    pub fn observe(&mut self, candidate: &Candidate, measured: Duration) -> Result<f64, SchedError> {
        let (predicted, measured) = (self.cost.cost(candidate), BatchTotal::from_duration(measured));
        self.cost.update(candidate, measured)?;
        match candidate.max_seq_len {
            0 => Ok(relative_error(predicted, measured)),
            _ => Ok(self.drift.observe(predicted, measured)),
        }
    }

    /// Decides what a free runner does at `now`. Allocates only when the queue is longer than ever before.
    pub fn poll(&mut self, now: Duration) -> Decision<'_> {
        if self.queue.is_empty() {
            return Decision::Idle;
        }
        let run_at = self.run_at();
        if now < run_at {
            return Decision::WaitUntil(run_at);
        }
        let overdue_after = if self.overdue_last { Duration::MAX } else { self.config.overdue_after };
        self.arrange(now, overdue_after);
        self.planner.plan(&self.lens, |batch| self.cost.cost(batch));
        let first = &self.queue[self.order[0]];
        let is_overdue = order::is_overdue(first, now, overdue_after);
        self.overdue_last = is_overdue && self.queue.iter().any(|other| other.priority > first.priority);
        let (candidate, cost) = self.choose(now, is_overdue);
        self.take();
        let fill = self.planner.fill(&candidate);
        Decision::Run(Run { ids: &self.ids, candidate, cost, fill })
    }

    /// Number of waiting requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Time that the whole queue would take if it were served in order of arrival: after that, a refused client may try
    /// again.
    #[must_use]
    pub fn backlog(&self) -> Duration {
        let (mut open, mut total) = (Candidate::default(), 0.0);
        for request in &self.queue {
            let mut grown = open;
            grown.add(request.seq_len);
            if !self.planner.admits(&grown) {
                total += self.cost.cost(&open).0;
                grown = [request.seq_len].into_iter().collect();
            }
            open = grown;
        }
        if open.batch_size > 0 {
            total += self.cost.cost(&open).0;
        }
        BatchTotal(total).as_duration()
    }

    /// How far recent batches were from their predictions.
    #[must_use]
    pub fn drift(&self) -> &Drift {
        &self.drift
    }

    /// The costs as learnt so far, in seconds.
    #[must_use]
    pub fn cost_model(&self) -> &CostModel {
        &self.cost
    }

    /// Writes the window of the queue into `order` and `lens`.
    fn arrange(&mut self, now: Duration, overdue_after: Duration) {
        self.order.clear();
        self.order.extend(0..self.queue.len());
        let window = self.config.window.get();
        match self.config.policy {
            Policy::OptimalSplit => {
                let key = |&position: &usize| {
                    (order::of_service(&self.queue[position], now, overdue_after), position)
                };
                if self.order.len() > window {
                    self.order.select_nth_unstable_by_key(window - 1, key);
                    self.order.truncate(window);
                }
                self.order.sort_unstable_by_key(key);
            }
            _ => self.order.truncate(window),
        }
        self.lens.clear();
        self.lens.extend(self.order.iter().map(|&position| self.queue[position].seq_len));
    }

    /// The earliest moment at which a batch should start. It moves only when the queue or the costs do.
    ///
    /// The paper takes the time of the current batch. Here the waiting requests may become several batches, and the
    /// oldest request may be in the last of them, so the time of all is taken.
    fn run_at(&self) -> Duration {
        let Dispatch::Lazy { timeout, slo } = self.config.dispatch else { return Duration::ZERO };
        let waiting: Candidate = self.queue.iter().map(|request| request.seq_len).collect();
        if self.planner.is_full(&waiting) || self.is_large_enough(&waiting) {
            return Duration::ZERO;
        }
        let total = self.backlog();
        let last_starts = self.queue.iter().map(|request| {
            let asked = request.deadline.unwrap_or(Duration::MAX).saturating_sub(request.arrived);
            let half = slo.min(asked) / 2;
            request.arrived.saturating_add(timeout.min(half.saturating_sub(total)))
        });
        last_starts.min().unwrap_or(Duration::ZERO)
    }

    /// Puts the positions of the batch to run into `chosen`. If the first request in the order of service is overdue,
    /// that is its batch.
    fn choose(&mut self, now: Duration, first_is_overdue: bool) -> (Candidate, BatchTotal) {
        let serve_first = self.config.policy != Policy::OptimalSplit || first_is_overdue;
        let rank = |batch: &PlannedBatch<'_>| {
            let requests = batch.members.iter().map(|&member| &self.queue[self.order[member]]);
            order::of_batch(requests, batch.cost, self.config.order)
        };
        let mut batches = self.planner.batches().iter();
        let batch = if serve_first {
            batches.find(|batch| batch.members.contains(&0))
        } else {
            batches.min_by(|a, b| rank(a).total_cmp(&rank(b)))
        };
        let batch = batch.expect("every request of a queue that is not empty is in a batch");
        let PlannedBatch { members, candidate, cost } =
            if self.cuts_short() { self.in_time(self.large_enough(batch), now) } else { batch };
        self.chosen.clear();
        self.chosen.extend(members.iter().map(|&member| self.order[member]));
        (candidate, cost)
    }

    /// Whether a batch may be cut to fewer requests than were planned: packed ones are in order of service.
    fn cuts_short(&self) -> bool {
        self.config.policy == Policy::OptimalSplit && self.cost.layout() == Layout::Packed
    }

    /// Whether the start of a packed batch is a small share of its cost. A larger batch would hardly make a token
    /// cheaper, but would delay all answers: those of its members, and of requests that come while it runs.
    ///
    /// The cost of one request without its tokens counts as part of the start. In quiet hours all batches hold one
    /// request, and such batches cannot tell the cost of a batch from that of a request: if the latter did not count,
    /// requests would run alone for good.
    fn is_large_enough(&self, batch: &Candidate) -> bool {
        let start = self.cost.cost(&Candidate { batch_size: 1, ..Candidate::default() });
        self.cuts_short() && start.0 <= SHARE_OF_START * self.cost.cost(batch).0
    }

    /// The first members of a batch, in order of service, that make it large enough.
    fn large_enough<'a>(&self, batch: PlannedBatch<'a>) -> PlannedBatch<'a> {
        let mut part = Candidate::default();
        for (position, &member) in batch.members.iter().enumerate() {
            part.add(self.queue[self.order[member]].seq_len);
            if self.is_large_enough(&part) {
                let cost = self.cost.cost(&part);
                return PlannedBatch { members: &batch.members[..=position], candidate: part, cost };
            }
        }
        batch
    }

    /// The first members of a batch, in order of service, that end before those of their deadlines that can be met at
    /// all: an urgent request does not wait for others in its batch. But this must not make a token much dearer, at the
    /// expense of the deadlines of later batches: a deadline that only so short a batch could meet is given up.
    fn in_time<'a>(&self, batch: PlannedBatch<'a>, now: Duration) -> PlannedBatch<'a> {
        let per_token = |batch: &Candidate, cost: BatchTotal| cost.0 / batch.total_tokens as f64;
        let dearest = DEARER_FOR_A_DEADLINE * per_token(&batch.candidate, batch.cost);
        let first_met_at = |end: Duration, members: &[usize]| {
            let deadlines = members.iter().filter_map(|&member| self.queue[self.order[member]].deadline);
            deadlines.filter(|&deadline| deadline >= end).min().unwrap_or(Duration::MAX)
        };
        let (mut last_end, mut part) = (Duration::MAX, Candidate::default());
        for (count, &member) in batch.members.iter().enumerate() {
            let (before, before_cost) = (part, self.cost.cost(&part));
            part.add(self.queue[self.order[member]].seq_len);
            let end = now.saturating_add(self.cost.cost(&part).as_duration());
            let is_late = end > last_end;
            if is_late && per_token(&before, before_cost) <= dearest {
                return PlannedBatch {
                    members: &batch.members[..count],
                    candidate: before,
                    cost: before_cost,
                };
            }
            // All deadlines are looked at again only when one is given up.
            last_end = match is_late {
                true => first_met_at(end, &batch.members[..=count]),
                false => first_met_at(end, &[member]).min(last_end),
            };
        }
        batch
    }

    /// Moves the chosen requests out of the queue, into `ids`.
    fn take(&mut self) {
        self.ids.clear();
        self.ids.extend(self.chosen.iter().map(|&position| self.queue[position].id));
        self.chosen.sort_unstable();
        let mut chosen = self.chosen.iter().peekable();
        let mut position = 0;
        self.queue.retain(|_| {
            let leaves = chosen.next_if_eq(&&position).is_some();
            position += 1;
            !leaves
        });
    }
}
