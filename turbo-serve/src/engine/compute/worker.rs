//! The thread that computes: it owns the runner, the batcher and the waiting jobs. State that it shares with other
//! threads is locked only briefly.
//!
//! Where the runner's device computes asynchronously, the next batch is formed and submitted while one runs, shortly
//! before that one is predicted to be done. So the device does not wait, and the next batch includes the jobs that have
//! arrived until then.
//!
//! Engines that share a device take turns, batch by batch.
//!
//! A failed batch fails only its own requests. A batch that no client waits for is cancelled at its next layer. After a
//! panic the runner's state is not trusted: its batches fail, and it is rebuilt. A failed rebuild is retried when a
//! request arrives, and after a pause without one. Once the device is lost, all batches fail at once.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use turbo_sched::Candidate;

use super::{
    job::Job,
    lead::Lead,
    queue::{Next, Queue},
};
use crate::engine::{
    BuildRunner, Capacity, EngineError, Health, RowLens, RunError, Seat, Turn,
    admit::{abandoned::Abandoned, forecast::Forecast},
    causes::{causes, panic_message, with_causes},
    health::HealthCell,
    metrics::MemoryMetrics,
    observed::{Observer, Ran},
    runner::{DeviceLost, Progress, Runner},
    start::{cost_cache::CostKeeper, reserved::planning},
};

/// How long the worker waits for new requests between two polls of a running batch.
const POLL_EVERY: Duration = Duration::from_micros(50);

/// The first and the longest pause before a failed rebuild is retried without a request. The pause doubles each time,
/// since an attempt keeps other models from planning their memory; it is never shorter than the attempt took.
const PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(300)];

pub(in crate::engine) struct Worker {
    /// `None` while it could not be rebuilt after a panic.
    pub runner: Option<Box<dyn Runner>>,
    /// When the rebuild is retried without a request.
    pub again: Option<Instant>,
    /// The last pause between two rebuilds.
    pub pause: Duration,
    /// Why the device is lost, if it is.
    pub lost: Option<String>,
    pub build: BuildRunner,
    /// How long the last build took, the reservation for the largest batch included.
    pub building: Duration,
    pub capacity: Capacity,
    pub rows: RowLens,
    pub queue: Queue,
    pub keeper: CostKeeper,
    pub forecast: Arc<Forecast>,
    pub health: Arc<HealthCell>,
    pub abandoned: Arc<Abandoned>,
    pub observer: Arc<Observer>,
    /// The batches submitted to the runner, the oldest first.
    pub flights: VecDeque<Flight>,
    /// Its place among the engines that share the device.
    pub seat: Seat,
    pub lead: Lead,
    pub memory: MemoryMetrics,
    /// Whether planning has panicked: then no further plan is read, since each panic costs a rebuild.
    pub plans_panic: bool,
}

/// A batch that was submitted to the runner.
pub(in crate::engine) struct Flight {
    jobs: Vec<Job>,
    candidate: Candidate,
    /// Inputs that waited when it was formed, its own among them.
    waiting: usize,
    /// When the runner began it: when it was submitted, or when the batch before it was done.
    started: Instant,
    predicted: Duration,
    /// Its turn on the device; `None` once the batch is done.
    turn: Option<Turn>,
}

impl Flight {
    /// How long it has been running.
    fn took(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }
}

impl Worker {
    /// Runs batches until told to stop and all earlier jobs are answered.
    pub(in crate::engine) fn run(mut self) {
        loop {
            self.tell_observer();
            let empty = self.queue.is_empty();
            if empty && self.flights.is_empty() {
                if self.queue.is_stopping() {
                    return self.keeper.finish(self.queue.costs());
                }
                self.wait_for_more();
            } else if !empty && self.runner.is_none() && self.lost.is_none() {
                self.try_again();
            } else if !empty && let Some(turn) = self.turn() {
                let (began, mut jobs) = (Instant::now(), Vec::new());
                match self.queue.next(&mut jobs) {
                    Next::Run(candidate) => self.submit(jobs, candidate, turn, began),
                    Next::WaitUntil(at) if self.flights.is_empty() => {
                        drop(turn); // others may have the device meanwhile
                        self.queue.wait_until(at);
                    }
                    Next::WaitUntil(_) | Next::Nothing => {}
                }
            }
            if !self.flights.is_empty() {
                self.look();
            }
            self.report();
        }
    }

    /// Waits until a message arrives, or retries a failed rebuild once its pause is over: a load balancer sends no
    /// requests to a failing server, so none would trigger the rebuild.
    fn wait_for_more(&mut self) {
        let Some(again) = self.again.filter(|_| self.lost.is_none()) else {
            return self.queue.wait_for_more();
        };
        // Other messages wake the worker, too: so the pause ends at a fixed time and does not start over.
        let pause = again.saturating_duration_since(Instant::now());
        if !pause.is_zero() {
            return self.queue.wait(pause);
        }
        if let Err(error) = self.rebuild() {
            tracing::error!(why = with_causes(&*error), "the model still could not be rebuilt");
        }
    }

    /// Runs the next batch after a failed rebuild. It retries the rebuild first; as that takes long, it takes its turn
    /// on the device afterwards.
    fn try_again(&mut self) {
        let mut jobs = Vec::new();
        match self.queue.next(&mut jobs) {
            Next::Run(candidate) => match self.rebuild() {
                Ok(()) => {
                    let turn = self.seat.take();
                    self.submit(jobs, candidate, turn, Instant::now());
                }
                Err(error) => self.refused(jobs, &error),
            },
            Next::WaitUntil(at) => self.queue.wait_until(at),
            Next::Nothing => {}
        }
    }

    /// A turn on the device, if the runner should get another batch now. While the runner is idle this waits for the
    /// device; jobs that arrive meanwhile can still join the batch.
    fn turn(&self) -> Option<Turn> {
        match self.flights.is_empty() {
            true => Some(self.seat.take()),
            false if self.may_submit() => self.seat.try_take(),
            false => None,
        }
    }

    /// Whether the runner should get another batch behind those that it has, because it will soon be idle.
    fn may_submit(&self) -> bool {
        let depth = self.runner.as_ref().map_or(1, |runner| runner.depth());
        self.flights.len() < depth && self.time_left() <= self.lead.time()
    }

    /// Predicted time until all submitted batches are done.
    fn time_left(&self) -> Duration {
        let predicted: Duration = self.flights.iter().map(|flight| flight.predicted).sum();
        let started = self.flights.front().map_or(Duration::ZERO, |oldest| oldest.started.elapsed());
        predicted.saturating_sub(started)
    }

    /// Reports to the forecast, and to engines that share the device, how long it will be busy.
    fn report(&self) {
        let time = self.time_left();
        self.forecast.busy_for(time);
        if let Some(turn) = self.flights.back().and_then(|newest| newest.turn.as_ref()) {
            turn.lasts(time);
        }
    }

    /// Submits a batch to the runner, for `turn` on the device; forming it started at `began`.
    fn submit(&mut self, jobs: Vec<Job>, candidate: Candidate, turn: Turn, began: Instant) {
        let predicted = self.queue.predict(&candidate);
        let waiting = self.queue.len() + jobs.len();
        let (started, turn) = (Instant::now(), Some(turn));
        self.flights.push_back(Flight { jobs, candidate, waiting, started, predicted, turn });
        self.report();
        let submitted = self.start_newest();
        self.lead.observe(began.elapsed());
        match submitted {
            Ok(()) => {}
            Err(Failure::Refused(why)) => {
                let refused = self.flights.pop_back().expect("it was added above");
                self.refused(refused.jobs, &why);
            }
            Err(Failure::Panicked(why)) => self.start_over(&why),
        }
    }

    fn start_newest(&mut self) -> Result<(), Failure> {
        if let Some(why) = &self.lost {
            return Err(Failure::Refused(why.as_str().into()));
        }
        let jobs = self.flights.back().map_or(&[][..], |flight| &flight.jobs);
        let abandoned = &self.abandoned;
        let mut wanted = || !abandoned.is_said() && jobs.iter().any(|job| !job.is_withdrawn());
        guarded(&mut self.runner, |runner| runner.submit(&mut jobs.iter().map(Job::sequence), &mut wanted))
    }

    /// Polls the oldest batch: ends it when it is done, else waits for messages for [`POLL_EVERY`].
    fn look(&mut self) {
        let now = Instant::now();
        let looked = match self.poll_oldest(now) {
            Ok(Progress::Running) => return self.queue.wait(POLL_EVERY),
            Err(Failure::Panicked(why)) => return self.start_over(&why),
            ended => ended,
        };
        let mut flight = self.flights.pop_front().expect("it was polled above");
        flight.turn = None;
        if let Some(next) = self.flights.front_mut() {
            next.started = now;
        }
        let learnt = match looked {
            Ok(Progress::Done) => self.learn(&flight, now),
            Err(Failure::Refused(why)) => {
                self.refused(flight.jobs, &why);
                Ok(())
            }
            _ => {
                self.queue.give_up(flight.jobs);
                Ok(())
            }
        };
        let released = |runner: &mut dyn Runner| {
            runner.release();
            Ok(())
        };
        if let Err(Failure::Panicked(why)) = learnt.and_then(|()| guarded(&mut self.runner, released)) {
            self.start_over(&why);
        }
    }

    /// Polls the oldest batch, and answers its requests when it is done.
    fn poll_oldest(&mut self, now: Instant) -> Result<Progress, Failure> {
        let oldest = self.flights.front_mut().expect("who looks has a batch");
        let (inference, rows) = (oldest.took(now), self.rows);
        guarded(&mut self.runner, |runner| {
            let progress = runner.poll()?;
            if progress == Progress::Done {
                // Rows are read from the runner's own memory, so another engine may use the device meanwhile.
                oldest.turn = None;
                answer(runner, rows, oldest, inference)?;
            }
            Ok(progress)
        })
    }

    /// Updates predictions and metrics with the cost of a batch that was done at `now`.
    fn learn(&mut self, flight: &Flight, now: Instant) -> Result<(), Failure> {
        let (candidate, inference) = (&flight.candidate, flight.took(now));
        self.observe(flight, inference);
        self.queue.observe(candidate, inference);
        self.keeper.learnt(self.queue.costs());
        self.forecast.ran(candidate, inference);
        if self.plans_panic {
            return Ok(());
        }
        let Self { memory, runner, .. } = self;
        let plan = |runner: &mut dyn Runner| Ok((runner.footprint(candidate), runner.held_bytes()));
        memory.ran(|| guarded(runner, plan)).inspect_err(|_| self.plans_panic = true)
    }

    /// Records a finished batch with the observer.
    fn observe(&self, flight: &Flight, took: Duration) {
        let Flight { jobs, candidate, waiting, started, predicted, .. } = flight;
        let waited = |job: &Job| started.saturating_duration_since(job.encoded_at);
        let inputs = jobs.iter().map(|job| (u32::try_from(job.tokens()).unwrap_or(u32::MAX), waited(job)));
        self.observer.ran(Ran { candidate, waiting: *waiting, predicted: *predicted, took, inputs });
    }

    /// Reports costs and memory plans to the observer, if it was read since the last report: reporting takes time.
    fn tell_observer(&mut self) {
        let Self { observer, queue, runner, .. } = self;
        if observer.is_looked_at() && runner.is_some() {
            let mut panicked = None;
            let footprint = |batch: &_| match self.plans_panic || panicked.is_some() {
                true => None,
                false => guarded(runner, |runner| Ok(runner.footprint(batch)))
                    .map_err(|why| panicked = Some(why))
                    .ok(),
            };
            observer.tell(queue.costs(), footprint);
            if let Some(Failure::Panicked(why)) = panicked {
                self.plans_panic = true;
                self.start_over(&why);
            }
        }
    }

    /// Fails the jobs of a batch for which the runner returned an error.
    fn refused(&mut self, jobs: Vec<Job>, error: &RunError) {
        self.look_whether_lost(error);
        fail(jobs, &with_causes(&**error));
    }

    /// Records that the device is lost, if `error` or a cause of it says so.
    fn look_whether_lost(&mut self, error: &RunError) {
        if self.lost.is_none() && causes(&**error).any(|cause| cause.is::<DeviceLost>()) {
            let why = with_causes(&**error);
            tracing::error!(
                why,
                "the device is lost: no request can be answered until the server is restarted"
            );
            self.health.set(Health::Failing);
            self.lost = Some(why);
        }
    }

    /// Fails all batches of a runner that has panicked, and rebuilds it unless the device is lost.
    fn start_over(&mut self, why: &str) {
        if self.flights.is_empty() {
            tracing::error!(why, "the model panicked between two batches, and is rebuilt");
        }
        let why = format!("the batch panicked: {why}");
        self.flights.drain(..).for_each(|flight| fail(flight.jobs, &why));
        if self.lost.is_none()
            && let Err(error) = self.rebuild()
        {
            tracing::error!(why = with_causes(&*error), "the model could not be rebuilt");
        }
    }

    /// Rebuilds the runner. The old one is dropped first, so that memory suffices; the planning lock is held, so that
    /// no model that is loaded meanwhile counts on that memory.
    fn rebuild(&mut self) -> Result<(), RunError> {
        let started = Instant::now();
        self.forecast.busy_for(self.building);
        self.health.set(Health::Starting);
        let old = self.runner.take();
        let (build, capacity) = (&mut self.build, self.capacity);
        let built = catch_unwind(AssertUnwindSafe(|| {
            let _alone = planning();
            drop(old);
            build(capacity)
        }));
        let error: RunError = match built {
            Ok(Ok(runner)) => {
                (self.runner, self.again, self.pause) = (Some(runner), None, Duration::ZERO);
                self.building = started.elapsed();
                self.report();
                self.health.set(Health::Ready);
                return Ok(());
            }
            Ok(Err(error)) => error,
            Err(panic) => panic_message(&*panic).into(),
        };
        self.health.set(Health::Failing);
        self.pause = pause_after(self.pause, started.elapsed());
        self.again = Some(Instant::now() + self.pause);
        self.look_whether_lost(&error);
        Err(error)
    }
}

/// The pause after a failed rebuild that took `attempt`, where the pause before was `last`.
fn pause_after(last: Duration, attempt: Duration) -> Duration {
    let [least, most] = PAUSES;
    (2 * last).clamp(least, most).max(attempt)
}

/// Why a batch has no answers.
enum Failure {
    /// The runner returned an error, and can still be used.
    Refused(RunError),
    /// The runner panicked; its state is unknown.
    Panicked(String),
}

/// Does `work` with the runner, and catches a panic. Only the runner's state can be broken by a panic, and the runner
/// is rebuilt after it.
///
/// # Panics
/// If there is no runner.
fn guarded<T>(
    runner: &mut Option<Box<dyn Runner>>,
    work: impl FnOnce(&mut dyn Runner) -> Result<T, RunError>,
) -> Result<T, Failure> {
    let runner = runner.as_deref_mut().expect("it is there as long as it has batches");
    catch_unwind(AssertUnwindSafe(|| work(runner)))
        .map_err(|panic| Failure::Panicked(panic_message(&*panic)))?
        .map_err(Failure::Refused)
}

fn fail(jobs: Vec<Job>, why: &str) {
    tracing::error!(why, batch_size = jobs.len(), "a batch failed");
    jobs.into_iter().for_each(|job| job.ticket.fail(EngineError::Backend(why.to_owned())));
}

/// Answers the requests of the runner's oldest batch, which took `inference`, with its rows; `rows` are their lengths.
///
/// # Errors
/// Those of the runner; too few or too many values for an input.
fn answer(
    runner: &mut dyn Runner,
    rows: RowLens,
    flight: &mut Flight,
    inference: Duration,
) -> Result<(), RunError> {
    for (sequence, job) in flight.jobs.iter_mut().enumerate() {
        let mut values = Vec::new();
        runner.read(sequence, job.rows(), &mut values)?;
        let (expected, got) = (job.values(rows), values.len());
        if got != expected {
            return Err(format!("the model gave {got} values for an input, expected {expected}").into());
        }
        job.answer(values, flight.started, inference);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_longest_and_are_never_shorter_than_an_attempt() {
        let seconds = Duration::from_secs;
        let mut pauses = vec![Duration::ZERO];
        for _ in 0..8 {
            pauses.push(pause_after(*pauses.last().unwrap(), seconds(1)));
        }
        assert_eq!(pauses[1..], [5, 10, 20, 40, 80, 160, 300, 300].map(seconds));
        assert_eq!(pause_after(seconds(300), seconds(700)), seconds(700));
        assert_eq!(pause_after(seconds(700), seconds(1)), seconds(300));
    }
}
