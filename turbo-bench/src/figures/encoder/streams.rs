//! A stream of requests of all lengths, all waiting from the start, cut into batches by different policies.

use std::{
    fmt,
    num::{NonZeroU64, NonZeroUsize},
    thread::sleep,
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use turbo_sched::{BatchTotal, Candidate, Layout, Limits, PackedCost, split};

use super::{
    Case, Field, Floor, Subject, TURBO,
    cases::{PAUSE, mean},
    quantile, rounded,
};
use crate::{load::Ticks, progress, workload};

/// Most tokens of a batch that the dynamic program forms: what a turbo server has by default.
const MAX_BATCH_TOKENS: u64 = 16_384;
/// Everyone's stream is run in so many pieces, in turns.
const PIECES: usize = 10;
/// Seed of the lengths.
const SEED: u64 = 0;

/// Which requests share a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// One at a time.
    Single,
    /// In order of arrival, so many at a time.
    Naive(usize),
    /// In order of length, so many at a time.
    Sorted(usize),
    /// The cheapest cuts by measured costs; turbo's alone.
    Dp,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => f.pad("one at a time"),
            Self::Naive(size) => f.pad(&format!("{size} in order of arrival")),
            Self::Sorted(size) => f.pad(&format!("{size} in order of length")),
            Self::Dp => f.pad("cheapest cuts by measured cost"),
        }
    }
}

impl Policy {
    /// `lens` in batches; `cut` says how many consecutive requests each batch takes, and [`Policy::Dp`] alone asks.
    fn batches(self, lens: &[u32], cut: impl FnOnce(&[u32]) -> Result<Vec<usize>>) -> Result<Vec<Vec<u32>>> {
        let chunks = |lens: &[u32], size: usize| lens.chunks(size).map(<[u32]>::to_vec).collect();
        Ok(match self {
            Self::Single => chunks(lens, 1),
            Self::Naive(size) => chunks(lens, size),
            Self::Sorted(size) => {
                let mut sorted = lens.to_vec();
                sorted.sort_unstable();
                chunks(&sorted, size)
            }
            Self::Dp => {
                let (mut rest, mut batches) = (lens, Vec::new());
                for size in cut(lens)? {
                    let (batch, after) = rest.split_at(size);
                    batches.push(batch.to_vec());
                    rest = after;
                }
                batches
            }
        })
    }
}

/// What one rival takes for the stream under one policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stream {
    /// The model.
    pub model: String,
    /// Who computed.
    pub rival: String,
    /// How the stream was cut.
    pub policy: Policy,
    /// Requests of the stream.
    pub requests: usize,
    /// Tokens of all of them.
    pub tokens: u64,
    /// Batches that they made.
    pub batches: usize,
    /// Times that the stream was run.
    pub rounds: usize,
    /// Median of the rounds, s.
    pub median_s: f64,
    /// A tenth of the rounds was faster, s.
    pub p10_s: f64,
    /// A tenth of the rounds was slower, s.
    pub p90_s: f64,
    /// What the machine can do at best with these batches, s.
    pub floor_s: f64,
    /// Share of the machine that other processes used meanwhile.
    pub foreign_cpu: Option<f64>,
}

/// One rival with one policy.
struct Track {
    rival: usize,
    policy: Policy,
    batches: Vec<Vec<u32>>,
    /// Seconds of each round.
    rounds: Vec<f64>,
    foreign: Vec<f64>,
}

/// Measures the stream of a model; `cases` are what its batches cost.
///
/// # Errors
/// What a rival fails with.
pub(super) fn run(
    subject: &Subject,
    field: &mut Field,
    floor: &Floor,
    cases: &[Case],
) -> Result<Vec<Stream>> {
    let lens = workload::uniform(&subject.stream_lens, subject.stream_requests, SEED);
    let lens: Vec<u32> = lens.into_iter().map(|len| len as u32).collect();
    let mut tracks = tracks(subject, field, &lens, cases)?;
    let bar = progress::bar(&format!("{}: stream", subject.model), subject.stream_rounds * PIECES)?;
    for round in 0..subject.stream_rounds {
        tracks.iter_mut().for_each(|track| track.rounds.push(0.0));
        for piece in 0..PIECES {
            for turn in 0..tracks.len() {
                let count = tracks.len();
                tracks[(turn + piece) % count].run(field, piece, round)?;
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let stream = |track: &Track| Stream {
        model: subject.model.clone(),
        rival: field.rivals[track.rival].name().to_owned(),
        policy: track.policy,
        requests: lens.len(),
        tokens: lens.iter().map(|&len| u64::from(len)).sum(),
        batches: track.batches.len(),
        rounds: track.rounds.len(),
        median_s: rounded(quantile(&track.rounds, 0.5)),
        p10_s: rounded(quantile(&track.rounds, 0.1)),
        p90_s: rounded(quantile(&track.rounds, 0.9)),
        floor_s: rounded(track.batches.iter().map(|batch| floor.ms(batch)).sum::<f64>() / 1e3),
        foreign_cpu: mean(&track.foreign),
    };
    Ok(tracks.iter().map(stream).collect())
}

/// Every rival with every policy that it has.
fn tracks(subject: &Subject, field: &Field, lens: &[u32], cases: &[Case]) -> Result<Vec<Track>> {
    let mut tracks = Vec::new();
    for &policy in &subject.policies {
        for (rival, it) in field.rivals.iter().enumerate() {
            if policy == Policy::Dp && it.name() != TURBO {
                continue;
            }
            let batches = policy.batches(lens, |lens| cheapest(lens, cases))?;
            tracks.push(Track { rival, policy, batches, rounds: Vec::new(), foreign: Vec::new() });
        }
    }
    Ok(tracks)
}

impl Track {
    /// Runs one piece of the stream once.
    fn run(&mut self, field: &mut Field, piece: usize, round: usize) -> Result<()> {
        let at = |piece: usize| piece * self.batches.len() / PIECES;
        let batches = &self.batches[at(piece)..at(piece + 1)];
        if batches.is_empty() {
            return Ok(());
        }
        sleep(PAUSE);
        let rival = &mut field.rivals[self.rival];
        let ours = [rival.process_id()];
        let start = Ticks::now(&ours);
        let ms = rival.time(batches, 0, 1)?;
        let both = start.zip(Ticks::now(&ours));
        self.foreign.extend(both.map(|(start, end)| end.others_since(&start)));
        self.rounds[round] += ms.concat().iter().sum::<f64>() / 1e3;
        Ok(())
    }
}

/// The cuts of least total cost, by the medians that were just measured of turbo.
fn cheapest(lens: &[u32], cases: &[Case]) -> Result<Vec<usize>> {
    let measured = cases.iter().filter(|case| case.rival == TURBO).map(|case| {
        let batch: Candidate = std::iter::repeat_n(case.seq_len, case.batch_size).collect();
        (batch, BatchTotal(case.median_ms / 1e3))
    });
    let cost = PackedCost::fit(measured).context("turbo was measured at no case")?;
    let limits = Limits {
        max_batch_size: NonZeroUsize::MAX,
        max_batch_tokens: NonZeroU64::new(MAX_BATCH_TOKENS).context("a batch holds tokens")?,
    };
    Ok(split(lens, &limits, Layout::Packed, |candidate| cost.cost(candidate)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_cut_the_stream() {
        let batches = |policy: Policy| policy.batches(&[5, 3, 9, 1], |_| Ok(vec![1, 3])).unwrap();
        assert_eq!(batches(Policy::Single), [[5], [3], [9], [1]]);
        assert_eq!(batches(Policy::Naive(3)), [vec![5, 3, 9], vec![1]]);
        assert_eq!(batches(Policy::Sorted(3)), [vec![1, 3, 5], vec![9]]);
        assert_eq!(batches(Policy::Dp), [vec![5], vec![3, 9, 1]]);
    }

    #[test]
    fn short_requests_share_a_batch_where_that_is_cheaper() {
        let case = |batch_size: usize, seq_len: u32| Case {
            model: "m".into(),
            rival: TURBO.into(),
            batch_size,
            seq_len,
            median_ms: 10.0 + 0.5 * batch_size as f64 * f64::from(seq_len),
            p10_ms: 0.0,
            p90_ms: 0.0,
            runs: 1,
            floor_ms: 0.0,
            foreign_cpu: None,
        };
        let cases = [case(1, 10), case(1, 500), case(8, 128), case(32, 40)];
        assert_eq!(cheapest(&[10; 6], &cases).unwrap(), [6]);
        let most = MAX_BATCH_TOKENS as usize / 500;
        let cuts = cheapest(&[500; 40], &cases).unwrap();
        assert_eq!((cuts.len(), cuts.iter().sum()), (2, 40));
        assert!(cuts.iter().all(|&size| size <= most), "{cuts:?}");
    }
}
