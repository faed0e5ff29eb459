//! What batches cost on this machine, measured before the first request.
//!
//! In: a runner, its capacity, a time budget. Out: the cost model that the batcher decides with. A sparse grid of
//! lengths and batch sizes is run from the smallest batch to the largest; what does not fit into the budget is left to
//! the model's extrapolation, and traffic corrects it later. Where an earlier run has left its costs, a few batches are
//! run to see whether they still hold.

use std::time::{Duration, Instant};

use turbo_sched::{BatchTotal, Candidate, CostModel, CostTable, Layout, PackedCost};

use super::{
    Capacity, RunError,
    cost_cache::CostCache,
    runner::{Progress, Runner, Sequence},
};

/// Lengths and batch sizes of the grid are powers of this, and the largest.
const STEP: usize = 4;
/// A point is run at most so often; the fastest run counts, the others were disturbed.
const RUNS: usize = 3;
/// A point that took this long is not run again: what disturbs a run is short against it.
const LONG: Duration = Duration::from_millis(100);

/// A line of the log so often while batches are measured.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Kept costs are given up when a batch takes so many times more or less: this is another machine, or a busy one, and
/// neither tells what batches cost now.
const ODD: f64 = 4.0;

/// The cost model of `runner`: what `cache` has kept, if it still holds; else measured within `budget`, and kept.
///
/// # Errors
/// Whatever the runner fails with.
pub(super) fn costs(
    runner: &mut dyn Runner,
    layout: Layout,
    vocab_size: usize,
    budget: Duration,
    cache: Option<&CostCache>,
) -> Result<CostModel, RunError> {
    if let Some(kept) = cache.and_then(CostCache::load).filter(|kept| kept.layout() == layout)
        && let Some(costs) = confirmed(kept, runner, vocab_size)?
    {
        return Ok(costs);
    }
    let costs = warm_up(runner, layout, vocab_size, budget)?;
    if let Some(cache) = cache {
        cache.save(costs.clone());
    }
    Ok(costs)
}

/// `kept`, having learnt from a few batches of this machine now; `None` where they contradict it. The batches are the
/// smallest, and larger ones that should take no longer than [`LONG`].
fn confirmed(
    mut kept: CostModel,
    runner: &mut dyn Runner,
    vocab_size: usize,
) -> Result<Option<CostModel>, RunError> {
    let started = Instant::now();
    let short = |&(seq_len, batch_size): &(u32, usize)| {
        kept.cost(&batch_of(seq_len, batch_size)).as_duration() <= LONG
    };
    let short: Vec<(u32, usize)> = grid(runner.capacity()).into_iter().filter(short).collect();
    let Some(last) = short.len().checked_sub(1) else { return Ok(None) };
    let mut points = vec![0, last / 2, last];
    points.dedup();
    for (seq_len, batch_size) in points.into_iter().map(|point| short[point]) {
        let time = measure(runner, seq_len, batch_size, vocab_size)?;
        let candidate = batch_of(seq_len, batch_size);
        let expected = kept.cost(&candidate).as_duration();
        let ratio = time.as_secs_f64() / expected.as_secs_f64();
        if !(1.0 / ODD..=ODD).contains(&ratio) {
            tracing::warn!(
                batch_size,
                seq_len,
                ?expected,
                ?time,
                "the kept costs do not hold: measured again"
            );
            return Ok(None);
        }
        kept.update(&candidate, BatchTotal::from_duration(time))?;
    }
    tracing::info!(took_ms = started.elapsed().as_millis() as u64, "warmed up, the kept costs hold");
    Ok(Some(kept))
}

/// The cost model of `runner`, from what was run within `budget`. The smallest point is always run.
///
/// # Errors
/// Whatever the runner fails with.
fn warm_up(
    runner: &mut dyn Runner,
    layout: Layout,
    vocab_size: usize,
    budget: Duration,
) -> Result<CostModel, RunError> {
    let started = Instant::now();
    let grid = grid(runner.capacity());
    let mut measured: Vec<(Candidate, Duration)> = Vec::with_capacity(grid.len());
    let mut extrapolated = Vec::new();
    let mut told = started;
    for &(seq_len, batch_size) in &grid {
        let candidate = batch_of(seq_len, batch_size);
        let left = budget.saturating_sub(started.elapsed());
        if !measured.is_empty() && predict(&measured, &candidate) > left {
            extrapolated.push(candidate);
            continue;
        }
        let time = measure(runner, seq_len, batch_size, vocab_size)?;
        tracing::debug!(batch_size, seq_len, time_us = time.as_micros() as u64, "measured");
        measured.push((candidate, time));
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            let seconds_left = budget.saturating_sub(started.elapsed()).as_secs();
            tracing::info!(
                measured = measured.len(),
                of = grid.len(),
                seconds_left,
                "measuring what batches cost"
            );
        }
    }
    let took_ms = started.elapsed().as_millis() as u64;
    tracing::info!(measured = measured.len(), extrapolated = extrapolated.len(), took_ms, "warmed up");
    if let Some(least) = extrapolated.first() {
        tracing::info!(
            batch_size = least.batch_size,
            seq_len = least.max_seq_len,
            "costs from this batch on are extrapolated until traffic shows them"
        );
    }
    cost_model(layout, &measured)
}

fn batch_of(seq_len: u32, batch_size: usize) -> Candidate {
    std::iter::repeat_n(seq_len, batch_size).collect()
}

fn cost_model(layout: Layout, measured: &[(Candidate, Duration)]) -> Result<CostModel, RunError> {
    // A clock may be too coarse to see the smallest batch.
    let seconds = |time: Duration| BatchTotal::from_duration(time.max(Duration::from_nanos(1)));
    Ok(match layout {
        Layout::Packed => {
            let packed = PackedCost::fit(measured.iter().map(|&(batch, time)| (batch, seconds(time))))?;
            CostModel::Packed(Box::new(packed))
        }
        Layout::Padded => CostModel::Padded(CostTable::from_measurements(
            measured.iter().map(|&(batch, time)| (batch.max_seq_len, batch.batch_size, seconds(time))),
        )?),
    })
}

/// Points `(seq_len, batch_size)` within `capacity`, in ascending order of their tokens.
fn grid(capacity: Capacity) -> Vec<(u32, usize)> {
    let mut points = Vec::new();
    for seq_len in powers_to(capacity.max_seq_len) {
        let fits = capacity.batch_size.min(capacity.total_tokens / seq_len).max(1);
        let len = u32::try_from(seq_len).unwrap_or(u32::MAX);
        points.extend(powers_to(fits).into_iter().map(|batch_size| (len, batch_size)));
    }
    points.sort_unstable_by_key(|&(seq_len, batch_size)| (seq_len as usize * batch_size, seq_len));
    points
}

/// Powers of [`STEP`] below `largest`, and `largest`.
fn powers_to(largest: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |&n: &usize| n.checked_mul(STEP));
    powers.take_while(|&n| n < largest).chain([largest]).collect()
}

/// A guess for a batch larger than those measured: the largest one's time per token, all runs counted.
fn predict(measured: &[(Candidate, Duration)], candidate: &Candidate) -> Duration {
    let Some((largest, time)) = measured.last() else { return Duration::ZERO };
    let once = time.mul_f64(candidate.total_tokens as f64 / largest.total_tokens as f64);
    if once < LONG { once * RUNS as u32 } else { once }
}

fn measure(
    runner: &mut dyn Runner,
    seq_len: u32,
    batch_size: usize,
    vocab_size: usize,
) -> Result<Duration, RunError> {
    // Different ids, so that the embedding table is read as traffic reads it; 40503 is odd and near 2^16 / phi.
    let ids: Vec<u32> =
        (0..seq_len).map(|i| (u64::from(i) * 40_503 % vocab_size.max(1) as u64) as u32).collect();
    let mut fastest = Duration::MAX;
    for _ in 0..RUNS {
        let started = Instant::now();
        let sequence = Sequence::of(&ids);
        runner.submit(&mut std::iter::repeat_n(sequence, batch_size))?;
        while runner.poll()? == Progress::Running {
            std::thread::yield_now();
        }
        fastest = fastest.min(started.elapsed());
        if fastest >= LONG {
            break;
        }
    }
    Ok(fastest)
}

#[cfg(test)]
mod tests {
    use turbo_sched::Source;

    use super::*;
    use crate::engine::{Rows, cost_cache::CostKey};

    /// Takes 0.1 ms per token.
    struct Slow {
        capacity: Capacity,
        batches: usize,
    }

    impl Runner for Slow {
        fn capacity(&self) -> Capacity {
            self.capacity
        }

        fn footprint(&mut self, _: &Candidate) -> usize {
            0
        }

        fn submit(&mut self, batch: &mut dyn Iterator<Item = Sequence<'_>>) -> Result<(), RunError> {
            self.batches += 1;
            let tokens: usize = batch.map(|sequence| sequence.input_ids.len()).sum();
            std::thread::sleep(Duration::from_micros(100) * tokens as u32);
            Ok(())
        }

        fn poll(&mut self) -> Result<Progress, RunError> {
            Ok(Progress::Done)
        }

        fn read(&mut self, _: usize, _: Rows, _: &mut Vec<f32>) -> Result<(), RunError> {
            Ok(())
        }
    }

    #[test]
    fn what_the_budget_does_not_reach_is_extrapolated() {
        let capacity = Capacity { batch_size: 64, total_tokens: 1 << 14, max_seq_len: 512 };
        for layout in [Layout::Packed, Layout::Padded] {
            let started = Instant::now();
            let costs =
                warm_up(&mut Slow { capacity, batches: 0 }, layout, 100, Duration::from_millis(200)).unwrap();
            // The whole grid takes many seconds; the largest batch alone takes 1.6.
            assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
            let batch = |len, size| std::iter::repeat_n(len, size).collect::<Candidate>();
            assert_ne!(costs.estimate(&batch(4, 4)).source, Source::Extrapolated, "{layout:?}");
            let largest = costs.estimate(&batch(512, 32));
            assert_eq!(largest.source, Source::Extrapolated, "{layout:?}");
            assert!((0.3..10.0).contains(&largest.cost.0), "{layout:?}: {largest:?}");
        }
    }

    /// What a start with `cache` ran, and the costs it came to.
    fn started(cache: &CostCache) -> (usize, CostModel) {
        let capacity = Capacity { batch_size: 16, total_tokens: 64, max_seq_len: 16 };
        let mut runner = Slow { capacity, batches: 0 };
        let budget = Duration::from_millis(100);
        let costs = costs(&mut runner, Layout::Packed, 100, budget, Some(cache)).unwrap();
        (runner.batches, costs)
    }

    #[test]
    fn a_second_start_runs_three_points_only() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache_in(folder.path());
        let (measured, first) = started(&cache);
        let (again, second) = started(&cache);
        assert!(measured > 20 && again <= 3 * RUNS, "{measured}, then {again}");
        let largest = batch_of(16, 4);
        let ratio = second.cost(&largest).0 / first.cost(&largest).0;
        assert!((0.5..2.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn kept_costs_that_do_not_hold_are_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache_in(folder.path());
        for per_token in [1e-9, 1.0] {
            let other = grid(Capacity { batch_size: 16, total_tokens: 64, max_seq_len: 16 }).into_iter().map(
                |(len, size)| (batch_of(len, size), BatchTotal(per_token * f64::from(len) * size as f64)),
            );
            cache.save(CostModel::Packed(Box::new(PackedCost::fit(other).unwrap())));
            let (measured, costs) = started(&cache);
            assert!(measured > 20, "{measured}");
            let cost = costs.cost(&batch_of(16, 4)).0;
            assert!((2e-3..0.1).contains(&cost), "64 tokens of 0.1 ms took {cost} s");
        }
    }

    fn cache_in(folder: &std::path::Path) -> CostCache {
        let capacity = Capacity { batch_size: 16, total_tokens: 64, max_seq_len: 16 };
        CostCache::new(folder, CostKey::new("slow", "sleep", ("float32", "none"), Layout::Packed, capacity))
    }

    #[test]
    fn the_grid_stays_within_the_capacity_and_ascends() {
        let capacity = Capacity { batch_size: 100, total_tokens: 2048, max_seq_len: 512 };
        let grid = grid(capacity);
        assert!(grid.iter().all(|&(len, size)| len as usize * size <= 2048 && size <= 100 && len <= 512));
        assert!(grid.is_sorted_by_key(|&(len, size)| len as usize * size));
        for corner in [(1, 1), (1, 100), (512, 1), (512, 4)] {
            assert!(grid.contains(&corner), "{corner:?} is not in {grid:?}");
        }
    }

    #[test]
    fn a_capacity_of_one_token_has_one_point() {
        assert_eq!(grid(Capacity { batch_size: 1, total_tokens: 1, max_seq_len: 1 }), [(1, 1)]);
    }
}
