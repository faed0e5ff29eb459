//! The worker's queue: one channel in, the batcher behind it.
//!
//! In: jobs of requests. Out: the jobs of the batch to run now. The batcher sees ids, lengths and times only; the queue
//! keeps the jobs themselves, and drops those that no client waits for.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel},
    },
    time::{Duration, Instant},
};

use turbo_sched::{Batcher, Candidate, CostModel, Decision, RequestId};

use crate::engine::{
    Encoded, EngineError, OutputKind, Priority, RowLens,
    admit::{
        abandoned::Abandoned,
        forecast::Forecast,
        waiting::{ByClass, Waiting, add},
    },
    answers::{
        promises::Promise,
        ticket::{Answer, Ticket},
    },
    metrics::QueueMetrics,
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

enum Message {
    Submit(Vec<Job>, ByClass),
    /// Stop when all earlier jobs are answered.
    Stop,
    /// Check whether the waiting jobs are still to be computed.
    Wake,
    /// New requests are no longer accepted: do not wait for them.
    Hurry,
}

/// The sending half. Unbounded as a channel; the slots of admitted inputs bound it.
#[derive(Clone)]
pub(in crate::engine) struct Inbox {
    sender: Sender<Message>,
    waiting: Arc<Waiting>,
}

impl Inbox {
    /// Sends the jobs of one request together, so that they can share a batch. They fail if the worker has ended.
    pub(in crate::engine) fn submit(&self, jobs: Vec<Job>) {
        let inputs = self.waiting.sends(&jobs);
        if let Err(refused) = self.sender.send(Message::Submit(jobs, inputs))
            && let Message::Submit(jobs, inputs) = refused.0
        {
            self.waiting.takes_back(inputs);
            let error = EngineError::Backend("the worker has ended".into());
            jobs.iter().for_each(|job| job.ticket.fail(error.clone()));
        }
    }

    /// Tells the worker to stop when all earlier jobs are answered.
    pub(in crate::engine) fn stop(&self) {
        // Fails only if the worker has ended already.
        drop(self.sender.send(Message::Stop));
    }

    /// Tells the worker not to hold waiting jobs back for new requests.
    pub(in crate::engine) fn hurry(&self) {
        // Fails only if the worker has ended already.
        drop(self.sender.send(Message::Hurry));
    }

    /// Wakes the worker, if it sleeps, to check the waiting jobs.
    pub(in crate::engine) fn wake(&self) {
        // Fails only if the worker has ended already.
        drop(self.sender.send(Message::Wake));
    }
}

/// The channel to a worker; `waiting` counts the inputs in it.
pub(in crate::engine) fn inbox(waiting: Arc<Waiting>) -> (Inbox, Outbox) {
    let (sender, receiver) = channel();
    (Inbox { sender, waiting: Arc::clone(&waiting) }, Outbox { receiver, waiting })
}

/// The receiving half.
pub(in crate::engine) struct Outbox {
    receiver: Receiver<Message>,
    waiting: Arc<Waiting>,
}

/// What the worker does next.
pub(in crate::engine) enum Next {
    /// Run the batch that was written to `into`.
    Run(Candidate),
    /// Poll again at this time since the epoch, or when a job arrives.
    WaitUntil(Duration),
    /// No job waits.
    Nothing,
}

/// The waiting jobs.
pub(in crate::engine) struct Queue {
    outbox: Outbox,
    batcher: Batcher,
    waiting: HashMap<RequestId, Job>,
    /// Inputs received since the waiting jobs were last reported.
    taken_in: ByClass,
    forecast: Arc<Forecast>,
    epoch: Instant,
    stopping: bool,
    /// The flag that cancels all waiting jobs.
    abandoned: Arc<Abandoned>,
    metrics: QueueMetrics,
}

impl Queue {
    /// The batcher's times are since `epoch`. There is capacity for `slots` waiting jobs; all are dropped once `abandoned`.
    pub(in crate::engine) fn new(
        outbox: Outbox,
        batcher: Batcher,
        slots: usize,
        epoch: Instant,
        forecast: Arc<Forecast>,
        abandoned: Arc<Abandoned>,
        metrics: QueueMetrics,
    ) -> Self {
        Self {
            outbox,
            batcher,
            waiting: HashMap::with_capacity(slots),
            taken_in: ByClass::default(),
            forecast,
            epoch,
            stopping: false,
            abandoned,
            metrics,
        }
    }

    /// Decides what a runner that can take a batch does now; the batch's jobs are appended to `into`. Does not block.
    pub(in crate::engine) fn next(&mut self, into: &mut Vec<Job>) -> Next {
        self.take_in();
        self.withdraw();
        self.tell();
        match self.batcher.poll(self.epoch.elapsed()) {
            Decision::Run(run) => {
                let (candidate, fill) = (run.candidate, run.fill);
                into.extend(run.ids.iter().filter_map(|id| self.waiting.remove(id)));
                into.iter().filter_map(|job| job.promise.as_ref()).for_each(Promise::begins);
                self.forecast.began(into.iter().map(|job| (&*job.ticket.place, job.input)));
                self.tell();
                self.metrics.batch(into, fill);
                Next::Run(candidate)
            }
            Decision::WaitUntil(at) => Next::WaitUntil(at),
            Decision::Idle => Next::Nothing,
        }
    }

    /// Whether no job waits, after receiving what has arrived.
    pub(in crate::engine) fn is_empty(&mut self) -> bool {
        self.take_in();
        self.waiting.is_empty()
    }

    /// Whether no more jobs will arrive.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Receives the next message; blocks until there is one.
    pub(super) fn wait_for_more(&mut self) {
        match self.outbox.receiver.recv() {
            Ok(message) => self.accept(message),
            Err(_) => self.ends(),
        }
    }

    /// No more jobs will arrive, so the waiting ones are not held back for others.
    fn ends(&mut self) {
        self.stopping = true;
        self.batcher.hurry();
    }

    /// Receives the next message; waits for it until `at` since the epoch at most.
    pub(super) fn wait_until(&mut self, at: Duration) {
        self.wait(at.saturating_sub(self.epoch.elapsed()));
    }

    /// Receives the next message; waits for it for `time` at most.
    pub(in crate::engine) fn wait(&mut self, time: Duration) {
        match self.outbox.receiver.recv_timeout(time) {
            Ok(message) => self.accept(message),
            Err(RecvTimeoutError::Timeout) => {}
            // A worker that is stopping already waits for a running batch, not for jobs.
            Err(RecvTimeoutError::Disconnected) if self.stopping => std::thread::sleep(time),
            Err(RecvTimeoutError::Disconnected) => self.ends(),
        }
    }

    /// Number of jobs that wait.
    pub(in crate::engine) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Corrects the cost model by the `time` that a batch took.
    pub(in crate::engine) fn observe(&mut self, candidate: &Candidate, time: Duration) {
        tracing::debug!(
            batch_size = candidate.batch_size,
            total_tokens = candidate.total_tokens,
            predicted_us = self.predict(candidate).as_micros() as u64,
            took_us = time.as_micros() as u64,
            "a batch ran"
        );
        match self.batcher.observe(candidate, time) {
            Ok(error) => self.metrics.predicted(error, self.batcher.drift().median()),
            Err(error) => tracing::warn!(%error, "the time of a batch could not correct the cost model"),
        }
    }

    /// The current cost model.
    pub(in crate::engine) fn costs(&self) -> &CostModel {
        self.batcher.cost_model()
    }

    /// The predicted time of a batch.
    pub(in crate::engine) fn predict(&self, candidate: &Candidate) -> Duration {
        self.costs().cost(candidate).as_duration()
    }

    /// Reports the waiting jobs.
    fn tell(&mut self) {
        let taken_in = std::mem::take(&mut self.taken_in);
        self.outbox.waiting.worker_has(self.waiting.values().collect(), taken_in);
    }

    fn take_in(&mut self) {
        loop {
            match self.outbox.receiver.try_recv() {
                Ok(message) => self.accept(message),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => return self.ends(),
            }
        }
    }

    fn accept(&mut self, message: Message) {
        let jobs = match message {
            Message::Submit(jobs, inputs) => {
                add(&mut self.taken_in, inputs);
                jobs
            }
            Message::Stop => return self.ends(),
            Message::Wake => return,
            Message::Hurry => return self.batcher.hurry(),
        };
        for job in jobs {
            let request = job.ticket.place.request(job.input, job.seq_len(), self.epoch);
            self.batcher.push(request);
            self.waiting.insert(request.id, job);
        }
    }

    /// Drops the jobs whose deadline has passed or that no client waits for, or all once they are abandoned.
    fn withdraw(&mut self) {
        let (abandoned, all, now) = (self.abandoned.is_said(), self.waiting.len(), Instant::now());
        let Self { batcher, waiting, forecast, metrics, .. } = self;
        waiting.retain(|_, job| {
            job.expire(now);
            let (stays, place) = (!abandoned && !job.is_withdrawn(), &job.ticket.place);
            if !stays {
                give_up(job, abandoned, metrics);
                forecast.goes(place, job.input);
            } else if job.ticket.is_withdrawn() {
                forecast.stays(place, job.input, job.seq_len());
            }
            stays
        });
        if waiting.len() < all {
            batcher.cancel_all(|id| !waiting.contains_key(&id));
        }
    }

    /// Drops the jobs of a cancelled batch.
    pub(super) fn give_up(&self, batch: Vec<Job>) {
        let (abandoned, now) = (self.abandoned.is_said(), Instant::now());
        for job in batch {
            job.expire(now);
            give_up(&job, abandoned, &self.metrics);
        }
    }
}

/// Ends a job that will not be computed: fails it when all are abandoned, else counts its client as gone. A client that
/// was answered has not gone: another input of its request failed, or its deadline passed.
fn give_up(job: &Job, abandoned: bool, metrics: &QueueMetrics) {
    if abandoned {
        job.ticket.fail(EngineError::Stopping);
    } else if !job.ticket.is_answered() {
        metrics.dropped();
    }
}

#[cfg(test)]
pub(in crate::engine) mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;
    use tokio::sync::Semaphore;
    use turbo_sched::{BatchTotal, BatcherConfig, Layout, Limits, PackedCost};

    use super::*;
    use crate::{
        cache::{ResponseCache, Scope},
        engine::{
            DeviceTurns,
            admit::forecast::{Inside, Terms},
            answers::{
                promises::{Asked, Promises},
                ticket,
            },
            observed::Observer,
        },
    };

    /// A forecast of batches of one, which take a second each.
    pub(in crate::engine) fn forecast() -> Arc<Forecast> {
        let (config, cost) = batching();
        Arc::new(Forecast::new(Instant::now(), &config, cost, DeviceTurns::default().join()))
    }

    fn batching() -> (BatcherConfig, CostModel) {
        let cost = PackedCost::fit([([1].into_iter().collect(), BatchTotal(1.0))]).unwrap();
        let limits = Limits::batch_size(std::num::NonZeroUsize::MIN);
        (BatcherConfig::with_limits(limits), CostModel::Packed(Box::new(cost)))
    }

    /// A job of a request of one input, and where its client waits.
    fn job(forecast: &Arc<Forecast>) -> (Job, ticket::Receiver<ticket::Answer>) {
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

    fn queue(outbox: Outbox, forecast: Arc<Forecast>) -> Queue {
        let (config, cost) = batching();
        let metrics = QueueMetrics::new(
            None,
            Arc::new(Observer::new(Instant::now(), Layout::Packed, Arc::new(Waiting::new(None)))),
        );
        let batcher = Batcher::new(config, cost);
        Queue::new(outbox, batcher, 4, Instant::now(), forecast, Arc::default(), metrics)
    }

    #[test]
    fn who_has_an_answer_has_not_gone() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            let (inbox, outbox) = inbox(Arc::new(Waiting::new(None)));
            let forecast = forecast();
            let mut queue = queue(outbox, Arc::clone(&forecast));
            let ((failed, _client), (left, client)) = (job(&forecast), job(&forecast));
            failed.ticket.fail(EngineError::Backend("another input".into()));
            drop(client);
            inbox.submit(vec![failed]);
            inbox.submit(vec![left]);
            inbox.stop();
            while !queue.is_empty() || !queue.is_stopping() {
                queue.next(&mut Vec::new());
            }
        });
        let counted = recorder.handle().render();
        let dropped: Vec<_> = counted.lines().filter(|line| line.contains("dropped")).collect();
        assert!(matches!(&dropped[..], [line] if line.ends_with(" 1")), "{counted}");
    }

    #[test]
    fn what_others_wait_for_is_counted_though_its_client_has_gone() {
        let ((inbox, outbox), forecast) = (inbox(Arc::new(Waiting::new(None))), forecast());
        let mut queue = queue(outbox, Arc::clone(&forecast));
        let cache = ResponseCache::in_memory(1 << 20).unwrap();
        let promises = Arc::new(Promises::new(cache, inbox.clone(), Arc::clone(&forecast)));
        let come = || job_of(&forecast, Terms::new(Instant::now(), None, None, Priority::Normal));
        let ((before, _before, _client), (first, gone, its_client), (other, stays, other_client)) =
            (come(), come(), come());
        let key = Scope::alone().key("pooled", &[&[1]]);
        let Asked::Missing(first) = promises.ask(key, first) else { panic!("nobody promised it") };
        assert!(matches!(promises.ask(key, other), Asked::Waits));
        forecast.none_of(&stays.place, &[1]);
        inbox.submit(vec![before, first]);
        drop((gone, its_client));

        let mut batch = Vec::new();
        assert!(matches!(queue.next(&mut batch), Next::Run(_)));
        assert!(forecast.retry_after() > Duration::from_millis(900), "one waits for a batch of a second");
        drop(other_client);
        assert!(matches!(queue.next(&mut batch), Next::Nothing));
        assert!(forecast.retry_after() < Duration::from_millis(900), "nobody does");
    }

    #[test]
    fn who_comes_after_the_worker_has_ended_is_told() {
        let (inbox, outbox) = inbox(Arc::new(Waiting::new(None)));
        drop(outbox);
        let forecast = forecast();
        let ((one, client), (other, another)) = (job(&forecast), job(&forecast));
        inbox.submit(vec![one, other]);
        for client in [client, another] {
            assert!(matches!(client.blocking_recv().unwrap(), Err(EngineError::Backend(_))));
        }
    }
}
