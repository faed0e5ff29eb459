//! The thread that computes: it owns the runner, the queue and all mutable state of a model.
//!
//! A batch that fails, or panics, costs its own requests and nothing else; one for which nobody waits any more is given
//! up at its next layer. After a panic the runner is built anew: what
//! it leaves behind is not trusted.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use turbo_sched::Candidate;

use super::{
    BuildRunner, Capacity, EngineError, Health, RunError,
    abandoned::Abandoned,
    admission::Load,
    cost_cache::CostKeeper,
    health::HealthCell,
    queue::{Job, Next, Queue},
    runner::{Progress, Runner},
    ticket::Answer,
};

/// How long the worker listens for new requests between two looks at a batch that a device computes.
const POLL_EVERY: Duration = Duration::from_micros(50);

pub(super) struct Worker {
    /// `None` after a panic from which it could not be built anew.
    pub runner: Option<Box<dyn Runner>>,
    pub build: BuildRunner,
    pub capacity: Capacity,
    pub queue: Queue,
    pub keeper: CostKeeper,
    pub load: Arc<Load>,
    pub health: Arc<HealthCell>,
    pub abandoned: Arc<Abandoned>,
}

impl Worker {
    /// Runs batches until told to stop, and all that came before is answered.
    pub(super) fn run(mut self) {
        let mut batch = Vec::with_capacity(self.capacity.batch_size);
        loop {
            match self.queue.next(&mut batch) {
                Next::Again => self.report_load(0, Duration::ZERO),
                Next::Stop => return self.keeper.finish(self.queue.costs()),
                Next::Run(candidate) => {
                    self.report_load(batch.len(), self.queue.predict(&candidate));
                    self.serve(&mut batch, &candidate);
                    self.report_load(0, Duration::ZERO);
                }
            }
        }
    }

    fn report_load(&self, running: usize, time: Duration) {
        let (waiting, backlog) = self.queue.backlog();
        self.load.set(waiting + running, backlog.saturating_add(time));
    }

    /// Computes `batch`, answers its jobs and empties it.
    fn serve(&mut self, batch: &mut Vec<Job>, candidate: &Candidate) {
        match self.compute(batch) {
            Ok(Some(inference)) => {
                self.queue.observe(candidate, inference);
                self.keeper.learnt(self.queue.costs());
                self.load.observe(batch.len(), inference);
                batch.clear();
            }
            Ok(None) => self.queue.give_up(batch),
            Err(Failure::Refused(why)) => fail(batch, &why),
            Err(Failure::Panicked(why)) => {
                fail(batch, &format!("the batch panicked: {why}"));
                if let Err(why) = self.rebuild() {
                    tracing::error!(why, "the model could not be built anew");
                }
            }
        }
    }

    /// Runs the batch and hands out its rows; returns how long the run took, or `None` where it was given up: a batch
    /// for which nobody waits any more ends at its next layer.
    fn compute(&mut self, batch: &[Job]) -> Result<Option<Duration>, Failure> {
        if self.runner.is_none() {
            self.rebuild().map_err(Failure::Refused)?;
        }
        let Self { runner, queue, abandoned, .. } = self;
        let runner = runner.as_deref_mut().expect("it was there, or has just been built anew");
        // What the closure changes: the runner, which is built anew after a panic, and the queue's way in, which only
        // ever holds whole jobs.
        let outcome = catch_unwind(AssertUnwindSafe(|| -> Result<Option<Duration>, RunError> {
            let mut wanted = || !abandoned.is_said() && batch.iter().any(|job| !job.ticket.is_withdrawn());
            let started = Instant::now();
            runner.submit(&mut batch.iter().map(Job::sequence), &mut wanted)?;
            loop {
                match runner.poll()? {
                    Progress::Running => queue.wait(POLL_EVERY),
                    Progress::Done => break,
                    Progress::Stopped => return Ok(None),
                }
            }
            let inference = started.elapsed();
            answer(runner, batch, started, inference)?;
            Ok(Some(inference))
        }));
        outcome
            .map_err(|panic| Failure::Panicked(panic_message(&*panic)))?
            .map_err(|error| Failure::Refused(chain(&*error)))
    }

    /// Replaces the runner. The old one goes first, so that the memory suffices.
    fn rebuild(&mut self) -> Result<(), String> {
        self.health.set(Health::Starting);
        let old = self.runner.take();
        let (build, capacity) = (&mut self.build, self.capacity);
        let built = catch_unwind(AssertUnwindSafe(|| {
            drop(old);
            build(capacity)
        }));
        match built {
            Ok(Ok(runner)) => {
                self.runner = Some(runner);
                self.health.set(Health::Ready);
                return Ok(());
            }
            Ok(Err(error)) => Err(chain(&*error)),
            Err(panic) => Err(panic_message(&*panic)),
        }
        .inspect_err(|_| self.health.set(Health::Failing))
    }
}

/// Why a batch has no answers.
enum Failure {
    /// The runner said so, and can be used on.
    Refused(String),
    /// What the runner is now nobody knows.
    Panicked(String),
}

fn fail(batch: &mut Vec<Job>, why: &str) {
    tracing::error!(why, batch_size = batch.len(), "a batch failed");
    batch.drain(..).for_each(|job| job.ticket.fail(EngineError::Backend(why.to_owned())));
}

/// Hands the rows of the batch that is done to its requests.
fn answer(
    runner: &mut dyn Runner,
    batch: &[Job],
    started: Instant,
    inference: Duration,
) -> Result<(), RunError> {
    for (sequence, job) in batch.iter().enumerate() {
        let mut values = Vec::new();
        runner.read(sequence, job.rows(), &mut values)?;
        let tokenization = job.encoded_at.saturating_duration_since(job.ticket.started);
        let queue = started.saturating_duration_since(job.encoded_at);
        job.ticket
            .complete(job.input, Answer { values, tokens: job.tokens(), tokenization, queue, inference });
    }
    Ok(())
}

/// An error and its causes, as one line.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// What a panic said.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}
