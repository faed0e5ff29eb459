//! What the engine counts, for metrics and for [`observed`](super::observed). Handles are made once, so that the worker
//! never looks one up by name.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use turbo_models::Task;

use super::{
    EngineError, HeldBytes, Priority,
    admit::forecast::Place,
    answers::ticket::Answer,
    compute::job::Job,
    observed::{Memory, Miss, Observer, Origin},
};
use crate::{cache::Tier, metric_names as names};

/// The metrics of the queue.
pub(super) struct QueueMetrics {
    batch_size: Histogram,
    batch_tokens: Histogram,
    batch_fill: Histogram,
    cost_error: Histogram,
    cost_error_median: Gauge,
    dropped: Counter,
    observer: Arc<Observer>,
}

impl QueueMetrics {
    pub(super) fn new(label: Option<&str>, observer: Arc<Observer>) -> Self {
        let labels = names::labels(label, []);
        Self {
            batch_size: histogram!(names::BATCH_NEXT_SIZE, labels.iter()),
            batch_tokens: histogram!(names::BATCH_NEXT_TOKENS, labels.iter()),
            batch_fill: histogram!(names::BATCH_FILL, labels.iter()),
            cost_error: histogram!(names::BATCH_COST_ERROR, labels.iter()),
            cost_error_median: gauge!(names::BATCH_COST_ERROR_MEDIAN, labels.iter()),
            dropped: counter!(
                names::REQUEST_FAILURE,
                names::labels(label, [(names::ERR, names::failure::DROPPED)])
            ),
            observer,
        }
    }

    /// Counts a batch that goes to the model, and how full it is.
    pub(super) fn batch(&self, jobs: &[Job], fill: f64) {
        // one input alone may have more tokens than several may share
        self.batch_fill.record(fill.min(1.0));
        self.batch_size.record(jobs.len() as f64);
        self.batch_tokens.record(jobs.iter().map(Job::tokens).sum::<usize>() as f64);
        self.observer.formed(jobs.iter().map(Job::tokens));
    }

    /// Records the error of a batch's predicted cost, and the `median` error of recent ones.
    pub(super) fn predicted(&self, error: f64, median: Option<f64>) {
        self.cost_error.record(error);
        self.cost_error_median.set(median.unwrap_or(error));
    }

    /// Counts an input whose client went before its batch was computed.
    pub(super) fn dropped(&self) {
        self.dropped.increment(1);
    }
}

/// Least time between two batches whose plans are read: reading a plan takes longer than counting.
const PLAN_EVERY: Duration = Duration::from_secs(1);

/// The gauges of planned and held bytes of a model, while it is loaded.
pub(super) struct MemoryMetrics {
    largest: Bytes,
    last: Bytes,
    weights: Bytes,
    activations: Bytes,
    memory: Memory,
    planned: Option<Instant>,
    observer: Arc<Observer>,
}

impl MemoryMetrics {
    /// Gauges of a model that holds nothing yet.
    pub(super) fn new(label: Option<&str>, observer: Arc<Observer>) -> Self {
        let planned =
            |batch| gauge!(names::PLANNED_BYTES, names::labels(label, [(names::BATCH, batch)]).iter());
        let used = |of| gauge!(names::USED_BYTES, names::labels(label, [(names::OF, of)]).iter());
        Self {
            largest: Bytes(planned(names::batch::LARGEST), 0),
            last: Bytes(planned(names::batch::LAST), 0),
            weights: Bytes(used(names::of::WEIGHTS), 0),
            activations: Bytes(used(names::of::ACTIVATIONS), 0),
            memory: Memory::default(),
            planned: None,
            observer,
        }
    }

    /// Records the plan of the largest batch, and the bytes held.
    pub(super) fn reserved(&mut self, largest_planned: usize, held: HeldBytes) {
        self.tell(Memory { largest_planned, held, ..self.memory });
    }

    /// Records a batch that ran. `plan` gives its planned bytes and the bytes held, or nothing where they cannot be
    /// told; it is called once a second at most, whether it fails or not.
    pub(super) fn ran<E>(
        &mut self,
        plan: impl FnOnce() -> Result<Option<(usize, HeldBytes)>, E>,
    ) -> Result<(), E> {
        if self.planned.is_none_or(|at| at.elapsed() >= PLAN_EVERY) {
            self.planned = Some(Instant::now());
            if let Some((last_planned, held)) = plan()? {
                self.tell(Memory { last_planned, held, ..self.memory });
            }
        }
        Ok(())
    }

    fn tell(&mut self, memory: Memory) {
        self.memory = memory;
        self.largest.set(memory.largest_planned);
        self.last.set(memory.last_planned);
        self.weights.set(memory.held.weights);
        self.activations.set(memory.held.activations);
        self.observer.memory(memory);
    }
}

/// One model's share of a gauge, subtracted when dropped. Another model with the same label keeps its share.
struct Bytes(Gauge, usize);

impl Bytes {
    fn set(&mut self, bytes: usize) {
        let Self(gauge, before) = self;
        gauge.increment(bytes as f64 - *before as f64);
        *before = bytes;
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// The metrics of where the answers to inputs come from.
pub(super) struct RecallMetrics {
    input_length: Histogram,
    hits: [Counter; Tier::ALL.len()],
    shared: Counter,
    misses: Counter,
    observer: Arc<Observer>,
}

impl RecallMetrics {
    pub(super) fn new(label: Option<&str>, observer: Arc<Observer>) -> Self {
        let labels = names::labels(label, []);
        let hits = |tier| counter!(names::CACHE_HITS, names::labels(label, [(names::TIER, tier)]));
        Self {
            input_length: histogram!(names::REQUEST_INPUT_LENGTH, labels.iter()),
            hits: Tier::ALL.map(|tier| hits(tier.label())),
            shared: counter!(names::CACHE_SHARED, labels.iter()),
            misses: counter!(names::CACHE_MISSES, labels.iter()),
            observer,
        }
    }

    /// Counts an input of `tokens` tokens whose answer was cached in `tier`.
    pub(super) fn found(&self, tier: Tier, tokens: usize) {
        self.tokens(tokens);
        self.hits[tier as usize].increment(1);
        self.observer.recalled(Origin::Kept(tier), 1);
    }

    /// Counts an input of `tokens` tokens whose answer was being computed for another.
    pub(super) fn shared(&self, tokens: usize) {
        self.tokens(tokens);
        self.shared.increment(1);
        self.observer.recalled(Origin::Others, 1);
    }

    /// Counts jobs that have to be computed, though there is a cache.
    pub(super) fn missed(&self, jobs: &[Job]) {
        self.computed(jobs);
        self.misses.increment(jobs.len() as u64);
        self.observer.recalled(Origin::Nowhere, jobs.len() as u64);
    }

    /// Records the lengths of jobs that have to be computed.
    pub(super) fn computed(&self, jobs: &[Job]) {
        jobs.iter().for_each(|job| self.tokens(job.tokens()));
    }

    fn tokens(&self, tokens: usize) {
        self.input_length.record(tokens as f64);
    }
}

/// The metrics of requests and of their inputs; most have the names of the model's task.
pub(super) struct TaskMetrics {
    count: Counter,
    success: Counter,
    duration: Histogram,
    tokenization: Histogram,
    queue: Histogram,
    inference: Histogram,
    by_class: [Histogram; Priority::ALL.len()],
    refused_slots: Counter,
    refused_deadline: Counter,
    expired: Counter,
    late: Counter,
    observer: Arc<Observer>,
}

impl TaskMetrics {
    pub(super) fn new(task: Task, label: Option<&str>, observer: Arc<Observer>) -> Self {
        let labels = names::labels(label, []);
        let refused =
            |reason| counter!(names::ADMISSION_REFUSALS, names::labels(label, [(names::REASON, reason)]));
        let missed =
            |outcome| counter!(names::DEADLINE_MISSES, names::labels(label, [(names::OUTCOME, outcome)]));
        let of_class = |class: Priority| {
            let labels = names::labels(label, [(names::PRIORITY, class.name())]);
            histogram!(names::PRIORITY_DURATION, labels.iter())
        };
        let of_task = match task {
            Task::Embedding { .. } | Task::SparseEmbedding => &names::EMBED,
            Task::SequenceClassification
            | Task::TokenClassification
            | Task::QuestionAnswering
            | Task::MaskedLm => &names::PREDICT,
        };
        Self {
            count: counter!(of_task.count, labels.iter()),
            success: counter!(of_task.success, labels.iter()),
            duration: histogram!(of_task.duration, labels.iter()),
            tokenization: histogram!(of_task.tokenization_duration, labels.iter()),
            queue: histogram!(of_task.queue_duration, labels.iter()),
            inference: histogram!(of_task.inference_duration, labels.iter()),
            by_class: Priority::ALL.map(of_class),
            refused_slots: refused(names::refusal::SLOTS),
            refused_deadline: refused(names::refusal::DEADLINE),
            expired: missed(names::outcome::EXPIRED),
            late: missed(names::outcome::LATE),
            observer,
        }
    }

    /// Counts a request that failed with this error, if it was for slots or time.
    pub(super) fn failed(&self, error: &EngineError) {
        match error {
            EngineError::Overloaded { .. } => self.missed(Miss::Slots),
            EngineError::TooLate { .. } => self.missed(Miss::Deadline),
            EngineError::Expired { .. } => self.missed(Miss::Expired),
            _ => {}
        }
    }

    fn missed(&self, miss: Miss) {
        let counter = match miss {
            Miss::Slots => &self.refused_slots,
            Miss::Deadline => &self.refused_deadline,
            Miss::Expired => &self.expired,
            Miss::Late => &self.late,
        };
        counter.increment(1);
        self.observer.missed(miss);
    }

    /// Inputs that were accepted: the returned value counts them when it is told to, or when it is dropped.
    pub(super) fn accepted(&self, inputs: u64) -> Accepted<'_> {
        Accepted { count: &self.count, inputs }
    }

    /// Records the answers to all inputs of a request with this place.
    pub(super) fn answered(&self, answers: &[Answer], place: &Place) {
        let (class, ended) = (place.terms().priority, place.ended());
        let total = ended.saturating_duration_since(place.terms().started);
        if place.expires().is_some_and(|at| at < ended) {
            self.missed(Miss::Late);
        }
        self.success.increment(answers.len() as u64);
        self.observer.answered(answers.len() as u64, class, total);
        for answer in answers {
            self.duration.record(total);
            self.by_class[class as usize].record(total);
            self.tokenization.record(answer.tokenization);
            self.queue.record(answer.queue);
            self.inference.record(answer.inference);
        }
    }
}

/// The inputs of an admitted request, until they are counted.
#[must_use = "they are counted when it is dropped"]
pub(super) struct Accepted<'a> {
    count: &'a Counter,
    inputs: u64,
}

impl Accepted<'_> {
    /// Counts them now.
    pub(super) fn count(&mut self) {
        self.count.increment(std::mem::take(&mut self.inputs));
    }

    /// Leaves them uncounted: their request was rejected after all, and is retried.
    pub(super) fn forget(&mut self) {
        self.inputs = 0;
    }
}

impl Drop for Accepted<'_> {
    fn drop(&mut self) {
        self.count();
    }
}
