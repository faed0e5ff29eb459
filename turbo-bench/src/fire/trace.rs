//! The times and lengths of requests: drawn from a seed, or recorded.

use std::{fmt::Write, ops::RangeInclusive, time::Duration};

use anyhow::{Context, Result, bail};

use crate::workload;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// When it is sent, counted from the beginning.
    pub at: Duration,
    /// Number of tokens of its text.
    pub tokens: u32,
}

/// Requests in the order in which they are sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace(Vec<Arrival>);

/// First line of a recorded trace.
const HEAD: &str = "at_ms,tokens";
/// Mixed into the seed of lengths: they are drawn apart from times, so a trace has the same lengths at every rate.
const LENS: u64 = 0x6c65_6e73;

impl Trace {
    /// A Poisson process of `rate` requests per second for so long, with lengths uniform in `lens`. At another rate a
    /// seed gives the same trace, faster or slower.
    #[must_use]
    pub fn poisson(lens: &RangeInclusive<usize>, rate: f64, length: Duration, seed: u64) -> Self {
        let times = workload::gaps(seed).scan(0.0, |now, gap| {
            *now += gap / rate;
            Some(*now)
        });
        let times: Vec<f64> = times.take_while(|&at| at < length.as_secs_f64()).collect();
        let lens = workload::uniform(lens, times.len(), seed ^ LENS);
        let arrival = |(at, tokens)| Arrival { at: Duration::from_secs_f64(at), tokens: tokens as u32 };
        Self(times.into_iter().zip(lens).map(arrival).collect())
    }

    /// Reads `at_ms,tokens` and a line for each request, in order of time.
    ///
    /// # Errors
    /// When a line is something else; the error gives its number.
    pub fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().zip(1..);
        let head = lines.next().map_or("", |(line, _)| line);
        if head != HEAD {
            bail!("line 1: expected {HEAD:?}, got {head:?}");
        }
        let mut arrivals: Vec<Arrival> = Vec::new();
        for (line, number) in lines.filter(|(line, _)| !line.is_empty()) {
            let wrong =
                || format!("line {number}: expected milliseconds and tokens (`12.5,40`), got {line:?}");
            let (at_ms, tokens) = line.split_once(',').with_context(wrong)?;
            let at_ms: f64 = at_ms.parse().with_context(wrong)?;
            let tokens: u32 = tokens.parse().with_context(wrong)?;
            let at = Duration::try_from_secs_f64(at_ms / 1e3).with_context(wrong)?;
            if tokens == 0 || arrivals.last().is_some_and(|last| last.at > at) {
                bail!("line {number}: expected a token or more, not before the last line, got {line:?}");
            }
            arrivals.push(Arrival { at, tokens });
        }
        if arrivals.last().is_none_or(|last| last.at.is_zero()) {
            bail!("expected requests that take some time to come, got {}", arrivals.len());
        }
        Ok(Self(arrivals))
    }

    /// The trace in the format that [`Trace::parse`] reads.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{HEAD}\n");
        for Arrival { at, tokens } in &self.0 {
            _ = writeln!(text, "{:.3},{tokens}", at.as_secs_f64() * 1e3);
        }
        text
    }

    /// The same requests at another mean rate, repeated for so long. `share` chooses the request to begin with: 0 is
    /// the first, 0.5 the one in the middle.
    #[must_use]
    pub fn at_rate(&self, rate: f64, length: Duration, share: f64) -> Self {
        let first = (share * self.0.len() as f64) as usize;
        let Some(begin) = self.0.get(first).map(|it| it.at.as_secs_f64()) else { return Self(Vec::new()) };
        let (stretched, lap) = (self.rate() / rate, self.lap());
        let laps = (0_u32..).flat_map(|count| self.0.iter().map(move |it| (f64::from(count) * lap, it)));
        let arrivals = laps.skip(first).map(|(lap, it)| {
            let at = Duration::from_secs_f64((lap + it.at.as_secs_f64() - begin) * stretched);
            Arrival { at, ..*it }
        });
        Self(arrivals.take_while(|it| it.at < length).collect())
    }

    /// The requests.
    #[must_use]
    pub fn arrivals(&self) -> &[Arrival] {
        &self.0
    }

    /// Requests per second, on average.
    fn rate(&self) -> f64 {
        self.0.len() as f64 / self.lap()
    }

    /// The length of the trace in seconds, including a gap after the last request: a repetition begins then.
    fn lap(&self) -> f64 {
        let last = self.0.last().map_or(0.0, |last| last.at.as_secs_f64());
        last * (1.0 + 1.0 / self.0.len().max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: fn(f64) -> Duration = Duration::from_secs_f64;

    #[test]
    fn a_faster_trace_has_the_same_requests() {
        let [slow, fast] = [10.0, 40.0].map(|rate| Trace::poisson(&(5..=500), rate, SECONDS(100.0), 7));
        let (slow, fast) = (slow.arrivals(), fast.arrivals());
        assert!((3700..4300).contains(&fast.len()) && (900..1100).contains(&slow.len()), "{}", fast.len());
        for (slow, fast) in slow.iter().zip(fast) {
            assert!((slow.at.as_secs_f64() - 4.0 * fast.at.as_secs_f64()).abs() < 1e-6);
            assert_eq!(slow.tokens, fast.tokens);
        }
        assert_ne!(Trace::poisson(&(5..=500), 10.0, SECONDS(100.0), 8).arrivals()[..9], slow[..9]);
    }

    #[test]
    fn a_recorded_trace_is_read_as_it_was_written() {
        let drawn = Trace::poisson(&(2..=100), 50.0, SECONDS(2.0), 1);
        let read = Trace::parse(&drawn.text()).unwrap();
        assert_eq!(read.text(), drawn.text());
        for (text, said) in [
            ("", "line 1: expected \"at_ms,tokens\""),
            ("at_ms,tokens\n1,2\n3;4\n", "line 3: expected milliseconds"),
            ("at_ms,tokens\n1,2\n0.5,4\n", "line 3: expected a token or more, not before"),
            ("at_ms,tokens\n1,0\n", "line 2: expected a token or more"),
            ("at_ms,tokens\n-1,3\n", "line 2"),
            ("at_ms,tokens\n", "expected requests that take some time"),
        ] {
            let error = format!("{:#}", Trace::parse(text).unwrap_err());
            assert!(error.contains(said), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_trace_at_another_rate_is_as_long_as_wanted() {
        let recorded = Trace::parse("at_ms,tokens\n0,7\n100,8\n900,9\n").unwrap();
        // Three requests in 1.2 s; at ten times the rate each lap takes 120 ms.
        let fast = |share| -> Vec<(u128, u32)> {
            let fast = recorded.at_rate(25.0, SECONDS(0.25), share);
            fast.arrivals().iter().map(|it| (it.at.as_micros(), it.tokens)).collect()
        };
        let expected =
            [(0, 7), (10_000, 8), (90_000, 9), (120_000, 7), (130_000, 8), (210_000, 9), (240_000, 7)];
        assert_eq!(fast(0.0), expected);
        let expected =
            [(0, 8), (80_000, 9), (110_000, 7), (120_000, 8), (200_000, 9), (230_000, 7), (240_000, 8)];
        assert_eq!(fast(0.4), expected, "from the second on");
    }
}
