//! The cache lookup between tokens and queue: a known answer is not computed again.
//!
//! In: all encoded inputs of a request, on the thread that encoded the last of them. Out: inputs whose rows are in
//! memory are answered at once; those that are being computed for another request wait for that; the rest goes to the
//! worker together, if it is predicted to be done in time. Where answers are also kept behind memory, another thread
//! looks for the rest there first. So a known input takes no place in a batch, and waits for none.

use std::{sync::Arc, time::Instant};

use turbo_models::RowLens;

use super::{
    promises::{Asked, Promise, Promises},
    ticket::Ticket,
};
use crate::cache::{Key, ResponseCache, Scope, Tier, Wanted};
use crate::engine::{
    Encoded, Rows,
    admit::forecast::Forecast,
    compute::{inbox::Inbox, job::Job},
    metrics::RecallMetrics,
    observed::Observer,
};

pub(in crate::engine) struct Recall {
    inbox: Inbox,
    known: Option<Known>,
    forecast: Arc<Forecast>,
    metrics: Arc<RecallMetrics>,
}

/// The cached answers of one model, and its promised ones.
pub(in crate::engine) struct Known {
    scope: Scope,
    rows: RowLens,
    /// Whether answers may also be kept behind memory.
    behind: bool,
    promises: Arc<Promises>,
}

impl Recall {
    /// Without `known` answers, every input is computed. `label` tells the metrics of several engines apart.
    pub(in crate::engine) fn new(
        known: Option<Known>,
        inbox: Inbox,
        forecast: Arc<Forecast>,
        label: Option<&str>,
        observer: Arc<Observer>,
    ) -> Self {
        Self { inbox, known, forecast, metrics: Arc::new(RecallMetrics::new(label, observer)) }
    }

    /// Answers the inputs of `ticket` from the cache or has them computed. Fails the ticket where the answer has no
    /// room or would be too late.
    pub(in crate::engine) fn answer(&self, ticket: &Arc<Ticket>, encoded: Vec<Encoded>) {
        if let Err(no_room) = ticket.hold(&encoded) {
            return ticket.fail(no_room);
        }
        let encoded_at = Instant::now();
        let job = |(input, encoded)| {
            let ticket = Arc::clone(ticket);
            Job { ticket, input, encoded, encoded_at, promise: None }
        };
        let jobs = encoded.into_iter().enumerate().map(job);
        let Some(known) = &self.known else {
            let count = |jobs: &[Job]| self.metrics.computed(jobs);
            return compute(&self.forecast, &self.inbox, ticket, jobs.collect(), count);
        };
        let mut awaited = Vec::new();
        let missing: Vec<Job> =
            jobs.filter_map(|job| known.recall(job, &mut awaited, &self.metrics)).collect();
        let (inbox, metrics) = (self.inbox.clone(), Arc::clone(&self.metrics));
        let (forecast, of) = (Arc::clone(&self.forecast), Arc::clone(ticket));
        let compute = move |missing: Vec<Job>| match missing.is_empty() {
            true => forecast.none_of(&of.place, &awaited),
            false => compute(&forecast, &inbox, &of, missing, |jobs| metrics.missed(jobs)),
        };
        match known.behind && !missing.is_empty() {
            true => known.look_behind(missing, Arc::clone(&self.metrics), compute),
            false => compute(missing),
        }
    }
}

/// Submits `missing`, all jobs of a request that have to be computed, unless the answer would be too late; `count` is
/// called with the jobs that are admitted.
fn compute(
    forecast: &Forecast,
    inbox: &Inbox,
    ticket: &Ticket,
    missing: Vec<Job>,
    count: impl FnOnce(&[Job]),
) {
    let lens: Vec<(usize, u32)> = missing.iter().map(|job| (job.input, job.seq_len())).collect();
    if let Err(refusal) = forecast.settle(&ticket.place, &lens) {
        return ticket.refuse(refusal);
    }
    count(&missing);
    missing
        .iter()
        .filter_map(|job| job.promise.as_ref())
        .for_each(|promise| promise.is_let_in(&ticket.place));
    inbox.submit(missing);
}

impl Known {
    /// The answers that `cache` has of a model with these rows. Those behind memory are used only if the model's
    /// `fingerprint` is known. Jobs of a broken promise are sent to `inbox` if `forecast` admits them.
    pub(in crate::engine) fn new(
        cache: ResponseCache,
        fingerprint: Option<&str>,
        rows: RowLens,
        inbox: Inbox,
        forecast: Arc<Forecast>,
    ) -> Self {
        let behind = fingerprint.is_some() && cache.is_lasting();
        let scope = fingerprint.map_or_else(Scope::alone, Scope::of);
        Self { scope, rows, behind, promises: Arc::new(Promises::new(cache, inbox, forecast)) }
    }

    /// Answers `job`, or has it wait for a promised answer, which adds its length to `awaited`; else returns it with a
    /// promise of its own.
    fn recall(&self, job: Job, awaited: &mut Vec<u32>, metrics: &RecallMetrics) -> Option<Job> {
        let (tokens, seq_len) = (job.tokens(), job.seq_len());
        match self.promises.ask(self.key(&job), job) {
            Asked::Known(job, values) => {
                metrics.found(Tier::Memory, tokens);
                job.answer_known(values.to_vec());
                None
            }
            Asked::Waits => {
                awaited.push(seq_len);
                metrics.shared(tokens);
                None
            }
            Asked::Missing(job) => Some(job),
        }
    }

    /// Looks for `jobs` behind memory. The thread that calls back answers what was found, and passes the rest, which
    /// may be empty, to `compute`.
    fn look_behind(
        &self,
        jobs: Vec<Job>,
        metrics: Arc<RecallMetrics>,
        compute: impl FnOnce(Vec<Job>) + Send + 'static,
    ) {
        let wanted = |job: &Job| {
            Some(Wanted { key: job.promise.as_ref().map(Promise::key)?, len: job.values(self.rows) })
        };
        let wanted = jobs.iter().filter_map(wanted).collect();
        let answer = move |found: Vec<Option<(Tier, Arc<[f32]>)>>| {
            let mut missing = Vec::new();
            for (mut job, found) in jobs.into_iter().zip(found) {
                match found {
                    Some((tier, values)) => {
                        metrics.found(tier, job.tokens());
                        job.answer_found(&values);
                    }
                    None => missing.push(job),
                }
            }
            compute(missing);
        };
        self.promises.cache().look_behind(wanted, Box::new(answer));
    }

    /// The key over everything that the rows of `job` depend on, and nothing else: token types of 0 count as none, and
    /// the selection counts only where selected rows are wanted.
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
