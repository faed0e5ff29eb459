//! The worker's queue: the jobs that wait, and the batcher that forms batches of them.
//!
//! In: jobs of requests. Out: the jobs of the batch to run now. The batcher sees ids, lengths and times only; the queue
//! keeps the jobs themselves, and drops those that no client waits for.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, TryRecvError},
    },
    time::{Duration, Instant},
};

use turbo_sched::{Batcher, Candidate, CostModel, Decision, RequestId};

use super::{
    inbox::{Arrivals, Message},
    job::Job,
};
use crate::engine::{
    EngineError,
    admit::{
        abandoned::Abandoned,
        forecast::Forecast,
        waiting::{ByClass, add},
    },
    answers::promises::Promise,
    metrics::QueueMetrics,
};

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
    arrivals: Arrivals,
    batcher: Batcher,
    jobs: HashMap<RequestId, Job>,
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
        arrivals: Arrivals,
        batcher: Batcher,
        slots: usize,
        epoch: Instant,
        forecast: Arc<Forecast>,
        abandoned: Arc<Abandoned>,
        metrics: QueueMetrics,
    ) -> Self {
        Self {
            arrivals,
            batcher,
            jobs: HashMap::with_capacity(slots),
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
                into.extend(run.ids.iter().filter_map(|id| self.jobs.remove(id)));
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
        self.jobs.is_empty()
    }

    /// Whether no more jobs will arrive.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Receives the next message; blocks until there is one.
    pub(super) fn wait_for_more(&mut self) {
        match self.arrivals.receiver.recv() {
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
        match self.arrivals.receiver.recv_timeout(time) {
            Ok(message) => self.accept(message),
            Err(RecvTimeoutError::Timeout) => {}
            // A worker that is stopping already waits for a running batch, not for jobs.
            Err(RecvTimeoutError::Disconnected) if self.stopping => std::thread::sleep(time),
            Err(RecvTimeoutError::Disconnected) => self.ends(),
        }
    }

    /// Number of jobs that wait.
    pub(in crate::engine) fn len(&self) -> usize {
        self.jobs.len()
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
        self.arrivals.waiting.worker_has(self.jobs.values().collect(), taken_in);
    }

    fn take_in(&mut self) {
        loop {
            match self.arrivals.receiver.try_recv() {
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
            self.jobs.insert(request.id, job);
        }
    }

    /// Drops the jobs whose deadline has passed or that no client waits for, or all once they are abandoned.
    fn withdraw(&mut self) {
        let (abandoned, all, now) = (self.abandoned.is_said(), self.jobs.len(), Instant::now());
        let Self { batcher, jobs, forecast, metrics, .. } = self;
        jobs.retain(|_, job| {
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
        if jobs.len() < all {
            batcher.cancel_all(|id| !jobs.contains_key(&id));
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
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;
    use turbo_sched::Layout;

    use super::*;
    use crate::{
        cache::{ResponseCache, Scope},
        engine::{
            Priority,
            admit::{forecast::Terms, waiting::Waiting},
            answers::promises::{Asked, Promises},
            compute::{
                inbox::channel,
                job::tests::{batching, forecast, job, job_of},
            },
            observed::Observer,
        },
    };

    fn queue(arrivals: Arrivals, forecast: Arc<Forecast>) -> Queue {
        let (config, cost) = batching();
        let metrics = QueueMetrics::new(
            None,
            Arc::new(Observer::new(Instant::now(), Layout::Packed, Arc::new(Waiting::new(None)))),
        );
        let batcher = Batcher::new(config, cost);
        Queue::new(arrivals, batcher, 4, Instant::now(), forecast, Arc::default(), metrics)
    }

    #[test]
    fn who_has_an_answer_has_not_gone() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            let (inbox, arrivals) = channel(Arc::new(Waiting::new(None)));
            let forecast = forecast();
            let mut queue = queue(arrivals, Arc::clone(&forecast));
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
        let ((inbox, arrivals), forecast) = (channel(Arc::new(Waiting::new(None))), forecast());
        let mut queue = queue(arrivals, Arc::clone(&forecast));
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
}
