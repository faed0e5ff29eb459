//! A runner that survives panics: its state is not trusted after one, so it is built anew.
//!
//! A failed rebuild is retried: before the next batch, and after a pause even if no request comes. Once the device is
//! lost, no rebuild could succeed.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use crate::engine::{
    BuildRunner, Capacity, RunError,
    causes::{causes, panic_message, with_causes},
    runner::{DeviceLost, Runner},
    start::reserved::planning,
};

/// The first and the longest pause before a failed rebuild is retried without a request. The pause doubles each time,
/// since an attempt keeps other models from planning their memory; it is never shorter than the attempt took.
const PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(300)];

pub(in crate::engine) struct GuardedRunner {
    /// `None` while it could not be rebuilt after a panic.
    runner: Option<Box<dyn Runner>>,
    build: BuildRunner,
    capacity: Capacity,
    /// How long the last build took, the reservation for the largest batch included.
    building: Duration,
    /// When the rebuild is retried without a request.
    again: Option<Instant>,
    /// The last pause between two rebuilds.
    pause: Duration,
    /// Why the device is lost, if it is.
    lost: Option<String>,
    /// Whether planning has panicked: then no further plan is read, since each panic costs a rebuild.
    plans_panic: bool,
}

/// Why the runner has not done its work.
pub(super) enum Failure {
    /// The runner returned an error, and can still be used.
    Refused(RunError),
    /// The runner panicked; its state is unknown.
    Panicked(String),
}

impl GuardedRunner {
    /// `runner` comes from `build` and has memory for `capacity`, which took the time `building`.
    pub(in crate::engine) fn new(
        runner: Box<dyn Runner>,
        build: BuildRunner,
        capacity: Capacity,
        building: Duration,
    ) -> Self {
        Self {
            runner: Some(runner),
            build,
            capacity,
            building,
            again: None,
            pause: Duration::ZERO,
            lost: None,
            plans_panic: false,
        }
    }

    /// The largest batch that it has memory for.
    pub(in crate::engine) fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// How long a rebuild takes.
    pub(super) fn building(&self) -> Duration {
        self.building
    }

    pub(super) fn is_there(&self) -> bool {
        self.runner.is_some()
    }

    /// Whether it has to be rebuilt before it can work, and could be.
    pub(super) fn awaits_rebuild(&self) -> bool {
        self.runner.is_none() && self.lost.is_none()
    }

    /// Why the device is lost, if it is.
    pub(super) fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// How many batches it can have at a time.
    pub(super) fn depth(&self) -> usize {
        self.runner.as_ref().map_or(1, |runner| runner.depth())
    }

    /// Does `work` with the runner, and catches a panic. Only the runner's state can be broken by a panic, and the
    /// runner is rebuilt after it.
    ///
    /// # Panics
    /// If there is no runner.
    pub(super) fn ask<T>(
        &mut self,
        work: impl FnOnce(&mut dyn Runner) -> Result<T, RunError>,
    ) -> Result<T, Failure> {
        let runner = self.runner.as_deref_mut().expect("it is there as long as it has batches");
        catch_unwind(AssertUnwindSafe(|| work(runner)))
            .map_err(|panic| Failure::Panicked(panic_message(&*panic)))?
            .map_err(Failure::Refused)
    }

    /// The same for what plans memory; `None` once that has panicked.
    pub(super) fn plan<T>(&mut self, plan: impl FnOnce(&mut dyn Runner) -> T) -> Result<Option<T>, Failure> {
        if self.plans_panic {
            return Ok(None);
        }
        let planned = self.ask(|runner| Ok(plan(runner)));
        self.plans_panic = planned.is_err();
        planned.map(Some)
    }

    /// Rebuilds the runner. The old one is dropped first, so that memory suffices; the planning lock is held, so that
    /// no model that is loaded meanwhile counts on that memory.
    pub(super) fn rebuild(&mut self) -> Result<(), RunError> {
        let started = Instant::now();
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
                return Ok(());
            }
            Ok(Err(error)) => error,
            Err(panic) => panic_message(&*panic).into(),
        };
        self.pause = pause_after(self.pause, started.elapsed());
        self.again = Some(Instant::now() + self.pause);
        self.look_whether_lost(&error);
        Err(error)
    }

    /// Time until a failed rebuild should be retried without a request; `None` where none has failed, or none could
    /// succeed.
    pub(super) fn again_in(&self) -> Option<Duration> {
        let again = self.again.filter(|_| self.lost.is_none())?;
        Some(again.saturating_duration_since(Instant::now()))
    }

    /// Records that the device is lost, if `error` or a cause of it says so.
    pub(super) fn look_whether_lost(&mut self, error: &RunError) {
        if self.lost.is_none() && causes(&**error).any(|cause| cause.is::<DeviceLost>()) {
            let why = with_causes(&**error);
            tracing::error!(
                why,
                "the device is lost: no request can be answered until the server is restarted"
            );
            self.lost = Some(why);
        }
    }
}

/// The pause after a failed rebuild that took `attempt`, where the pause before was `last`.
fn pause_after(last: Duration, attempt: Duration) -> Duration {
    let [least, most] = PAUSES;
    (2 * last).clamp(least, most).max(attempt)
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
