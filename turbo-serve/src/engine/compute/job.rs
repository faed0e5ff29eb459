//! A job: one input of a request, on its way to the runner.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use turbo_sched::RequestId;

use crate::engine::{
    Encoded, OutputKind, Priority, RowLens,
    answers::{
        promises::Promise,
        ticket::{Answer, Ticket},
    },
    runner::{Rows, Sequence},
};

/// One input on its way to the runner.
pub(in crate::engine) struct Job {
    pub ticket: Arc<Ticket>,
    /// Which input of the ticket.
    pub input: usize,
    pub encoded: Encoded,
    pub encoded_at: Instant,
    /// The promise that it carries, if other requests may wait for its answer.
    pub promise: Option<Promise>,
}

impl Job {
    pub(in crate::engine) fn sequence(&self) -> Sequence<'_> {
        let Encoded { input_ids, token_type_ids, selected } = &self.encoded;
        Sequence { input_ids, token_type_ids, selected, rows: Some(self.rows()) }
    }

    /// Its id in the batcher.
    pub(in crate::engine) fn id(&self) -> RequestId {
        self.ticket.place.id(self.input)
    }

    /// The rows that answer it.
    pub(in crate::engine) fn rows(&self) -> Rows {
        match self.ticket.output {
            OutputKind::Pooled { .. } => Rows::Pooled,
            OutputKind::Tokens => Rows::Tokens,
            OutputKind::Selected => Rows::Selected,
        }
    }

    pub(in crate::engine) fn tokens(&self) -> usize {
        self.encoded.input_ids.len()
    }

    /// The number of values that answer it, for a model whose rows have these lengths.
    pub(in crate::engine) fn values(&self, lens: RowLens) -> usize {
        let (rows, len) = match self.rows() {
            Rows::Pooled => (1, lens.pooled),
            Rows::Tokens => (self.tokens(), lens.tokens),
            Rows::Selected => (self.encoded.selected.len(), lens.selected),
        };
        rows * len.unwrap_or(0)
    }

    pub(in crate::engine) fn priority(&self) -> Priority {
        self.ticket.place.terms().priority
    }

    /// Its tokens, in the scheduler's type.
    pub(in crate::engine) fn seq_len(&self) -> u32 {
        u32::try_from(self.tokens()).unwrap_or(u32::MAX)
    }

    /// Fails its request, and others that wait for its answer, where their deadlines have passed at `now`.
    pub(in crate::engine) fn expire(&self, now: Instant) {
        let place = &self.ticket.place;
        if place.expires().is_some_and(|at| at <= now) {
            self.ticket.fail(place.terms().expired());
        }
        if let Some(promise) = &self.promise {
            promise.expire(now);
        }
    }

    /// Whether no client waits for it any more.
    pub(in crate::engine) fn is_withdrawn(&self) -> bool {
        self.ticket.is_withdrawn() && !self.promise.as_ref().is_some_and(Promise::is_awaited)
    }

    /// Answers all requests that wait for it with the rows `values`, whose batch began at `started` and took
    /// `inference`.
    pub(in crate::engine) fn answer(&mut self, values: Vec<f32>, started: Instant, inference: Duration) {
        if let Some(promise) = self.promise.take() {
            promise.keep(&values, started, inference);
        }
        // A job that came while the batch was running has waited only for the rest of it.
        let done = started + inference;
        let queue = started.saturating_duration_since(self.encoded_at);
        self.complete(values, queue, inference.min(done.saturating_duration_since(self.encoded_at)));
    }

    /// Answers all requests that wait for it with `values`, rows that were found in a cache.
    pub(in crate::engine) fn answer_found(&mut self, values: &[f32]) {
        if let Some(promise) = self.promise.take() {
            promise.keep_found(values);
        }
        self.answer_known(values.to_vec());
    }

    /// Answers its own request with rows that were not computed for it.
    pub(in crate::engine) fn answer_known(&self, values: Vec<f32>) {
        self.complete(values, Duration::ZERO, Duration::ZERO);
    }

    fn complete(&self, values: Vec<f32>, queue: Duration, inference: Duration) {
        let tokenization = self.encoded_at.saturating_duration_since(self.ticket.started());
        self.ticket
            .complete(self.input, Answer { values, tokens: self.tokens(), tokenization, queue, inference });
    }
}

#[cfg(test)]
pub(in crate::engine) mod tests {
    use tokio::sync::Semaphore;
    use turbo_sched::{BatchTotal, BatcherConfig, CostModel, Limits, PackedCost};

    use super::*;
    use crate::engine::{
        DeviceTurns,
        admit::forecast::{Forecast, Inside, Terms},
        answers::ticket,
    };

    /// A forecast of batches of one, which take a second each.
    pub(in crate::engine) fn forecast() -> Arc<Forecast> {
        let (config, cost) = batching();
        Arc::new(Forecast::new(Instant::now(), &config, cost, DeviceTurns::default().join()))
    }

    pub(in crate::engine) fn batching() -> (BatcherConfig, CostModel) {
        let cost = PackedCost::fit([([1].into_iter().collect(), BatchTotal(1.0))]).unwrap();
        let limits = Limits::batch_size(std::num::NonZeroUsize::MIN);
        (BatcherConfig::with_limits(limits), CostModel::Packed(Box::new(cost)))
    }

    /// A job of a request of one input, and where its client waits.
    pub(in crate::engine) fn job(forecast: &Arc<Forecast>) -> (Job, ticket::Receiver<ticket::Answer>) {
        let (job, _, client) = job_of(forecast, Terms::new(Instant::now(), None, None, Priority::Normal));
        (job, client)
    }

    /// The same on these terms, with its entry in the forecast.
    pub(in crate::engine) fn job_of(
        forecast: &Arc<Forecast>,
        terms: Terms,
    ) -> (Job, Inside, ticket::Receiver<ticket::Answer>) {
        let slots = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let inside = forecast.enter(terms, 1, true).unwrap();
        let (ticket, client) = Ticket::new(Arc::clone(&inside.place), 1, OutputKind::RAW, slots);
        let encoded = Encoded { input_ids: vec![1], ..Encoded::default() };
        let ticket = Arc::new(ticket);
        (Job { ticket, input: 0, encoded, encoded_at: terms.started, promise: None }, inside, client)
    }
}
