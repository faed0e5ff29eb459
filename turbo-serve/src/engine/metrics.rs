//! What the engine counts, for metrics and for [`observed`](super::observed) alike. Handles are made once: on the worker's
//! path there is no lookup by name.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use turbo_models::Task;

use super::{
    EngineError,
    forecast::Terms,
    observed::{Observer, Origin},
    queue::Job,
    ticket::Answer,
};
use crate::{cache::Tier, metric_names as names};

/// What the queue counts.
pub(super) struct QueueMetrics {
    queue_size: Gauge,
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
            queue_size: gauge!(names::QUEUE_SIZE, labels.iter()),
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

    /// So many inputs wait.
    pub(super) fn waiting(&self, inputs: usize) {
        self.queue_size.set(inputs as f64);
        self.observer.waiting(inputs);
    }

    /// This batch goes to the model; it is so full.
    pub(super) fn batch(&self, jobs: &[Job], fill: f64) {
        self.batch_fill.record(fill);
        self.batch_size.record(jobs.len() as f64);
        self.batch_tokens.record(jobs.iter().map(Job::tokens).sum::<usize>() as f64);
        self.observer.formed(jobs.iter().map(Job::tokens));
    }

    /// A batch's predicted cost was so far from what it took; `median` of the recent ones.
    pub(super) fn predicted(&self, error: f64, median: Option<f64>) {
        self.cost_error.record(error);
        self.cost_error_median.set(median.unwrap_or(error));
    }

    /// The client of an input has gone before its batch was computed.
    pub(super) fn dropped(&self) {
        self.dropped.increment(1);
    }
}

/// Where the answers to inputs come from.
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

    /// An input has so many tokens.
    pub(super) fn tokens(&self, tokens: usize) {
        self.input_length.record(tokens as f64);
    }

    /// An answer was kept there.
    pub(super) fn found(&self, tier: Tier) {
        self.hits[tier as usize].increment(1);
        self.observer.recalled(Origin::Kept(tier), 1);
    }

    /// An answer was being computed.
    pub(super) fn shared(&self) {
        self.shared.increment(1);
        self.observer.recalled(Origin::Others, 1);
    }

    /// So many answers have to be computed.
    pub(super) fn missed(&self, inputs: usize) {
        self.misses.increment(inputs as u64);
        self.observer.recalled(Origin::Nowhere, inputs as u64);
    }
}

/// What is counted per input of an accepted request, under the names of the model's task.
pub(super) struct TaskMetrics {
    count: Counter,
    success: Counter,
    duration: Histogram,
    tokenization: Histogram,
    queue: Histogram,
    inference: Histogram,
    observer: Arc<Observer>,
    refused_slots: Counter,
    refused_deadline: Counter,
    expired: Counter,
    late: Counter,
}

impl TaskMetrics {
    pub(super) fn new(task: Task, label: Option<&str>, observer: Arc<Observer>) -> Self {
        let labels = names::labels(label, []);
        let refused =
            |reason| counter!(names::ADMISSION_REFUSALS, names::labels(label, [(names::REASON, reason)]));
        let missed =
            |outcome| counter!(names::DEADLINE_MISSES, names::labels(label, [(names::OUTCOME, outcome)]));
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
            refused_slots: refused(names::refusal::SLOTS),
            refused_deadline: refused(names::refusal::DEADLINE),
            expired: missed(names::outcome::EXPIRED),
            late: missed(names::outcome::LATE),
            observer,
        }
    }

    /// A request on these terms has its answer now, or this error.
    pub(super) fn ended(&self, error: Option<&EngineError>, terms: &Terms) {
        match error {
            Some(EngineError::Overloaded { .. }) => self.refused_slots.increment(1),
            Some(EngineError::TooLate { .. }) => self.refused_deadline.increment(1),
            Some(EngineError::Expired { .. }) => self.expired.increment(1),
            None if terms.deadline().is_some_and(|at| at < Instant::now()) => self.late.increment(1),
            _ => {}
        }
    }

    /// So many inputs came in.
    pub(super) fn accepted(&self, inputs: u64) {
        self.count.increment(inputs);
    }

    /// The inputs of a request that took `total` have their answers.
    pub(super) fn answered(&self, answers: &[Answer], total: Duration) {
        self.success.increment(answers.len() as u64);
        self.observer.answered(answers.len() as u64, total);
        for answer in answers {
            self.duration.record(total);
            self.tokenization.record(answer.tokenization);
            self.queue.record(answer.queue);
            self.inference.record(answer.inference);
        }
    }
}
