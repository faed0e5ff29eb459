//! Batches one behind the other: the host prepares the next batch while the GPU computes the present one.
//!
//! ```text
//! host  │pack, plan, launch 0│pack, plan, launch 1│  looks  │read 0│pack, plan, launch 2│  looks  │read 1│ ..
//! GPU                        │ 0                            │ 1                                  │ 2 ..
//! ```
//!
//! All times are from the host's clock, so they say when the host saw something. A GPU's computation counts up to the
//! last moment at which the host saw it compute: a batch that ends while the host does something else hides no more
//! than was seen. Plans are kept, as they are when a model is served, so planning means finding a plan.

use std::{iter, ops::Range};

use serde::{Deserialize, Serialize};

use super::contest::{self, Timed};

/// The contestant that waits for a batch and reads it before it begins the next one.
pub const AFTER: &str = "one after the other";
/// The contestant that begins the next batch while one is computed.
pub const BEHIND: &str = "one behind the other";

/// The stages of a batch, in this order; µs since the first batch was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flight {
    /// The host began to pack, plan and launch it.
    pub begun_us: u64,
    /// The host had launched it.
    pub launched_us: u64,
    /// It was last seen not to be done; `launched_us` if it never was.
    pub running_us: u64,
    /// It was seen to be done.
    pub done_us: u64,
    /// The host had read its rows.
    pub read_us: u64,
}

/// All batches, in the order in which they were begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline(pub Vec<Flight>);

/// The same batches in both ways, from ids to rows on the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    /// Tokens of all batches.
    pub tokens: u64,
    /// What all batches take, [`AFTER`] and [`BEHIND`].
    pub times: Vec<Timed>,
    /// One run of [`BEHIND`].
    pub timeline: Timeline,
}

impl Overlap {
    /// Tokens per second of one of the two.
    #[must_use]
    pub fn tokens_per_s(&self, who: &str) -> Option<f64> {
        Some(self.tokens as f64 / contest::of(&self.times, who)?.median_us * 1e6)
    }

    /// Tokens per second of [`BEHIND`] over those of [`AFTER`].
    #[must_use]
    pub fn gain(&self) -> Option<f64> {
        Some(self.tokens_per_s(BEHIND)? / self.tokens_per_s(AFTER)?)
    }
}

impl Timeline {
    /// When the GPU computed each batch, as far as was seen. This begins when the batch was launched and the one before
    /// was done.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        let free = iter::once(0).chain(self.0.iter().map(|before| before.done_us));
        self.0.iter().zip(free).map(|(flight, free)| {
            let start = flight.launched_us.max(free);
            start..flight.running_us.max(start)
        })
    }

    /// Share of packing, planning and launching that happened while the GPU computed another batch. The first batch
    /// does not count, since there is none before it; `None` if there is no other.
    #[must_use]
    pub fn hidden(&self) -> Option<f64> {
        let work = || self.0.iter().skip(1).map(|flight| flight.begun_us..flight.launched_us);
        let of = |work: Range<u64>| {
            // no two runs overlap, and none begins before its batch was launched
            self.runs().map(|run| len(work.start.max(run.start)..work.end.min(run.end))).sum::<u64>()
        };
        let all: u64 = work().map(len).sum();
        (all > 0).then(|| work().map(of).sum::<u64>() as f64 / all as f64)
    }

    /// Whether the timeline is possible: nothing happens before what it follows.
    #[must_use]
    pub fn is_in_order(&self) -> bool {
        let of_one =
            |it: &Flight| [it.begun_us, it.launched_us, it.running_us, it.done_us, it.read_us].is_sorted();
        let of_two =
            |pair: &[Flight]| pair[0].launched_us <= pair[1].begun_us && pair[0].read_us <= pair[1].done_us;
        self.0.iter().all(of_one) && self.0.windows(2).all(of_two)
    }
}

fn len(range: Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches, each with the times at which it was begun, launched, last seen running, seen to be done, and read.
    fn timeline(flights: &[[u64; 5]]) -> Timeline {
        let flight = |&[begun_us, launched_us, running_us, done_us, read_us]: &[u64; 5]| Flight {
            begun_us,
            launched_us,
            running_us,
            done_us,
            read_us,
        };
        Timeline(flights.iter().map(flight).collect())
    }

    #[test]
    fn the_share_is_that_of_the_work_beside_another_batch() {
        let hidden = |flights: &[[u64; 5]]| {
            assert!(timeline(flights).is_in_order(), "{flights:?}");
            timeline(flights).hidden()
        };
        let after = [[0, 10, 98, 100, 105], [105, 115, 198, 200, 205], [205, 215, 298, 300, 305]];
        assert_eq!(hidden(&after), Some(0.0));
        let behind = [[0, 10, 98, 100, 105], [10, 20, 198, 200, 205], [105, 115, 298, 300, 305]];
        assert_eq!(hidden(&behind), Some(1.0));
        // the first is done while the second is launched, at an unknown time, but not before 14
        let late = [[0, 10, 14, 20, 25], [12, 20, 198, 200, 205], [105, 115, 298, 300, 305]];
        assert_eq!(hidden(&late), Some((2 + 10) as f64 / (8 + 10) as f64));
        let never_seen = [[0, 10, 10, 20, 25], [10, 20, 25, 25, 30]];
        assert_eq!(hidden(&never_seen), Some(0.0));
        assert_eq!((hidden(&behind[..1]), hidden(&[])), (None, None));
    }

    #[test]
    fn the_gpu_has_one_batch_at_a_time() {
        let behind = timeline(&[[0, 10, 98, 100, 105], [10, 20, 198, 200, 205], [105, 115, 116, 250, 255]]);
        assert_eq!(behind.runs().collect::<Vec<_>>(), [10..98, 100..198, 200..200]);
    }

    #[test]
    fn what_goes_backwards_is_seen() {
        let good = [[0, 10, 98, 100, 105], [10, 20, 198, 200, 205]];
        assert!(timeline(&good).is_in_order());
        for (batch, place, us) in [(0, 1, 11), (0, 0, 11), (0, 4, 99), (0, 4, 201), (1, 0, 9), (1, 2, 19)] {
            let mut bad = good;
            bad[batch][place] = us;
            assert!(!timeline(&bad).is_in_order(), "{bad:?}");
        }
    }

    #[test]
    fn the_ratio_is_of_tokens_a_second() {
        let timed = |who: &str, median_us: f64| Timed {
            who: who.to_owned(),
            median_us,
            p10_us: median_us,
            p90_us: median_us,
            turns: 1,
            runs: 1,
        };
        let times = vec![timed(AFTER, 125.0), timed(BEHIND, 100.0)];
        let mut overlap = Overlap { tokens: 200, times, timeline: timeline(&[]) };
        assert_eq!((overlap.tokens_per_s(BEHIND), overlap.gain()), (Some(2e6), Some(1.25)));
        overlap.times.pop();
        assert_eq!(overlap.gain(), None);
    }
}
