//! How much longer answers take than predicted.
//!
//! In: predictions, and what came of them. Out: what is to be expected of the next one, on the safe side. The estimate is
//! Jacobson's (SIGCOMM'88) for the round trips of TCP: a mean, and a multiple of the mean deviation on top of it.

use std::time::Duration;

/// Share of a new ratio in the mean and in the deviation. Requests of a batch tell nearly the same, and what errs in one
/// batch is made up for in the next: so some ten batches of fifty, or in the simulator (`tests/outlook.rs`) the estimate
/// runs after the last ones, and either too many are let in or too few.
const GAIN: f64 = 1.0 / 512.0;
/// Share that is forgotten where nothing was learnt.
const FORGETTING: f64 = 1.0 / 4096.0;
/// Mean deviations on top of the mean: TCP's.
const DEVIATIONS: f64 = 4.0;
/// The least part of what it was allowed that a request has to be predicted to take, to be of interest: a short wait is
/// made of other things than a long one.
const LEAST_PART: f64 = 0.25;
/// What is thought at first.
const FIRST: Pace = Pace { mean: 1.0, deviation: 0.05 };
/// Bounds of the factor. A prediction is never too long by more than half; and too short by more than this it is when a
/// machine stands still, of which the past says nothing.
const BOUNDS: (f64, f64) = (0.67, 3.0);

/// The mean of taken by predicted time, and the mean deviation from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pace {
    mean: f64,
    deviation: f64,
}

impl Default for Pace {
    fn default() -> Self {
        FIRST
    }
}

impl Pace {
    /// What a request is to be expected to take that costs say takes `time`.
    pub(crate) fn expected(&self, time: Duration) -> Duration {
        Duration::try_from_secs_f64(time.as_secs_f64() * self.factor()).unwrap_or(Duration::MAX)
    }

    /// A request took `taken` of `allowed`, and costs said that it would take `said`.
    pub(crate) fn observe(&mut self, said: Duration, allowed: Duration, taken: Duration) {
        let [said, allowed, taken] = [said, allowed, taken].map(|time| time.as_secs_f64());
        if said <= 0.0 || said * self.factor() < LEAST_PART * allowed {
            return;
        }
        let ratio = (taken / said).min(BOUNDS.1);
        self.deviation += GAIN * ((ratio - self.mean).abs() - self.deviation);
        self.mean += GAIN * (ratio - self.mean);
    }

    /// Nothing was learnt: who lets nobody in would never think better of it.
    pub(crate) fn forget(&mut self) {
        self.mean += FORGETTING * (FIRST.mean - self.mean);
        self.deviation += FORGETTING * (FIRST.deviation - self.deviation);
    }

    fn factor(&self) -> f64 {
        (self.mean + DEVIATIONS * self.deviation).clamp(BOUNDS.0, BOUNDS.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: Duration = Duration::from_millis(100);

    /// Answers take `ratio` times what costs say, which is 50 ms.
    fn observe(pace: &mut Pace, times: usize, ratio: impl Fn(usize) -> f64) -> f64 {
        let said = ALLOWED / 2;
        for n in 0..times {
            pace.observe(said, ALLOWED, said.mul_f64(ratio(n)));
        }
        pace.factor()
    }

    #[test]
    fn a_steady_ratio_is_learnt_and_a_wild_one_is_feared() {
        let steady = observe(&mut Pace::default(), 5000, |_| 1.5);
        assert!((1.49..1.52).contains(&steady), "{steady}");
        let wild = observe(&mut Pace::default(), 5000, |n| if n % 2 == 0 { 0.5 } else { 1.5 });
        assert!((2.9..=3.0).contains(&wild), "{wild}");
    }

    #[test]
    fn short_waits_tell_nothing_of_long_ones() {
        let mut pace = Pace::default();
        (0..100).for_each(|_| pace.observe(ALLOWED / 10, ALLOWED, ALLOWED));
        assert_eq!(pace, FIRST);
    }

    #[test]
    fn a_standstill_is_forgotten_though_nobody_is_let_in() {
        let mut pace = Pace::default();
        let feared = observe(&mut pace, 1000, |_| 50.0);
        assert_eq!(feared, BOUNDS.1);
        (0..20_000).for_each(|_| pace.forget());
        assert!(pace.factor() < 1.3, "{}", pace.factor());
    }
}
