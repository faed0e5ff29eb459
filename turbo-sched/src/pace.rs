//! How much longer answers take than predicted.
//!
//! In: predictions and their outcomes. Out: what to expect of the next one, on the safe side. The estimate is
//! Jacobson's (SIGCOMM'88) for the round trips of TCP: a mean, and a multiple of the mean deviation on top of it.

use std::time::Duration;

/// Share of a new ratio in the mean and in the deviation. The ratios of one batch are nearly the same, and an error in
/// one batch is made up for in the next: so this averages over some ten batches of fifty. With a larger share the
/// estimate follows the last batches, and in the simulator (`tests/outlook.rs`) either too many requests are admitted
/// or too few.
const GAIN: f64 = 1.0 / 512.0;
/// Seconds in which all but 1/e of what was learnt is forgotten if nothing new is learnt: otherwise a server that
/// refuses all requests would do so for ever.
const FORGOTTEN_IN: f64 = 4.0;
/// Mean deviations on top of the mean: TCP's.
const DEVIATIONS: f64 = 4.0;
/// A request teaches only if it was expected to take at least this part of its allowed time: a short wait has other
/// causes than a long one.
const LEAST_PART: f64 = 0.25;
/// Before anything is learnt.
const FIRST: Pace = Pace { mean: 1.0, deviation: 0.05, holds_until: Duration::ZERO };
/// Bounds of the factor. A prediction is too long by more than half only if other queues no longer use the machine,
/// which may change at any time; it is too short by more than the upper bound only if the machine stands still, which
/// the past does not predict.
const BOUNDS: (f64, f64) = (0.67, 3.0);

/// The mean ratio of taken to predicted time, and the mean deviation from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pace {
    mean: f64,
    deviation: f64,
    /// When forgetting begins: as long after learning as an answer may take, since until then there may be none to
    /// learn from.
    holds_until: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        FIRST
    }
}

impl Pace {
    /// The time to expect at `now` for a request that takes `time` according to the costs.
    pub(crate) fn expected(&self, time: Duration, now: Duration) -> Duration {
        Duration::try_from_secs_f64(time.as_secs_f64() * self.at(now).factor()).unwrap_or(Duration::MAX)
    }

    /// Learns that a request took `taken` of `allowed` until `now`; according to the costs it would take `said`.
    pub(crate) fn observe(&mut self, said: Duration, allowed: Duration, taken: Duration, now: Duration) {
        let Self { mut mean, mut deviation, .. } = self.at(now);
        let ratio = (taken.as_secs_f64() / said.as_secs_f64()).min(BOUNDS.1);
        if said.is_zero() || self.expected(said, now) < allowed.mul_f64(LEAST_PART) {
            return;
        }
        deviation += GAIN * ((ratio - mean).abs() - deviation);
        mean += GAIN * (ratio - mean);
        *self = Self { mean, deviation, holds_until: now.saturating_add(allowed) };
    }

    /// What is still remembered at `now`.
    fn at(&self, now: Duration) -> Self {
        let forgetting = now.saturating_sub(self.holds_until).as_secs_f64();
        let kept = (-forgetting / FORGOTTEN_IN).exp();
        let left = |learnt: f64, first: f64| first + kept * (learnt - first);
        Self {
            mean: left(self.mean, FIRST.mean),
            deviation: left(self.deviation, FIRST.deviation),
            holds_until: self.holds_until.max(now),
        }
    }

    fn factor(&self) -> f64 {
        (self.mean + DEVIATIONS * self.deviation).clamp(BOUNDS.0, BOUNDS.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: Duration = Duration::from_millis(100);

    /// Answers take `ratio` times what the costs say, which is 50 ms, and one comes every millisecond; returns when the
    /// last one does.
    fn observe(pace: &mut Pace, times: usize, ratio: impl Fn(usize) -> f64) -> Duration {
        let (said, at) = (ALLOWED / 2, |n: usize| Duration::from_millis(n as u64));
        for n in 0..times {
            pace.observe(said, ALLOWED, said.mul_f64(ratio(n)), at(n));
        }
        at(times - 1)
    }

    /// The factor after 5000 of them.
    fn learnt(ratio: impl Fn(usize) -> f64) -> f64 {
        let mut pace = Pace::default();
        observe(&mut pace, 5000, ratio);
        pace.factor()
    }

    #[test]
    fn a_steady_ratio_is_learnt_and_a_wild_one_is_feared() {
        let steady = learnt(|_| 1.5);
        assert!((1.49..1.52).contains(&steady), "{steady}");
        let wild = learnt(|n| if n % 2 == 0 { 0.5 } else { 1.5 });
        assert!((2.9..=3.0).contains(&wild), "{wild}");
    }

    #[test]
    fn short_waits_tell_nothing_of_long_ones() {
        let mut pace = Pace::default();
        (0..100).for_each(|_| pace.observe(ALLOWED / 10, ALLOWED, ALLOWED, ALLOWED));
        assert_eq!(pace, FIRST);
    }

    #[test]
    fn a_standstill_is_forgotten_in_time_though_nobody_comes() {
        let mut pace = Pace::default();
        let last = observe(&mut pace, 1000, |_| 50.0);
        let feared = |after: Duration| pace.at(last + after).factor();
        assert_eq!(feared(ALLOWED), BOUNDS.1, "an answer may still be on its way");
        assert!((1.2..1.3).contains(&feared(Duration::from_secs(16))), "{}", feared(Duration::from_secs(16)));
        assert!(feared(Duration::from_secs(60)) < 1.21);
    }

    #[test]
    fn what_is_forgotten_does_not_depend_on_how_often_it_is_looked_at() {
        let mut pace = Pace::default();
        let last = observe(&mut pace, 1000, |_| 2.0);
        let in_steps = (0..200).fold(pace, |pace, n| pace.at(last + Duration::from_millis(50) * n));
        let at_once = pace.at(last + Duration::from_millis(50) * 199);
        assert!((in_steps.factor() / at_once.factor() - 1.0).abs() < 1e-9);
    }
}
