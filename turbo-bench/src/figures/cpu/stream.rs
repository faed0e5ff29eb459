//! A stream of requests of all lengths that all wait from the start. Each rival runs it under its best policy.
//!
//! A fifth of the batches of each policy, spread evenly, decides which policy is best: all rivals run them twice, and
//! the least time of each batch counts. The whole stream is then run under the best policy only, and only by rivals
//! that have a chance. For the others the estimate stands, unless other processes used the machine in all looks.
//!
//! Every batch's shape is run before the rounds, because some engines prepare for a shape when they first see it, and a
//! server has seen them all. Batches of a second or more are not run before: preparing takes little beside that.

use std::{
    fmt,
    num::{NonZeroU64, NonZeroUsize},
    ops::RangeInclusive,
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use turbo_sched::{BatchTotal, Candidate, Layout, Limits, PackedCost, split};

use super::{
    Precision, TURBO,
    ceilings::Limit,
    regime::equal,
    turn::{BELIEVED_MS, DISTURBING, Times, look, runs_of},
};
use crate::{
    figures::{
        numbers::{quantile, rounded},
        order::order,
    },
    load::Used,
    progress::Timeline,
    rival::Rival,
    workload,
};

/// Seconds of the largest batch that the dynamic programme forms: the bound of `turbo serve` on a CPU.
const LONGEST_BATCH: f64 = 0.1;
/// Batches from which turbo's costs are measured.
const COSTS: [(usize, u32); 6] = [(1, 10), (1, 40), (1, 128), (1, 500), (8, 128), (20, 40)];
/// One in so many batches is run to find the best policy.
pub(super) const PROBE: usize = 5;
/// Looks at each rival; in the first one, shapes are new.
pub(super) const LOOKS: usize = 2;
/// The most looks at a rival that seems to have no chance while other processes use the machine.
const MOST_LOOKS: usize = 4;
/// The time of the looks, in rounds: a fifth under each policy, also for rivals that have no rounds.
const LOOKED: f64 = 2.0;
/// The time between the looks and the rounds, in rounds: every shape of the winners is run once.
const PREPARED: f64 = 1.0;
/// Pieces in which the stream of each rival is run, in turns.
const PIECES: usize = 10;
/// A rival whose estimate is this many times the best rival's is not run in full.
pub(super) const HOPELESS: f64 = 1.5;
/// Seed of the lengths.
const SEED: u64 = 0;

/// Which requests share a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// One request at a time.
    Single,
    /// In order of arrival, so many requests at a time.
    Naive(usize),
    /// In order of length, so many requests at a time.
    Sorted(usize),
    /// In order of arrival, cut where it is cheapest by measured costs; only for turbo.
    Dp,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => f.pad("one by one"),
            Self::Naive(size) => f.pad(&format!("{size} at a time")),
            Self::Sorted(size) => f.pad(&format!("sorted, {size} at a time")),
            Self::Dp => f.pad("cheapest cuts"),
        }
    }
}

impl Policy {
    /// The policies that a rival may choose from. turbo keeps the order of arrival. The others sort, since sorted
    /// batches of the same size are padded less.
    pub(super) fn of(rival: &str) -> &'static [Self] {
        if rival == TURBO {
            &[Self::Single, Self::Naive(20), Self::Dp]
        } else {
            &[Self::Single, Self::Sorted(4), Self::Sorted(8), Self::Sorted(20)]
        }
    }

    /// Forms batches of `lens`. `cut`, which only [`Policy::Dp`] calls, gives the number of consecutive requests in
    /// each batch.
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

/// The time of one rival for the stream under its best policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stream {
    /// The engine that computed it.
    pub rival: String,
    /// How the stream was cut.
    pub policy: Policy,
    /// Shortest and longest request.
    pub lens: RangeInclusive<usize>,
    /// Requests of the stream.
    pub requests: usize,
    /// Tokens of all of them.
    pub tokens: u64,
    /// Batches that they made.
    pub batches: usize,
    /// How often the whole stream was run; 0 if a fifth of it showed that there is no chance.
    pub rounds: usize,
    /// Median of the rounds, s; an estimate if there are none.
    pub median_s: f64,
    /// Seconds of each round.
    pub rounds_s: Vec<f64>,
    /// Estimated seconds of every policy.
    pub estimates_s: Vec<(Policy, f64)>,
    /// The least time that the machine allows, s.
    pub floor_s: f64,
    /// Share of the machine that other processes used meanwhile; if there are no rounds, in the quietest look.
    pub foreign_cpu: Option<f64>,
}

/// One rival with its best policy.
struct Track {
    policy: Policy,
    batches: Vec<Vec<u32>>,
    /// The batch that a turn begins with, uncounted: the smallest one, which wakes threads and touches all weights as
    /// well as any other.
    warm_up: Vec<u32>,
    estimates: Vec<(Policy, f64)>,
    /// Share of the machine that other processes used in the quietest look.
    foreign: Option<f64>,
    takes_part: bool,
    /// Seconds of each round.
    rounds: Vec<f64>,
    times: Times,
}

/// Measures a stream in so many rounds.
///
/// # Errors
/// When a rival fails.
pub(super) fn run(
    (range, requests): (&RangeInclusive<usize>, usize),
    rivals: &mut [&mut Rival],
    limit: &mut Limit<'_>,
    rounds: usize,
    timeline: &mut Timeline,
) -> Result<Vec<Stream>> {
    let lens: Vec<u32> = lens(range, requests);
    let of_round = 1.0 / (rounds as f64 + LOOKED + PREPARED);
    let mut tracks = probe(&lens, rivals, timeline, LOOKED * of_round)?;
    for (rival, track) in rivals.iter_mut().zip(&tracks).filter(|(_, track)| track.takes_part) {
        rival.time(&track.new_shapes(), 0, 1)?;
        timeline.done(PREPARED * of_round / tracks.len() as f64);
    }
    for round in 0..rounds {
        limit.look()?;
        for piece in 0..PIECES {
            for who in order(tracks.len(), round, piece) {
                if tracks[who].takes_part {
                    tracks[who].run(rivals[who], piece, round)?;
                }
            }
            timeline.done(of_round / PIECES as f64);
        }
    }
    let floor_s = rounded(limit.ms(&lens, Precision::F32) / 1e3);
    let stream = |rival: &str, track: Track| {
        let estimates = track.estimates.iter().map(|&(policy, seconds)| (policy, rounded(seconds)));
        let (median, foreign_cpu) = match track.rounds.is_empty() {
            true => (track.estimate(), track.foreign),
            false => (quantile(&track.rounds, 0.5), track.times.used.share()),
        };
        Stream {
            rival: rival.to_owned(),
            policy: track.policy,
            lens: range.clone(),
            requests,
            tokens: lens.iter().map(|&len| u64::from(len)).sum(),
            batches: track.batches.len(),
            rounds: track.rounds.len(),
            median_s: rounded(median),
            rounds_s: track.rounds.iter().map(|&seconds| rounded(seconds)).collect(),
            estimates_s: estimates.collect(),
            floor_s,
            foreign_cpu,
        }
    };
    Ok(rivals.iter().zip(tracks).map(|(rival, track)| stream(rival.name(), track)).collect())
}

/// The lengths of a stream, in order of arrival.
pub(super) fn lens(range: &RangeInclusive<usize>, requests: usize) -> Vec<u32> {
    workload::uniform(range, requests, SEED).into_iter().map(|len| len as u32).collect()
}

/// Each rival with the policy that a fifth of its batches shows to be the best.
fn probe(lens: &[u32], rivals: &mut [&mut Rival], timeline: &mut Timeline, share: f64) -> Result<Vec<Track>> {
    let mut probes = rivals.iter_mut().map(|rival| Probe::new(rival, lens)).collect::<Result<Vec<_>>>()?;
    for look in 0..MOST_LOOKS {
        let worth = worth(&probes);
        for who in order(probes.len(), look, PIECES) {
            let probe = &mut probes[who];
            if look < LOOKS || probe.is_in_doubt(worth) {
                let foreign = probe.look(rivals[who])?;
                // A look with new shapes says nothing, however quiet the machine was.
                if look > 0 {
                    probe.foreign.push(foreign);
                }
            }
        }
        if look < LOOKS {
            timeline.done(share / LOOKS as f64);
        }
    }
    let worth = worth(&probes);
    probes.into_iter().map(|probe| probe.track(worth)).collect()
}

/// The most seconds for the whole stream at which a rival has a chance.
fn worth(probes: &[Probe]) -> f64 {
    let others = probes.iter().filter(|probe| !probe.is_turbo).map(Probe::estimate);
    HOPELESS * others.fold(f64::INFINITY, f64::min)
}

/// A fifth of the batches, spread evenly.
fn sample(batches: &[Vec<u32>]) -> Vec<Vec<u32>> {
    batches.iter().skip((PROBE / 2).min(batches.len() - 1)).step_by(PROBE).cloned().collect()
}

/// The batches without duplicates.
fn distinct(batches: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut all = batches.to_vec();
    all.sort_unstable();
    all.dedup();
    all
}

/// The batch with the fewest tokens.
fn smallest(batches: &[Vec<u32>]) -> Vec<u32> {
    batches.iter().min_by_key(|batch| batch.iter().sum::<u32>()).cloned().unwrap_or_default()
}

/// Tokens of the batches, including padding.
fn padded_tokens(batches: &[Vec<u32>]) -> f64 {
    batches.iter().map(|batch| f64::from(batch.iter().copied().max().unwrap_or(0)) * batch.len() as f64).sum()
}

/// One rival under each of its policies.
struct Probe {
    is_turbo: bool,
    trials: Vec<Trial>,
    /// Share of the machine that other processes used in each look except the first.
    foreign: Vec<Option<f64>>,
}

impl Probe {
    /// A probe without any look yet.
    fn new(rival: &mut Rival, lens: &[u32]) -> Result<Self> {
        let (policies, longest) = (Policy::of(rival.name()), lens.iter().copied().max().unwrap_or(1));
        let costs = if policies.contains(&Policy::Dp) { Some(costs(rival, longest)?) } else { None };
        let cut = |lens: &[u32]| {
            cheapest(lens, costs.as_ref().context("costs are known where they are asked for")?)
        };
        let trial = |&policy: &Policy| policy.batches(lens, cut).map(|batches| Trial::new(policy, batches));
        let trials = policies.iter().map(trial).collect::<Result<Vec<Trial>>>()?;
        Ok(Self { is_turbo: rival.name() == TURBO, trials, foreign: Vec::new() })
    }

    /// Runs every sample once. Returns the share of the machine that other processes used meanwhile.
    fn look(&mut self, rival: &mut Rival) -> Result<Option<f64>> {
        let used = self.trials.iter_mut().map(|trial| trial.look(rival)).sum::<Result<Used>>()?;
        Ok(used.share())
    }

    /// Seconds of the whole stream under the best policy.
    fn estimate(&self) -> f64 {
        self.trials.iter().map(Trial::estimate).fold(f64::INFINITY, f64::min)
    }

    /// Whether it seems to be too slow to take part.
    fn is_slow(&self, worth: f64) -> bool {
        !self.is_turbo && self.estimate() > worth
    }

    /// Whether it seems to be too slow, but other processes may be the reason.
    fn is_in_doubt(&self, worth: f64) -> bool {
        let is_disturbed = |share: &Option<f64>| share.is_some_and(|share| share > DISTURBING);
        self.is_slow(worth) && self.foreign.iter().all(is_disturbed)
    }

    /// The track of the best policy.
    fn track(self, worth: f64) -> Result<Track> {
        let takes_part = !self.is_slow(worth) || self.is_in_doubt(worth);
        let foreign = self.foreign.iter().copied().flatten().reduce(f64::min);
        let estimates = self.trials.iter().map(|trial| (trial.policy, trial.estimate())).collect();
        let best = self.trials.into_iter().min_by(|a, b| a.estimate().total_cmp(&b.estimate()));
        let Trial { policy, batches, .. } = best.context("everyone has a policy")?;
        let (warm_up, rounds, times) = (smallest(&batches), Vec::new(), Times::default());
        Ok(Track { policy, batches, warm_up, estimates, foreign, takes_part, rounds, times })
    }
}

/// One rival under one of its policies.
struct Trial {
    policy: Policy,
    batches: Vec<Vec<u32>>,
    sample: Vec<Vec<u32>>,
    /// The least time of each batch of the sample, ms.
    least: Vec<f64>,
}

impl Trial {
    fn new(policy: Policy, batches: Vec<Vec<u32>>) -> Self {
        let sample = sample(&batches);
        let least = vec![f64::INFINITY; sample.len()];
        Self { policy, batches, sample, least }
    }

    /// Runs the sample once. Returns what other processes used meanwhile.
    fn look(&mut self, rival: &mut Rival) -> Result<Used> {
        let mut times = Times::default();
        let all = times.batches(rival, &smallest(&self.batches), &self.sample)?;
        self.least.iter_mut().zip(all).for_each(|(least, ms)| *least = least.min(ms));
        Ok(times.used)
    }

    /// Seconds of the whole stream.
    fn estimate(&self) -> f64 {
        let seconds = self.least.iter().sum::<f64>() / 1e3;
        seconds * padded_tokens(&self.batches) / padded_tokens(&self.sample)
    }
}

impl Track {
    /// Seconds of the whole stream, estimated by the probe.
    fn estimate(&self) -> f64 {
        let of_policy = self.estimates.iter().find(|(policy, _)| *policy == self.policy);
        of_policy.map_or(f64::INFINITY, |&(_, seconds)| seconds)
    }

    /// The distinct batches to run before any counts, except those so long that their first run is believed.
    fn new_shapes(&self) -> Vec<Vec<u32>> {
        let of_token = 1e3 * self.estimate() / padded_tokens(&self.batches);
        let mut shapes = distinct(&self.batches);
        shapes.retain(|batch| of_token * padded_tokens(std::slice::from_ref(batch)) < BELIEVED_MS);
        shapes
    }

    /// Runs one piece of the stream once.
    fn run(&mut self, rival: &mut Rival, piece: usize, round: usize) -> Result<()> {
        let at = |piece: usize| piece * self.batches.len() / PIECES;
        let batches = &self.batches[at(piece)..at(piece + 1)];
        if self.rounds.len() <= round {
            self.rounds.push(0.0);
        }
        if !batches.is_empty() {
            self.rounds[round] +=
                self.times.batches(rival, &self.warm_up, batches)?.iter().sum::<f64>() / 1e3;
        }
        Ok(())
    }
}

/// Measures what batches of sequences up to `longest` cost turbo.
fn costs(turbo: &mut Rival, longest: u32) -> Result<PackedCost> {
    let mut measured = Vec::new();
    for (batch_size, seq_len) in COSTS.map(|(batch_size, seq_len)| (batch_size, seq_len.min(longest))) {
        let batch = equal(batch_size, seq_len);
        let runs = runs_of(look(turbo, &batch)?).min(5);
        let ms = quantile(&turbo.time(&[batch], 0, runs)?[0], 0.5);
        let candidate: Candidate = std::iter::repeat_n(seq_len, batch_size).collect();
        measured.push((candidate, BatchTotal(ms / 1e3)));
    }
    PackedCost::fit(measured).context("turbo was measured at no batch")
}

/// The cuts of least total cost.
fn cheapest(lens: &[u32], cost: &PackedCost) -> Result<Vec<usize>> {
    let longest = u64::from(lens.iter().copied().max().unwrap_or(1));
    // one request alone may take longer
    let tokens = ((LONGEST_BATCH / cost.per_token()) as u64).max(longest);
    let limits = Limits {
        max_batch_size: NonZeroUsize::MAX,
        max_batch_tokens: NonZeroU64::new(tokens).context("a request has tokens")?,
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
    fn a_sample_is_spread_and_never_empty() {
        let batches: Vec<Vec<u32>> = (1..=10).map(|len| vec![len; 2]).collect();
        assert_eq!(sample(&batches), [vec![3; 2], vec![8; 2]]);
        assert_eq!(sample(&batches[..1]).len(), 1);
        assert_eq!(padded_tokens(&[vec![3, 7], vec![5]]), 19.0);
    }

    #[test]
    fn every_shape_is_run_once_before_it_counts() {
        assert_eq!(distinct(&[vec![7], vec![3, 1], vec![7]]), [vec![3, 1], vec![7]]);
        assert_eq!(smallest(&[vec![7], vec![3, 1], vec![9]]), [3, 1]);
        // 20 ms a token: the second batch takes longer than a second.
        let track = Track {
            policy: Policy::Single,
            batches: vec![vec![30], vec![60], vec![10]],
            warm_up: vec![10],
            estimates: vec![(Policy::Single, 2.0)],
            foreign: None,
            takes_part: true,
            rounds: Vec::new(),
            times: Times::default(),
        };
        assert_eq!(track.new_shapes(), [[10], [30]]);
    }

    /// A trial of one batch, whose least time is that of the whole stream.
    fn probed(seconds: f64, foreign: &[f64]) -> Probe {
        let trial = Trial { least: vec![1e3 * seconds], ..Trial::new(Policy::Single, vec![vec![10]]) };
        Probe { is_turbo: false, trials: vec![trial], foreign: foreign.iter().copied().map(Some).collect() }
    }

    #[test]
    fn nobody_is_called_hopeless_by_looks_that_were_disturbed() {
        let worth = worth(&[probed(2.0, &[0.0]), probed(3.0, &[0.0])]);
        assert_eq!(worth, 2.0 * HOPELESS);
        for (seconds, foreign, in_doubt, takes_part) in [
            (2.9, [0.3, 0.3], false, true),
            (3.1, [0.3, 0.051], true, true),
            (3.1, [0.3, 0.05], false, false),
            (3.1, [0.0, 0.3], false, false),
        ] {
            let probe = probed(seconds, &foreign);
            assert_eq!(probe.is_in_doubt(worth), in_doubt, "{seconds} s, {foreign:?}");
            let track = probe.track(worth).unwrap();
            assert_eq!(track.takes_part, takes_part, "{seconds} s, {foreign:?}");
            assert_eq!(track.foreign, foreign.into_iter().reduce(f64::min), "of the quietest look");
        }
        let turbo = Probe { is_turbo: true, ..probed(9.0, &[0.0]) };
        assert!(turbo.track(worth).unwrap().takes_part, "whoever is compared takes part");
        let unknown = Probe { foreign: vec![None], ..probed(9.0, &[]) };
        assert!(!unknown.is_in_doubt(worth), "where nobody can tell there is no better look");
    }

    #[test]
    fn short_requests_share_a_batch_where_that_is_cheaper() {
        let measured = [(1, 10), (1, 500), (8, 128), (32, 40)].map(|(batch_size, seq_len): (usize, u32)| {
            let candidate: Candidate = std::iter::repeat_n(seq_len, batch_size).collect();
            (candidate, BatchTotal((10.0 + 0.5 * batch_size as f64 * f64::from(seq_len)) / 1e3))
        });
        let cost = PackedCost::fit(measured).unwrap();
        assert_eq!(cheapest(&[10; 6], &cost).unwrap(), [6]);
        // at half a millisecond per token, a tenth of a second is 200 tokens
        let cuts = cheapest(&[10; 50], &cost).unwrap();
        assert_eq!((cuts.len(), cuts.iter().sum()), (3, 50));
        assert!(cuts.iter().all(|&size| size <= 20), "{cuts:?}");
        assert_eq!(cheapest(&[500; 3], &cost).unwrap(), [1; 3]);
    }
}
