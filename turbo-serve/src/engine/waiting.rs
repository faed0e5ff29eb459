//! How many inputs wait for a batch, and since when the oldest does.
//!
//! They are counted from when they are sent to the worker to when it takes them for a batch. It may be busy for as long as
//! a batch takes, so what was sent and not taken in is counted here, beside what the worker says that it has.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use metrics::{Gauge, gauge};

use super::{Priority, queue::Job};
use crate::metric_names as names;

/// Inputs of each class.
pub(super) type ByClass = [usize; Priority::ALL.len()];

/// Inputs that wait, and the metrics that say so.
pub(super) struct Waiting {
    state: Mutex<State>,
    all: Gauge,
    by_class: [Gauge; Priority::ALL.len()],
}

#[derive(Default)]
struct State {
    /// What was sent, and the worker has not taken in.
    sent: ByClass,
    /// Since when each of those waits, as they were sent: the worker takes them in so, but for who sends at the same moment.
    sent_since: VecDeque<Instant>,
    /// What the worker has.
    held: Held,
}

/// Inputs that the worker has, and no batch has taken.
#[derive(Clone, Copy, Default)]
pub(super) struct Held {
    inputs: ByClass,
    /// Since when the oldest waits.
    oldest: Option<Instant>,
}

impl<'a> FromIterator<&'a Job> for Held {
    fn from_iter<I: IntoIterator<Item = &'a Job>>(jobs: I) -> Self {
        jobs.into_iter().fold(Self::default(), |mut held, job| {
            held.inputs[job.priority() as usize] += 1;
            held.oldest = earlier(held.oldest, Some(job.encoded_at));
            held
        })
    }
}

impl Waiting {
    /// Those of the model with this label.
    pub(super) fn new(label: Option<&str>) -> Self {
        let of = |class: Priority| {
            gauge!(names::PRIORITY_QUEUE_SIZE, names::labels(label, [(names::PRIORITY, class.name())]).iter())
        };
        Self {
            state: Mutex::default(),
            all: gauge!(names::QUEUE_SIZE, names::labels(label, []).iter()),
            by_class: Priority::ALL.map(of),
        }
    }

    /// These are about to be sent; gives how many they are.
    pub(super) fn sends(&self, jobs: &[Job]) -> ByClass {
        let Held { inputs, .. } = jobs.iter().collect();
        self.change(|state| {
            add(&mut state.sent, inputs);
            state.sent_since.extend(jobs.iter().map(|job| job.encoded_at));
        });
        inputs
    }

    /// So many could not be sent.
    pub(super) fn takes_back(&self, inputs: ByClass) {
        self.change(|state| state.received(inputs));
    }

    /// The worker has taken in so many of what was sent, and has these now.
    pub(super) fn worker_has(&self, held: Held, taken_in: ByClass) {
        self.change(|state| {
            state.received(taken_in);
            state.held = held;
        });
    }

    /// Inputs of each class, and since when the oldest waits.
    pub(super) fn look(&self) -> (ByClass, Option<Instant>) {
        let state = self.lock();
        (state.inputs(), earlier(state.sent_since.iter().min().copied(), state.held.oldest))
    }

    /// The metrics are set under the lock, so that the last one is right.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let inputs = state.inputs();
        self.all.set(inputs.iter().sum::<usize>() as f64);
        inputs.iter().zip(&self.by_class).for_each(|(&inputs, gauge)| gauge.set(inputs as f64));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics half-way under the lock, so a poisoned one still guards a whole value.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn received(&mut self, inputs: ByClass) {
        self.sent.iter_mut().zip(inputs).for_each(|(sent, taken)| *sent -= taken);
        self.sent_since.drain(..inputs.iter().sum::<usize>());
    }

    fn inputs(&self) -> ByClass {
        let mut inputs = self.sent;
        add(&mut inputs, self.held.inputs);
        inputs
    }
}

/// Counts more inputs.
pub(super) fn add(to: &mut ByClass, inputs: ByClass) {
    to.iter_mut().zip(inputs).for_each(|(all, more)| *all += more);
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::{
        forecast::Terms,
        queue::tests::{forecast, job_of},
    };

    #[test]
    fn the_oldest_of_those_who_were_sent_is_one_that_still_waits() {
        let (forecast, waiting, first) = (forecast(), Waiting::new(None), Instant::now());
        let then = first + Duration::from_secs(1);
        let send = |since| {
            let (job, ..) = job_of(&forecast, Terms::new(since, None, None, Priority::Normal));
            waiting.sends(&[job])
        };
        let one = send(first);
        send(then);
        assert_eq!(waiting.look(), ([0, 2, 0], Some(first)));
        waiting.worker_has(Held::default(), one);
        assert_eq!(waiting.look(), ([0, 1, 0], Some(then)), "the worker is done with the first");
        // One whose promise was broken is sent again, and has waited for longer.
        send(first);
        assert_eq!(waiting.look(), ([0, 2, 0], Some(first)));
        waiting.worker_has(Held::default(), [0, 2, 0]);
        assert_eq!(waiting.look(), ([0; 3], None));
    }
}
