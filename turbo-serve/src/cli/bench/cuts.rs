//! The cheapest cuts of a queue: packed costs measured on the spot, then turbo-sched's dynamic program over all of it.

use std::{
    collections::BTreeSet,
    num::{NonZeroU64, NonZeroUsize},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use turbo_sched::{BatchTotal, Candidate, Layout, Limits, PackedCost, split};
use turbo_serve::engine::{BatchTokens, LONG_RUN, fastest};

use super::engine::Engine;

/// Batch sizes that are measured.
const SIZES: [usize; 3] = [1, 4, 16];

/// How many consecutive requests each batch takes, within the tokens that a server's batches
/// may have; no client waits for the end of one, so their time has no limit.
///
/// # Errors
/// What the engine fails with.
pub(super) fn cheapest(engine: &mut Engine, lengths: &[u32], budget: Duration) -> Result<Vec<usize>> {
    let tokens = NonZeroU64::new(BatchTokens::MOST as u64);
    let limits = Limits {
        max_batch_size: NonZeroUsize::MAX,
        max_batch_tokens: tokens.context("a server's batches hold tokens")?,
    };
    let cost = measure(engine, lengths, &limits, budget)?;
    Ok(split(lengths, &limits, Layout::Packed, |candidate| cost.cost(candidate)))
}

/// Batches of the shortest, the median and the longest length, from the smallest batch up as far as `budget` reaches.
fn measure(engine: &mut Engine, lengths: &[u32], limits: &Limits, budget: Duration) -> Result<PackedCost> {
    let started = Instant::now();
    let mut measured: Vec<(Candidate, BatchTotal)> = Vec::new();
    for seq_lens in grid(lengths) {
        let candidate: Candidate = seq_lens.iter().copied().collect();
        let predicted = measured.last().map_or(Duration::ZERO, |(largest, cost)| {
            cost.as_duration().mul_f64(candidate.total_tokens as f64 / largest.total_tokens as f64)
        });
        if !limits.admits(Layout::Packed, &candidate) || started.elapsed() + predicted > budget.max(LONG_RUN)
        {
            continue;
        }
        let batch = engine.batch(&seq_lens)?;
        let fastest = fastest(|| engine.time(&batch))?;
        measured.push((candidate, BatchTotal::from_duration(fastest.max(Duration::from_nanos(1)))));
    }
    Ok(PackedCost::fit(measured)?)
}

/// Lengths of the batches to measure, those of fewest tokens first.
fn grid(lengths: &[u32]) -> Vec<Vec<u32>> {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    let probes = [sorted.first(), sorted.get(sorted.len() / 2), sorted.last()];
    let probes: BTreeSet<u32> = probes.into_iter().flatten().copied().collect();
    let batches = probes.iter().flat_map(|&len| SIZES.map(|size| vec![len; size]));
    let mut batches: Vec<Vec<u32>> = batches.collect();
    batches.sort_by_key(|batch| batch.iter().sum::<u32>());
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_alone_and_together_are_measured() {
        let grid = grid(&[40, 7, 500]);
        assert_eq!(grid.len(), 9);
        assert_eq!((&grid[0], &grid[8]), (&vec![7], &vec![500; 16]));
        assert_eq!(super::grid(&[5, 5]).len(), 3);
    }
}
