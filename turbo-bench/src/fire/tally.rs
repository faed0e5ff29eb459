//! What came back: how many answers of each kind, and how late.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Percentiles of a histogram, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many there were.
    pub count: u64,
    /// The median.
    pub p50_ms: f64,
    /// The 90th percentile.
    pub p90_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The 99.9th percentile, if there were [`ENOUGH`] samples.
    pub p999_ms: Option<f64>,
    /// The slowest.
    pub max_ms: f64,
}

/// The number of samples of which ten lie beyond the 99.9th percentile.
pub const ENOUGH: u64 = 10_000;

/// A histogram of times, to three digits.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

/// Bounds of the histogram: from a microsecond to ten minutes.
const MICROS: (u64, u64) = (1, 600_000_000);

impl Default for Times {
    fn default() -> Self {
        let (low, high) = MICROS;
        Self(Histogram::new_with_bounds(low, high, 3).expect("the bounds are constant, and right"))
    }
}

impl Times {
    /// Adds a time.
    pub fn note(&mut self, time: Duration) {
        self.0.saturating_record(time.as_micros() as u64);
    }

    /// Adds the times of another run.
    pub fn add(&mut self, more: &Self) {
        self.0.add(&more.0).expect("all have the same bounds");
    }

    /// What a record keeps of the times. All values are zero if there are none.
    #[must_use]
    pub fn latency(&self) -> Latency {
        let count = self.0.len();
        if count == 0 {
            return Latency::default();
        }
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        Latency {
            count,
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p999_ms: (count >= ENOUGH).then(|| at(0.999)),
            max_ms: self.0.max() as f64 / 1e3,
        }
    }
}

/// What became of those requests of a trace that count.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The length of time, in seconds, in which they were due.
    pub seconds: f64,
    /// How many there were.
    pub offered: u64,
    /// Times of those that were answered, counted from when they should have been sent.
    pub served: Times,
    /// Number answered within the promised time.
    pub good: u64,
    /// Tokens of those. A server that refuses long texts rather than short ones answers more requests, but not more
    /// tokens.
    pub good_tokens: u64,
    /// Times of those that were refused (429).
    pub refused: Times,
    /// Number of those whose answer was that their time was over (504).
    pub expired: u64,
    /// Number of those that got another status, by status.
    pub failed: BTreeMap<u16, u64>,
    /// Number of those that got no answer: there was no connection, it broke, or patience ran out.
    pub dropped: u64,
    /// How late the generator sent them.
    pub late: Times,
}

impl Tally {
    /// Notes what became of a request of so many tokens; `status` is `None` if nothing came back.
    pub fn note(&mut self, tokens: u32, status: Option<u16>, time: Duration, promised: Duration) {
        self.offered += 1;
        match status {
            Some(200) => {
                self.served.note(time);
                if time <= promised {
                    self.good += 1;
                    self.good_tokens += u64::from(tokens);
                }
            }
            Some(429) => self.refused.note(time),
            Some(504) => self.expired += 1,
            Some(other) => *self.failed.entry(other).or_default() += 1,
            None => self.dropped += 1,
        }
    }

    /// Adds what another run of the same server found.
    pub fn add(&mut self, more: &Self) {
        self.seconds += more.seconds;
        self.offered += more.offered;
        self.served.add(&more.served);
        self.good += more.good;
        self.good_tokens += more.good_tokens;
        self.refused.add(&more.refused);
        self.expired += more.expired;
        more.failed.iter().for_each(|(status, count)| *self.failed.entry(*status).or_default() += count);
        self.dropped += more.dropped;
        self.late.add(&more.late);
    }

    /// Requests per second that were due.
    #[must_use]
    pub fn offered_rate(&self) -> f64 {
        self.offered as f64 / self.seconds
    }

    /// Requests per second that were answered.
    #[must_use]
    pub fn achieved_rate(&self) -> f64 {
        self.served.latency().count as f64 / self.seconds
    }

    /// Requests per second that were answered within the promised time.
    #[must_use]
    pub fn goodput(&self) -> f64 {
        self.good as f64 / self.seconds
    }

    /// Tokens per second of the requests in [`Tally::goodput`].
    #[must_use]
    pub fn token_goodput(&self) -> f64 {
        self.good_tokens as f64 / self.seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn every_request_is_counted_once() {
        let mut tally = Tally { seconds: 2.0, ..Tally::default() };
        for (status, ms) in
            [(Some(200), 10), (Some(200), 30), (Some(429), 2), (Some(504), 21), (Some(503), 1), (None, 5)]
        {
            tally.note(ms, status, MS(u64::from(ms)), MS(20));
        }
        let mut twice = tally.clone();
        twice.add(&tally);
        assert_eq!((twice.offered, twice.good, twice.expired, twice.dropped), (12, 2, 2, 2));
        assert_eq!(twice.good_tokens, 20, "ten were in time, thirty were not");
        assert_eq!(twice.failed, BTreeMap::from([(503, 2)]));
        assert_eq!([twice.offered_rate(), twice.achieved_rate(), twice.goodput()], [3.0, 1.0, 0.5]);
        assert_eq!(twice.token_goodput(), 5.0);
        assert_eq!(twice.refused.latency().count, 2);
    }

    #[test]
    fn rare_times_are_told_where_there_are_enough() {
        let mut times = Times::default();
        assert_eq!(times.latency(), Latency::default());
        (1..ENOUGH).for_each(|ms| times.note(MS(ms)));
        let latency = times.latency();
        assert_eq!((latency.count, latency.p999_ms), (ENOUGH - 1, None));
        times.note(MS(ENOUGH));
        let Latency { p50_ms, p90_ms, p99_ms, p999_ms, max_ms, .. } = times.latency();
        for (found, expected) in
            [(p50_ms, 5000.0), (p90_ms, 9000.0), (p99_ms, 9900.0), (p999_ms.unwrap(), 9990.0), (max_ms, 1e4)]
        {
            assert!((found / expected - 1.0).abs() < 2e-3, "{found}, expected {expected}");
        }
    }
}
