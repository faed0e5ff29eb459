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
    sync::Arc,
    time::{Duration, Instant},
};

use turbo_sched::Candidate;

use super::{
    guarded_runner::{Failure, GuardedRunner},
    job::Job,
    lead::Lead,
    queue::{Next, Queue},
};
use crate::engine::{
    EngineError, Health, RowLens, RunError, Seat, Turn,
    admit::{abandoned::Abandoned, forecast::Forecast},
    causes::with_causes,
    health::HealthCell,
    metrics::MemoryMetrics,
    observed::{Observer, Ran},
    runner::{Progress, Runner},
    start::cost_cache::CostKeeper,
};

/// How long the worker waits for new requests between two polls of a running batch.
const POLL_EVERY: Duration = Duration::from_micros(50);

pub(in crate::engine) struct Worker {
    pub runner: GuardedRunner,
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
            } else if !empty && self.runner.awaits_rebuild() {
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
        match self.runner.again_in() {
            None => self.queue.wait_for_more(),
            // Other messages wake the worker, too: so the pause ends at a fixed time and does not start over.
            Some(pause) if !pause.is_zero() => self.queue.wait(pause),
            Some(_) => {
                if let Err(error) = self.rebuild() {
                    tracing::error!(why = with_causes(&*error), "the model still could not be rebuilt");
                }
            }
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
        self.flights.len() < self.runner.depth() && self.time_left() <= self.lead.time()
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
        if let Some(why) = self.runner.lost() {
            return Err(Failure::Refused(why.into()));
        }
        let jobs = self.flights.back().map_or(&[][..], |flight| &flight.jobs);
        let abandoned = &self.abandoned;
        let mut wanted = || !abandoned.is_said() && jobs.iter().any(|job| !job.is_withdrawn());
        self.runner.ask(|runner| runner.submit(&mut jobs.iter().map(Job::sequence), &mut wanted))
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
        let released = learnt.and_then(|()| {
            self.runner.ask(|runner| {
                runner.release();
                Ok(())
            })
        });
        if let Err(Failure::Panicked(why)) = released {
            self.start_over(&why);
        }
    }

    /// Polls the oldest batch, and answers its requests when it is done.
    fn poll_oldest(&mut self, now: Instant) -> Result<Progress, Failure> {
        let oldest = self.flights.front_mut().expect("who looks has a batch");
        let (inference, rows) = (oldest.took(now), self.rows);
        self.runner.ask(|runner| {
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
        let Self { memory, runner, .. } = self;
        memory.ran(|| runner.plan(|runner| (runner.footprint(candidate), runner.held_bytes())))
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
        if observer.is_looked_at() && runner.is_there() {
            let mut panicked = None;
            let footprint = |batch: &Candidate| {
                let planned = runner.plan(|runner| runner.footprint(batch));
                planned.unwrap_or_else(|why| {
                    panicked = Some(why);
                    None
                })
            };
            observer.tell(queue.costs(), footprint);
            if let Some(Failure::Panicked(why)) = panicked {
                self.start_over(&why);
            }
        }
    }

    /// Fails the jobs of a batch for which the runner returned an error.
    fn refused(&mut self, jobs: Vec<Job>, error: &RunError) {
        self.runner.look_whether_lost(error);
        if self.runner.lost().is_some() {
            self.health.set(Health::Failing);
        }
        fail(jobs, &with_causes(&**error));
    }

    /// Fails all batches of a runner that has panicked, and rebuilds it unless the device is lost.
    fn start_over(&mut self, why: &str) {
        if self.flights.is_empty() {
            tracing::error!(why, "the model panicked between two batches, and is rebuilt");
        }
        let why = format!("the batch panicked: {why}");
        self.flights.drain(..).for_each(|flight| fail(flight.jobs, &why));
        if self.runner.lost().is_none()
            && let Err(error) = self.rebuild()
        {
            tracing::error!(why = with_causes(&*error), "the model could not be rebuilt");
        }
    }

    /// Rebuilds the runner, for which requests wait meanwhile.
    fn rebuild(&mut self) -> Result<(), RunError> {
        self.forecast.busy_for(self.runner.building());
        self.health.set(Health::Starting);
        let rebuilt = self.runner.rebuild();
        match rebuilt {
            Ok(()) => {
                self.report();
                self.health.set(Health::Ready);
            }
            Err(_) => self.health.set(Health::Failing),
        }
        rebuilt
    }
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
