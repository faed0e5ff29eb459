//! From tokens to the answer, or to the queue: what is known is not computed again.
//!
//! In: all inputs of a request, as the model reads them, on the thread that made the last of them. Out: those whose rows
//! are known are answered here and now, those that are being computed for somebody else wait for that, and the rest goes
//! to the worker together. So a known input takes no place in a batch, and waits for none.

use std::{sync::Arc, time::Instant};

use super::{
    Encoded, Rows,
    metrics::RecallMetrics,
    promises::{Asked, Promises},
    queue::{Inbox, Job},
    ticket::Ticket,
};
use crate::cache::{Key, ResponseCache, Scope};

pub(super) struct Recall {
    inbox: Inbox,
    known: Option<Known>,
    metrics: RecallMetrics,
}

/// The answers of one model, those there are and those to come.
struct Known {
    scope: Scope,
    promises: Arc<Promises>,
}

impl Recall {
    /// Without a `cache` everything is computed. `label` tells the metrics of several engines apart.
    pub(super) fn new(cache: Option<ResponseCache>, inbox: Inbox, label: Option<&str>) -> Self {
        let known = cache.map(|cache| Known {
            scope: Scope::alone(),
            promises: Arc::new(Promises::new(cache, inbox.clone())),
        });
        Self { inbox, known, metrics: RecallMetrics::new(label) }
    }

    /// Sees to it that the inputs of `ticket` are answered.
    pub(super) fn answer(&self, ticket: &Arc<Ticket>, encoded: Vec<Encoded>) {
        let encoded_at = Instant::now();
        let job = |(input, encoded)| {
            let job = Job { ticket: Arc::clone(ticket), input, encoded, encoded_at, promise: None };
            self.metrics.tokens(job.tokens());
            job
        };
        let jobs = encoded.into_iter().enumerate().map(job);
        let missing: Vec<Job> = match &self.known {
            Some(known) => jobs.filter_map(|job| known.recall(job, &self.metrics)).collect(),
            None => jobs.collect(),
        };
        if !missing.is_empty() {
            self.inbox.submit(missing);
        }
    }
}

impl Known {
    /// Answers `job`, or has it wait for its answer, or gives it back to be computed.
    fn recall(&self, job: Job, metrics: &RecallMetrics) -> Option<Job> {
        match self.promises.ask(self.key(&job), job) {
            Asked::Known(job, values) => {
                metrics.hit();
                job.answer_known(values.to_vec());
                None
            }
            Asked::Waits => {
                metrics.shared();
                None
            }
            Asked::Missing(job) => {
                metrics.missed();
                Some(job)
            }
        }
    }

    /// The key of all that the rows of `job` depend on, and of nothing else: no token types are token types of 0, and what
    /// is selected matters where those rows are wanted.
    fn key(&self, job: &Job) -> Key {
        let Encoded { input_ids, token_type_ids, selected } = &job.encoded;
        let types: &[u32] = if token_type_ids.iter().all(|&id| id == 0) { &[] } else { token_type_ids };
        let (rows, selected): (_, &[u32]) = match job.rows() {
            Rows::Pooled => ("pooled", &[]),
            Rows::Tokens => ("tokens", &[]),
            Rows::Selected => ("selected", selected),
        };
        self.scope.key(rows, &[input_ids, types, selected])
    }
}
