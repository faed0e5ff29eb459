//! Recent activity of an engine, recorded for dashboards.
//!
//! ```text
//! worker ────────────▶ batches, their sums by the second, costs ─┐
//! tokenizer threads ─▶ cache hits by the second ─────────────────┼─▶ Observed, one per read
//! request futures ───▶ latencies, answers and misses ────────────┘
//! ```
//!
//! | file | what it keeps |
//! |---|---|
//! | `batches` | the last batches, and the sums of each second's batches |
//! | `costs` | what batches cost, as a table of lengths by batch sizes |
//! | `requests` | where answers came from, how long they took, and which were not in time |
//! | `latencies` | percentiles of the last minute, and of the intervals before |
//! | `seconds` | a value for each of the last seconds |
//!
//! Recording takes no memory beyond what is allocated at start. The worker never waits: a batch that ends during a read
//! is not recorded, only counted. What the metrics count is counted here too, in the same places, so that both agree
//! until a model is loaded again: the metrics of its name go on counting. Slow work (evaluating costs, planning memory)
//! is done only after a read.

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
/// Where a cost of the map comes from.
pub use turbo_sched::Source;

use self::{
    batches::Batches,
    costs::Costs,
    requests::{Counts, Requests},
};
use super::{HeldBytes, Priority, admit::waiting::Waiting};

/// Recent activity of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// When the engine started. Another time means another engine.
    pub began: SystemTime,
    /// Time since then; all times below are counted from then, too.
    pub now: Duration,
    /// What was counted since the engine started.
    pub totals: Totals,
    /// Inputs that wait for their batch.
    pub waiting: usize,
    /// How long the oldest of them has waited; `None` while none waits.
    pub oldest_wait: Option<Duration>,
    /// Predicted time until all admitted requests are answered.
    pub until_empty: Duration,
    /// The requests of each priority class, the highest first.
    pub classes: Vec<Class>,
    /// The last batches that were computed, the oldest first.
    pub batches: Vec<Batch>,
    /// Batches of the last [`SECONDS`] seconds; seconds without any are left out.
    pub batch_seconds: Vec<(u64, BatchSecond)>,
    /// Inputs of the last [`SECONDS`] seconds; seconds without any are left out.
    pub request_seconds: Vec<(u64, RequestSecond)>,
    /// Times from a request's arrival to its answer, one for each input.
    pub latencies: Latencies,
    /// The cost model, as it was shortly after the read before this one.
    pub costs: CostMap,
    /// Memory that is planned and held.
    pub memory: Memory,
    /// Batches that `batches` and `batch_seconds` lack, because they ended during a read.
    pub unseen: u64,
}

/// Bytes of a model on its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of the largest batch's plan, which are reserved.
    pub largest_planned: usize,
    /// Bytes of the plan of a recent batch, read once a second at most; 0 before the first.
    pub last_planned: usize,
    /// Bytes that the model holds.
    pub held: HeldBytes,
}

/// Totals, each of which a metric counts, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Batches that were formed for the model.
    pub batches: u64,
    /// Inputs of those batches.
    pub inputs: u64,
    /// Tokens of those batches.
    pub tokens: u64,
    /// Tokens of those batches if each input were padded to the longest of its batch.
    pub padded_tokens: u64,
    /// Inputs that were answered.
    pub answered: u64,
    /// Where their answers came from.
    pub origins: Origins,
    /// Requests that had no answer in time.
    pub misses: Misses,
}

/// Records the activity.
pub(super) struct Observer {
    epoch: Instant,
    began: SystemTime,
    layout: Layout,
    counted: Counted,
    /// Whether there was a read since costs and plans were last reported.
    looked: AtomicBool,
    worked: Mutex<Worked>,
    /// Batches that the worker could not record without waiting.
    unseen: AtomicU64,
    requests: Mutex<Requests>,
    waiting: Arc<Waiting>,
    memory: Mutex<Memory>,
}

/// Counters that the worker increments without a lock.
#[derive(Default)]
struct Counted {
    batches: AtomicU64,
    inputs: AtomicU64,
    tokens: AtomicU64,
    padded_tokens: AtomicU64,
}

/// What the worker records under a lock, if it need not wait for the lock.
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
    /// Tokens of each of its inputs, and how long each had waited when the batch began.
    pub inputs: I,
}

impl Observer {
    /// Counts times from `epoch`, which is now, and reads the waiting inputs from `waiting`.
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

    /// Records the costs of a warm model, the limits of its batches, and the batches that were `measured`.
    pub(super) fn begins(
        &self,
        costs: &CostModel,
        limits: Limits,
        max_seq_len: u32,
        measured: &[(Candidate, Duration)],
    ) {
        self.worked().costs = Costs::new(costs, limits, max_seq_len, measured);
    }

    /// Records the memory that is planned and held.
    pub(super) fn memory(&self, memory: Memory) {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = memory;
    }

    /// Counts a batch of these lengths that goes to the model.
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

    /// Records a batch that was computed. Neither waits nor allocates.
    pub(super) fn ran(&self, ran: Ran<'_, impl Iterator<Item = (u32, Duration)>>) {
        match self.worked.try_lock() {
            Ok(mut worked) => worked.batches.push(self.epoch.elapsed(), self.layout, ran),
            Err(_) => _ = self.unseen.fetch_add(1, Relaxed),
        }
    }

    /// Whether there was a read since costs and plans were last reported.
    pub(super) fn is_looked_at(&self) -> bool {
        self.looked.load(Relaxed)
    }

    /// Records costs, and the `footprint` of the largest batches, unless a read is in progress. Calls `footprint` for a
    /// few batches at most.
    pub(super) fn tell(&self, costs: &CostModel, footprint: impl FnMut(&Candidate) -> Option<usize>) {
        if let Ok(mut worked) = self.worked.try_lock() {
            self.looked.store(false, Relaxed);
            worked.costs.follow(costs);
            worked.batches.plan(footprint);
        }
    }

    /// Counts inputs by the origin of their answers.
    pub(super) fn recalled(&self, origin: Origin, inputs: u64) {
        self.requests().recalled(self.epoch.elapsed(), origin, inputs);
    }

    /// Records that a request of `inputs` inputs was answered, `total` after it came.
    pub(super) fn answered(&self, inputs: u64, class: Priority, total: Duration) {
        self.requests().answered(self.epoch.elapsed(), inputs, class, total);
    }

    /// Counts a request that had no answer in time.
    pub(super) fn missed(&self, miss: Miss) {
        self.requests().missed(self.epoch.elapsed(), miss);
    }

    /// The activity as recorded now; admitted requests are predicted to be answered `until_empty` from now. The worker
    /// reports costs and plans after this, for the next read.
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
