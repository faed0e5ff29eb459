//! Counts the inputs that wait for a batch, and knows since when the oldest has waited.
//!
//! An input counts from when it is sent to the worker until the worker takes it for a batch. The worker may be busy for
//! as long as a batch takes, so inputs sent and not yet received are counted here, beside those that the worker
//! reports.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use metrics::{Gauge, gauge};

use crate::engine::{Priority, compute::job::Job};
use crate::metric_names as names;

/// Number of inputs of each priority class.
pub(in crate::engine) type ByClass = [usize; Priority::ALL.len()];

/// Counts the inputs that wait, and sets their metrics.
pub(in crate::engine) struct Waiting {
    state: Mutex<State>,
    all: Gauge,
    by_class: [Gauge; Priority::ALL.len()],
}

#[derive(Default)]
struct State {
    /// Inputs sent that the worker has not received.
    sent: ByClass,
    /// Since when each of them has waited, in the order of sending. The worker receives them in this order, except
    /// those that two threads send at the same moment.
    sent_since: VecDeque<Instant>,
    /// Inputs that the worker has.
    held: Held,
}

/// Inputs that the worker has received and not yet put into a batch.
#[derive(Clone, Copy, Default)]
pub(in crate::engine) struct Held {
    inputs: ByClass,
    /// Since when the oldest has waited.
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
    /// Counts for the model with this label.
    pub(in crate::engine) fn new(label: Option<&str>) -> Self {
        let of = |class: Priority| {
            gauge!(names::PRIORITY_QUEUE_SIZE, names::labels(label, [(names::PRIORITY, class.name())]).iter())
        };
        Self {
            state: Mutex::default(),
            all: gauge!(names::QUEUE_SIZE, names::labels(label, []).iter()),
            by_class: Priority::ALL.map(of),
        }
    }

    /// Counts jobs that are about to be sent; returns how many of each class they are.
    pub(in crate::engine) fn sends(&self, jobs: &[Job]) -> ByClass {
        let Held { inputs, .. } = jobs.iter().collect();
        self.change(|state| {
            add(&mut state.sent, inputs);
            state.sent_since.extend(jobs.iter().map(|job| job.encoded_at));
        });
        inputs
    }

    /// Takes back inputs that could not be sent.
    pub(in crate::engine) fn takes_back(&self, inputs: ByClass) {
        self.change(|state| state.received(inputs));
    }

    /// The worker has received `taken_in` of the inputs sent, and now has `held`.
    pub(in crate::engine) fn worker_has(&self, held: Held, taken_in: ByClass) {
        self.change(|state| {
            state.received(taken_in);
            state.held = held;
        });
    }

    /// Number of waiting inputs of each class, and since when the oldest has waited.
    pub(in crate::engine) fn look(&self) -> (ByClass, Option<Instant>) {
        let state = self.lock();
        (state.inputs(), earlier(state.sent_since.iter().min().copied(), state.held.oldest))
    }

    /// Sets the metrics under the lock, so that they end with the latest state.
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

/// Adds `inputs` to `to`, class by class.
pub(in crate::engine) fn add(to: &mut ByClass, inputs: ByClass) {
    to.iter_mut().zip(inputs).for_each(|(all, more)| *all += more);
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::forecast::Terms;
    use super::*;
    use crate::engine::compute::job::tests::{forecast, job_of};

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
        // A job whose promise was broken is sent again, and has waited longer than those sent before it.
        send(first);
        assert_eq!(waiting.look(), ([0, 2, 0], Some(first)));
        waiting.worker_has(Held::default(), [0, 2, 0]);
        assert_eq!(waiting.look(), ([0; 3], None));
    }
}
