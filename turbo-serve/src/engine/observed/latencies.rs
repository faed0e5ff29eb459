//! How long answers took: percentiles of the last minute, and of the intervals before.

use std::{collections::VecDeque, time::Duration};

use hdrhistogram::Histogram;

/// Time over which answers share one histogram.
pub const INTERVAL: Duration = Duration::from_secs(5);
/// Intervals whose histograms are kept: a minute, and the current one.
const KNOWN: u64 = 60 / INTERVAL.as_secs() + 1;
/// Intervals whose percentiles are kept.
const TOLD: usize = 36;
/// The longest time that is recorded, in microseconds; longer ones count as this.
const LONGEST: u64 = 600_000_000;
/// Significant digits of recorded values: percentiles are exact to 1 %.
const DIGITS: u8 = 2;

/// Times from a request's arrival to its answer, one for each input.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latencies {
    /// Inputs answered in the last minute.
    pub inputs: u64,
    /// Their percentiles; `None` without any.
    pub minute: Option<Percentiles>,
    /// When each past [`INTERVAL`] began, and its percentiles; intervals without an input are left out.
    pub intervals: Vec<(Duration, Percentiles)>,
}

/// The times within which 50, 90 and 99 of a hundred answers came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percentiles {
    /// 50 of 100.
    pub p50: Duration,
    /// 90 of 100.
    pub p90: Duration,
    /// 99 of 100.
    pub p99: Duration,
}

/// A histogram per interval.
pub(super) struct Recorder {
    /// Histograms in a ring, with the interval of each; `None` before its first.
    known: [(Option<u64>, Histogram<u32>); KNOWN as usize],
    /// The interval that is not over.
    current: u64,
    told: VecDeque<(Duration, Percentiles)>,
}

impl Recorder {
    pub(super) fn new() -> Self {
        let known = std::array::from_fn(|_| (None, empty()));
        Self { known, current: 0, told: VecDeque::with_capacity(TOLD) }
    }

    /// Records `inputs` answers, each of which took `took`. Allocates nothing.
    pub(super) fn record(&mut self, now: Duration, inputs: u64, took: Duration) {
        let interval = interval(now);
        self.close_before(interval);
        let (of, histogram) = &mut self.known[(interval % KNOWN) as usize];
        *of = Some(interval);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).clamp(1, LONGEST);
        histogram.saturating_record_n(micros, u32::try_from(inputs).unwrap_or(u32::MAX));
    }

    pub(super) fn look(&mut self, now: Duration) -> Latencies {
        let current = interval(now);
        self.close_before(current);
        let mut minute = empty();
        for (of, histogram) in &self.known {
            if of.is_some_and(|of| of + KNOWN > current) {
                minute.add(histogram).expect("all have the same bounds");
            }
        }
        let since = now.saturating_sub(INTERVAL * TOLD as u32);
        let intervals = self.told.iter().copied().filter(|(began, _)| *began >= since).collect();
        Latencies { inputs: minute.len(), minute: percentiles(&minute), intervals }
    }

    /// Computes the percentiles of past intervals that lack them, and clears the slot of `current`. This is slow for
    /// the path of an answer, but happens once in an interval.
    fn close_before(&mut self, current: u64) {
        if current == self.current {
            return;
        }
        self.current = current;
        let told_until = self.told.back().map(|(began, _)| interval(*began));
        // oldest first: its slot is the one of `current`
        for age in (1..=KNOWN).rev() {
            let Some(of) = current.checked_sub(age) else { continue };
            let (slot, histogram) = &self.known[(of % KNOWN) as usize];
            let open = *slot == Some(of) && told_until.is_none_or(|told| told < of);
            if open && let Some(percentiles) = percentiles(histogram) {
                if self.told.len() == TOLD {
                    self.told.pop_front();
                }
                self.told.push_back((INTERVAL * u32::try_from(of).unwrap_or(u32::MAX), percentiles));
            }
        }
        let (slot, histogram) = &mut self.known[(current % KNOWN) as usize];
        if slot.is_some_and(|of| of < current) {
            *slot = None;
            histogram.reset();
        }
    }
}

fn interval(now: Duration) -> u64 {
    now.as_secs() / INTERVAL.as_secs()
}

fn empty() -> Histogram<u32> {
    Histogram::new_with_bounds(1, LONGEST, DIGITS).expect("the bounds are those of a histogram")
}

fn percentiles(histogram: &Histogram<u32>) -> Option<Percentiles> {
    let at = |quantile| Duration::from_micros(histogram.value_at_quantile(quantile));
    (!histogram.is_empty()).then(|| Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99) })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn near(got: Duration, expected: Duration) -> bool {
        (got.as_secs_f64() / expected.as_secs_f64() - 1.0).abs() < 0.01
    }

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let mut recorder = Recorder::new();
        (1..=1000).for_each(|n| recorder.record(MS, 1, MS * n));
        let Latencies { inputs, minute, intervals } = recorder.look(MS * 2);
        let Percentiles { p50, p90, p99 } = minute.unwrap();
        assert_eq!((inputs, intervals.len()), (1000, 0));
        assert!(near(p50, MS * 500) && near(p90, MS * 900) && near(p99, MS * 990), "{minute:?}");
    }

    #[test]
    fn a_minute_slides_and_intervals_stay_behind() {
        let mut recorder = Recorder::new();
        let second = Duration::from_secs(1);
        for n in 0..100 {
            recorder.record(second * n, 1, MS * (n / 5 + 1));
        }
        let Latencies { inputs, minute, intervals } = recorder.look(second * 99);
        assert_eq!(inputs, 65, "12 intervals, and the one that is not over");
        assert!(near(minute.unwrap().p99, MS * 20), "{minute:?}");
        assert_eq!(intervals.len(), 19);
        for (n, (began, percentiles)) in (1..).zip(&intervals) {
            assert_eq!(*began, INTERVAL * (n - 1));
            assert!(near(percentiles.p50, MS * n), "{percentiles:?}");
        }
        let later = recorder.look(second * 1000);
        assert_eq!(later, Latencies::default());
    }

    #[test]
    fn a_record_costs_the_same_after_a_minute_of_them() {
        let mut recorder = Recorder::new();
        let of_thousand = |recorder: &mut Recorder, now: Duration| {
            let started = Instant::now();
            (0..1000).for_each(|_| recorder.record(now, 1, 20 * MS));
            started.elapsed()
        };
        let mut least = |now: Duration| (0..20).map(|_| of_thousand(&mut recorder, now)).min().unwrap();
        let first = least(Duration::ZERO);
        let second = Duration::from_secs(1);
        (1..60).for_each(|n| _ = least(second * n));
        let last = least(second * 60);
        assert!(last < 4 * first, "{last:?} for a thousand, and {first:?} before");
    }

    #[test]
    fn what_takes_no_time_or_all_of_it_is_counted() {
        let mut recorder = Recorder::new();
        recorder.record(MS, 3, Duration::ZERO);
        recorder.record(MS, u64::MAX, Duration::MAX);
        assert!(recorder.look(MS).inputs > 3);
    }
}
