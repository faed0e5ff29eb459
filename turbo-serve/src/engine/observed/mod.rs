//! What an engine has done lately, kept for whoever looks at it.
//!
//! ```text
//! worker ────────────▶ batches, by the second, costs    it never waits: while somebody reads, a batch is not written down
//! tokenizer threads ─▶ cache hits, by the second ┐
//! who awaits answers ▶ latencies of a minute ────┴────▶ Observed
//! ```
//!
//! All memory is taken at start. What the metrics count is counted here too, at the same places, so that both tell the
//! same until a model is loaded again: the metrics of its name go on counting. What takes time (evaluating costs, planning
//! memory) is done when somebody has looked.

mod batches;
mod costs;
mod latencies;
mod requests;
mod seconds;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime},
};

use turbo_sched::{Candidate, CostModel, Layout, Limits};

pub use batches::{Batch, BatchSecond, SEQUENCES};
pub use costs::{Cell, CostMap, Line, MeasuredBatch};
pub use latencies::{INTERVAL, Latencies, Percentiles};
pub use requests::{Class, Misses, Origins, RequestSecond};
pub(super) use requests::{Miss, Origin};
pub use seconds::SECONDS;

use self::{
    batches::Batches,
    costs::Costs,
    requests::{Counts, Requests},
};
use super::{HeldBytes, Priority, waiting::Waiting};

/// What an engine has done lately.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// When the engine began: another time tells another engine.
    pub began: SystemTime,
    /// Time since then; all times below are counted like it.
    pub now: Duration,
    /// What was counted since it began.
    pub totals: Totals,
    /// Inputs that wait for their batch.
    pub waiting: usize,
    /// How long the oldest of them has; `None` while none waits.
    pub oldest_wait: Option<Duration>,
    /// Predicted time until all that was let in is answered.
    pub until_empty: Duration,
    /// What came of the requests of each class, the highest first.
    pub classes: Vec<Class>,
    /// The last batches that were computed, the oldest first.
    pub batches: Vec<Batch>,
    /// Batches of the last [`SECONDS`] seconds; seconds without any are left out.
    pub batch_seconds: Vec<(u64, BatchSecond)>,
    /// Inputs of the last [`SECONDS`] seconds; seconds without any are left out.
    pub request_seconds: Vec<(u64, RequestSecond)>,
    /// From an input's arrival to its answer.
    pub latencies: Latencies,
    /// What batches cost, as it was known shortly after the look before this one.
    pub costs: CostMap,
    /// What is planned and held.
    pub memory: Memory,
    /// Batches that are not told of above, for somebody was looking when they were done.
    pub unseen: u64,
}

/// Bytes of a model on its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// What the plan of the largest batch takes: it is reserved.
    pub largest_planned: usize,
    /// What that of the last batch does, of one batch each second at most; 0 before the first.
    pub last_planned: usize,
    /// What the model has.
    pub held: HeldBytes,
}

/// What the metrics of the same meaning count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Batches that were given to the model.
    pub batches: u64,
    /// Inputs of those.
    pub inputs: u64,
    /// Tokens of those.
    pub tokens: u64,
    /// Tokens that those would be, were each input padded to the longest of its batch.
    pub padded_tokens: u64,
    /// Inputs that were answered.
    pub answered: u64,
    /// Where their answers came from.
    pub origins: Origins,
    /// Requests that had no answer in time.
    pub misses: Misses,
}

/// Where it is written down.
pub(super) struct Observer {
    epoch: Instant,
    began: SystemTime,
    layout: Layout,
    counted: Counted,
    /// Whether somebody has looked since costs and plans were last told.
    looked: AtomicBool,
    worked: Mutex<Worked>,
    /// Batches that the worker could not write down without waiting.
    unseen: AtomicU64,
    requests: Mutex<Requests>,
    waiting: Arc<Waiting>,
    memory: Mutex<Memory>,
}

/// What the worker counts where it must not wait.
#[derive(Default)]
struct Counted {
    batches: AtomicU64,
    inputs: AtomicU64,
    tokens: AtomicU64,
    padded_tokens: AtomicU64,
}

/// What the worker writes.
#[derive(Default)]
struct Worked {
    batches: Batches,
    costs: Costs,
}

/// A batch that was computed just now.
pub(super) struct Ran<'a, I> {
    pub candidate: &'a Candidate,
    /// Inputs that waited when it was formed, its own among them.
    pub waiting: usize,
    pub predicted: Duration,
    pub took: Duration,
    /// Of each of its inputs the tokens, and the time that it had waited when the batch began.
    pub inputs: I,
}

impl Observer {
    /// Times are counted from `epoch`, which is now; who waits is counted elsewhere.
    pub(super) fn new(epoch: Instant, layout: Layout, waiting: Arc<Waiting>) -> Self {
        Self {
            epoch,
            began: SystemTime::now(),
            layout,
            counted: Counted::default(),
            looked: AtomicBool::new(false),
            worked: Mutex::default(),
            unseen: AtomicU64::new(0),
            requests: Mutex::new(Requests::new()),
            waiting,
            memory: Mutex::default(),
        }
    }

    /// The model is warm: what its batches cost, which of them may be, and what of that was `measured`.
    pub(super) fn begins(
        &self,
        costs: &CostModel,
        limits: Limits,
        max_seq_len: u32,
        measured: &[(Candidate, Duration)],
    ) {
        self.worked().costs = Costs::new(costs, limits, max_seq_len, measured);
    }

    /// So much is planned and held.
    pub(super) fn memory(&self, memory: Memory) {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = memory;
    }

    /// A batch of these lengths goes to the model.
    pub(super) fn formed(&self, lens: impl Iterator<Item = usize>) {
        let (inputs, tokens, longest) = lens.fold((0, 0, 0), |(inputs, tokens, longest), len| {
            (inputs + 1, tokens + len as u64, len.max(longest))
        });
        let Counted { batches, inputs: all, tokens: of_all, padded_tokens } = &self.counted;
        for (counter, more) in
            [(batches, 1), (all, inputs), (of_all, tokens), (padded_tokens, inputs * longest as u64)]
        {
            counter.fetch_add(more, Relaxed);
        }
    }

    /// A batch was computed. Neither waits nor allocates.
    pub(super) fn ran(&self, ran: Ran<'_, impl Iterator<Item = (u32, Duration)>>) {
        match self.worked.try_lock() {
            Ok(mut worked) => worked.batches.push(self.epoch.elapsed(), self.layout, ran),
            Err(_) => _ = self.unseen.fetch_add(1, Relaxed),
        }
    }

    /// Whether somebody has looked since what takes time was last told.
    pub(super) fn is_looked_at(&self) -> bool {
        self.looked.load(Relaxed)
    }

    /// Tells what batches cost, and what the largest ones planned. Evaluates `footprint` for a few batches at most.
    pub(super) fn tell(&self, costs: &CostModel, footprint: impl FnMut(&Candidate) -> Option<usize>) {
        if let Ok(mut worked) = self.worked.try_lock() {
            self.looked.store(false, Relaxed);
            worked.costs.follow(costs);
            worked.batches.plan(footprint);
        }
    }

    /// So many inputs have their answers from there.
    pub(super) fn recalled(&self, origin: Origin, inputs: u64) {
        self.requests().recalled(self.epoch.elapsed(), origin, inputs);
    }

    /// `inputs` of one request of this class have their answers, `total` after they came.
    pub(super) fn answered(&self, inputs: u64, class: Priority, total: Duration) {
        self.requests().answered(self.epoch.elapsed(), inputs, class, total);
    }

    /// A request had no answer in time.
    pub(super) fn missed(&self, miss: Miss) {
        self.requests().missed(self.epoch.elapsed(), miss);
    }

    /// All of it, as it is now; what was let in is predicted to be answered `until_empty` from now. What takes time is
    /// told by the worker after this, for the next look.
    pub(super) fn look(&self, until_empty: Duration) -> Observed {
        let (waiting, oldest) = self.waiting.look();
        let now = self.epoch.elapsed();
        let (of_requests, (request_seconds, latencies), classes) = {
            let mut requests = self.requests();
            (requests.totals(), requests.look(now), requests.classes(now, waiting))
        };
        let worked = self.worked();
        self.looked.store(true, Relaxed);
        Observed {
            began: self.began,
            now,
            totals: self.counted.totals(of_requests),
            waiting: waiting.iter().sum(),
            oldest_wait: oldest.map(|oldest| oldest.elapsed()),
            until_empty,
            classes,
            batches: worked.batches.last(),
            batch_seconds: worked.batches.seconds(now),
            request_seconds,
            latencies,
            costs: worked.costs.map(self.layout),
            memory: *self.memory.lock().unwrap_or_else(PoisonError::into_inner),
            unseen: self.unseen.load(Relaxed),
        }
    }

    // Nothing panics half-way under these locks, so a poisoned one still guards whole values.
    fn worked(&self) -> MutexGuard<'_, Worked> {
        self.worked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counted {
    fn totals(&self, of_requests: Counts) -> Totals {
        let Counts { answered, origins, misses } = of_requests;
        Totals {
            batches: self.batches.load(Relaxed),
            inputs: self.inputs.load(Relaxed),
            tokens: self.tokens.load(Relaxed),
            padded_tokens: self.padded_tokens.load(Relaxed),
            answered: answered.iter().sum(),
            origins,
            misses,
        }
    }
}
