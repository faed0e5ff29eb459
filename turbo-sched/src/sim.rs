//! Simulated traffic for the batcher that also serves: discrete events, no clock, the same result every time.
//!
//! In: a [`Batcher`], arrivals, and a machine, given by how long a batch takes on it. Out: a [`Report`]. One machine
//! runs one batch at a time; the batcher observes what each batch took, as in a server.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::candidate::Candidate;
use crate::dispatch::{Batcher, Decision, Request, RequestId};
use crate::error::SchedError;

/// One request of simulated traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When, since the start.
    pub at: Duration,
    /// Tokens.
    pub seq_len: u32,
}

/// Requests that arrive independently of each other, `rate` per second on average until `horizon`, with lengths
/// uniform over `lens`: the traffic of Fang et al., PPoPP'21, §6.3. The same `seed` gives the same traffic.
///
/// # Panics
/// When `lens` is empty or `rate` is not above 0 and finite.
#[must_use]
pub fn poisson(rate: f64, lens: RangeInclusive<u32>, horizon: Duration, seed: u64) -> Vec<Arrival> {
    assert!(!lens.is_empty(), "lengths {lens:?} are empty");
    assert!(rate > 0.0 && rate.is_finite(), "rate must be above 0 and finite, got {rate}");
    let mut random = SplitMix64(seed);
    let mut seconds = 0.0;
    let arrivals = std::iter::from_fn(|| {
        seconds -= (1.0 - random.unit()).ln() / rate; // inverse of the exponential distribution
        let width = f64::from(lens.end() - lens.start()) + 1.0;
        let seq_len = lens.start() + (random.unit() * width) as u32;
        let at = Duration::try_from_secs_f64(seconds).ok()?;
        (at < horizon).then_some(Arrival { at, seq_len })
    });
    arrivals.collect()
}

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Length of the run.
    pub horizon: Duration,
    /// Time from arrival to answer of every request answered within the horizon, ascending.
    pub latencies: Vec<Duration>,
    /// Tokens of each of these requests, and its latency; in the order in which they were answered.
    pub answered: Vec<(u32, Duration)>,
    /// Requests that ran when it ended.
    pub running: usize,
    /// Requests that had arrived and waited when it ended.
    pub waiting: usize,
    /// Batches started.
    pub batches: usize,
    /// Time within the horizon in which the machine ran.
    pub busy: Duration,
}

impl Report {
    /// Answers per second.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        self.latencies.len() as f64 / self.horizon.as_secs_f64()
    }

    /// Share of the time in which the machine ran: ρ. At 1 the queue grows for as long as the run lasts, and
    /// the latencies say more about its length than about the policy.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        self.busy.as_secs_f64() / self.horizon.as_secs_f64()
    }

    /// Mean latency; zero when nothing was answered.
    #[must_use]
    pub fn mean_latency(&self) -> Duration {
        let answered = u32::try_from(self.latencies.len()).unwrap_or(u32::MAX);
        self.latencies.iter().sum::<Duration>().checked_div(answered).unwrap_or_default()
    }

    /// Mean latency of requests of `seq_lens` tokens; zero when none was answered.
    #[must_use]
    pub fn mean_latency_of(&self, seq_lens: RangeInclusive<u32>) -> Duration {
        let of_them = self.answered.iter().filter(|(seq_len, _)| seq_lens.contains(seq_len));
        let (sum, count) =
            of_them.fold((Duration::ZERO, 0), |(sum, n), (_, latency)| (sum + *latency, n + 1));
        sum.checked_div(count).unwrap_or_default()
    }

    /// The latency that a share of the answers, 0 to 1, did not exceed; zero when nothing was answered.
    #[must_use]
    pub fn latency_at(&self, share: f64) -> Duration {
        let rank = (share * self.latencies.len() as f64).ceil() as usize;
        self.latencies.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }
}

/// Runs `arrivals` (ascending in time) through `batcher` until `horizon`. `machine` says how long a batch takes.
///
/// The batcher keeps what it has learnt; requests that still wait in it are taken back first.
///
/// # Errors
/// Those of [`Batcher::observe`], when `machine` returns zero.
pub fn run(
    batcher: &mut Batcher,
    arrivals: &[Arrival],
    machine: impl Fn(&Candidate) -> Duration,
    horizon: Duration,
) -> Result<Report, SchedError> {
    batcher.cancel_all(|_| true);
    let mut report = Report {
        horizon,
        latencies: Vec::new(),
        answered: Vec::new(),
        running: 0,
        waiting: 0,
        batches: 0,
        busy: Duration::ZERO,
    };
    let mut coming = arrivals.iter().zip(0..).peekable();
    let mut now = Duration::ZERO;
    while now < horizon {
        while let Some((arrival, id)) = coming.next_if(|(arrival, _)| arrival.at <= now) {
            batcher.push(Request::new(RequestId(id), arrival.seq_len, arrival.at));
        }
        let next_arrival = coming.peek().map_or(horizon, |(arrival, _)| arrival.at);
        now = match batcher.poll(now) {
            Decision::Idle => next_arrival,
            Decision::WaitUntil(moment) => moment.min(next_arrival),
            Decision::Run(batch) => {
                let (candidate, time) = (batch.candidate, machine(&batch.candidate));
                let done = now.saturating_add(time);
                report.batches += 1;
                report.busy += done.min(horizon) - now;
                if done <= horizon {
                    let answer = |id: &RequestId| {
                        let arrival = arrivals[id.0 as usize];
                        (arrival.seq_len, done - arrival.at)
                    };
                    report.answered.extend(batch.ids.iter().map(answer));
                } else {
                    report.running = batch.ids.len();
                }
                batcher.observe(&candidate, time)?;
                done
            }
        };
    }
    report.waiting = batcher.len() + coming.filter(|(arrival, _)| arrival.at < horizon).count();
    report.latencies.extend(report.answered.iter().map(|(_, latency)| *latency));
    report.latencies.sort_unstable();
    Ok(report)
}

/// Steele, Lea and Flood's generator, OOPSLA'14: a counter and a mixing function.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform over [0, 1), with the 53 bits that an `f64` holds.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_has_the_rate_and_the_lengths_asked_for() {
        let horizon = Duration::from_secs(200);
        let arrivals = poisson(50.0, 2..=100, horizon, 7);
        assert_eq!(arrivals, poisson(50.0, 2..=100, horizon, 7));
        assert_ne!(arrivals, poisson(50.0, 2..=100, horizon, 8));
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.at));

        // 10 000 expected, standard deviation 100; mean length 51, standard deviation 0.29.
        assert!((9_500..10_500).contains(&arrivals.len()), "{}", arrivals.len());
        let mean =
            arrivals.iter().map(|arrival| f64::from(arrival.seq_len)).sum::<f64>() / arrivals.len() as f64;
        assert!((mean - 51.0).abs() < 1.5, "{mean}");
        let lens = || arrivals.iter().map(|arrival| arrival.seq_len);
        assert_eq!((lens().min(), lens().max()), (Some(2), Some(100)));

        // Of an exponential distribution 1 − 1/e lie below its mean.
        let short =
            arrivals.windows(2).filter(|pair| pair[1].at - pair[0].at < Duration::from_millis(20)).count();
        assert!((short as f64 / arrivals.len() as f64 - 0.632).abs() < 0.02, "{short}");
    }

    #[test]
    fn the_generator_is_the_published_one() {
        let mut random = SplitMix64(1_234_567);
        let first = [random.next(), random.next(), random.next()];
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn percentiles_are_latencies_that_occurred() {
        let latencies = (1..=200).map(Duration::from_millis).collect();
        let horizon = Duration::from_secs(2);
        let answered = vec![(5, horizon), (6, horizon / 2), (7, horizon)];
        let report =
            Report { horizon, latencies, answered, running: 0, waiting: 0, batches: 3, busy: horizon / 4 };
        assert_eq!(report.mean_latency_of(5..=6), Duration::from_millis(1500));
        assert_eq!(report.mean_latency_of(8..=9), Duration::ZERO);
        for (share, millis) in [(0.0, 1), (0.5, 100), (0.99, 198), (1.0, 200)] {
            assert_eq!(report.latency_at(share), Duration::from_millis(millis), "{share}");
        }
        assert_eq!(report.mean_latency(), Duration::from_micros(100_500));
        assert_eq!((report.throughput(), report.utilisation()), (100.0, 0.25));
    }
}
