//! What batches cost: a sparse grid of lengths and batch sizes is run, within a time budget.
//!
//! Its batches are run from the smallest to the largest. The costs of those that the budget does not reach are
//! extrapolated, and traffic corrects them later.

use std::time::{Duration, Instant};

use turbo_sched::{BatchTotal, Candidate, CostModel, CostTable, Layout, PackedCost};

use super::{
    fastest::{LONG_RUN, RUNS, fastest},
    warm_up::WarmUp,
};
use crate::engine::{
    BatchTokens, Capacity, RunError,
    runner::{Progress, Runner, Sequence},
};

/// The lengths and batch sizes of the grid are the powers of this, and the largest of each.
const STEP: usize = 4;
/// Time between two lines of the log while batches are measured.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// A point of the grid: a batch of this many inputs, all of the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) seq_len: u32,
    pub(super) batch_size: usize,
}

impl Point {
    pub(super) fn batch(self) -> Candidate {
        std::iter::repeat_n(self.seq_len, self.batch_size).collect()
    }

    fn tokens(self) -> usize {
        self.seq_len as usize * self.batch_size
    }
}

/// The batches of the runner's grid that were run so far.
pub(super) struct Measuring<'a> {
    warm_up: &'a WarmUp<'a>,
    started: Instant,
    told: Instant,
    pub(super) measured: Vec<(Candidate, Duration)>,
    /// The smallest batch that the budget did not reach.
    beyond: Option<Candidate>,
}

impl<'a> Measuring<'a> {
    pub(super) fn new(warm_up: &'a WarmUp<'a>) -> Self {
        let now = (warm_up.clock)();
        Self { warm_up, started: now, told: now, measured: Vec::new(), beyond: None }
    }

    /// Runs the grid's batches that were not run yet, within the runner's capacity and the budget, and fits the costs
    /// to all that were measured. The smallest batch is always run.
    pub(super) fn costs(&mut self, runner: &mut dyn Runner) -> Result<CostModel, RunError> {
        let WarmUp { layout, budget, .. } = *self.warm_up;
        let grid = grid(runner.capacity());
        for &point in &grid {
            let candidate = point.batch();
            if is_measured(&self.measured, &candidate) {
                continue;
            }
            let once = predict(&self.measured, &candidate);
            if !self.measured.is_empty() {
                if !self.may_come_up(point, once) {
                    continue;
                }
                if runs_of(once) > budget.saturating_sub(self.warm_up.since(self.started)) {
                    self.beyond.get_or_insert(candidate);
                    continue;
                }
            }
            let time = self.warm_up.measure(runner, point, once)?;
            let Point { seq_len, batch_size } = point;
            tracing::debug!(batch_size, seq_len, time_us = time.as_micros() as u64, "measured");
            self.measured.push((candidate, time));
            if self.warm_up.since(self.told) >= TELL_EVERY {
                self.told = (self.warm_up.clock)();
                let seconds_left = budget.saturating_sub(self.warm_up.since(self.started)).as_secs();
                let measured = measured_of(&grid, &self.measured);
                tracing::info!(measured, of = grid.len(), seconds_left, "measuring what batches cost");
            }
        }
        cost_model(layout, &self.measured)
    }

    /// Whether a batch that is predicted to take `time` may be formed: a batch of several inputs that takes far too
    /// long will not be. (Far too long is twice the limit, since the prediction may be wrong.)
    fn may_come_up(&self, point: Point, time: Duration) -> bool {
        match self.warm_up.max_batch_tokens {
            BatchTokens::Within(limit) => point.batch_size == 1 || time <= limit * 2,
            BatchTokens::AtMost(_) => true,
        }
    }

    /// Logs what was measured.
    pub(super) fn tell(&self) {
        let took_ms = self.warm_up.since(self.started).as_millis() as u64;
        tracing::info!(measured = self.measured.len(), took_ms, "warmed up");
        if let Some(Candidate { batch_size, max_seq_len, .. }) = self.beyond {
            tracing::info!(
                batch_size,
                seq_len = max_seq_len,
                "costs from this batch on are extrapolated until traffic shows them"
            );
        }
    }
}

impl WarmUp<'_> {
    /// The least time of a few runs of a batch. Engines that share the device are told how long each run will take: at
    /// first the `expected` time, later the time of the last run.
    pub(super) fn measure(
        &self,
        runner: &mut dyn Runner,
        point: Point,
        mut expected: Duration,
    ) -> Result<Duration, RunError> {
        // Varied ids, so that the embedding table is read as traffic reads it; 40503 is odd and near 2^16 / phi.
        let ids: Vec<u32> = (0..point.seq_len)
            .map(|i| (u64::from(i) * 40_503 % self.vocab_size.max(1) as u64) as u32)
            .collect();
        fastest(|| {
            let turn = self.seat.take();
            turn.lasts(expected);
            let started = (self.clock)();
            let sequence = Sequence::of(&ids);
            runner.submit(&mut std::iter::repeat_n(sequence, point.batch_size), &mut || true)?;
            while runner.poll()? == Progress::Running {
                std::thread::yield_now();
            }
            runner.release();
            expected = self.since(started);
            Ok(expected)
        })
    }
}

/// How many batches of `grid` were measured. Batches that only a smaller grid has, measured before, do not count.
fn measured_of(grid: &[Point], measured: &[(Candidate, Duration)]) -> usize {
    grid.iter().filter(|point| is_measured(measured, &point.batch())).count()
}

fn is_measured(measured: &[(Candidate, Duration)], batch: &Candidate) -> bool {
    measured.iter().any(|(measured, _)| measured == batch)
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

/// The points within `capacity`, in ascending order of their tokens.
pub(super) fn grid(capacity: Capacity) -> Vec<Point> {
    let mut points = Vec::new();
    for seq_len in powers_to(capacity.max_seq_len) {
        let fits = capacity.batch_size.min(capacity.total_tokens / seq_len).max(1);
        let seq_len = u32::try_from(seq_len).unwrap_or(u32::MAX);
        points.extend(powers_to(fits).into_iter().map(|batch_size| Point { seq_len, batch_size }));
    }
    points.sort_unstable_by_key(|point| (point.tokens(), point.seq_len));
    points
}

/// The powers of [`STEP`] below `largest`, and `largest`.
fn powers_to(largest: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |&n: &usize| n.checked_mul(STEP));
    powers.take_while(|&n| n < largest).chain([largest]).collect()
}

/// A guess for a batch that was not run, from the time per token of the largest one that was.
fn predict(measured: &[(Candidate, Duration)], candidate: &Candidate) -> Duration {
    let largest = measured.iter().max_by_key(|(largest, _)| largest.total_tokens);
    largest.map_or(Duration::ZERO, |(largest, time)| {
        time.mul_f64(candidate.total_tokens as f64 / largest.total_tokens as f64)
    })
}

/// The time of all runs of a batch, if one run takes `once`.
fn runs_of(once: Duration) -> Duration {
    if once < LONG_RUN { once * RUNS as u32 } else { once }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest batches of a smaller grid are not in a larger grid.
    #[test]
    fn no_more_batches_of_a_grid_are_measured_than_it_has() {
        let within = |total_tokens| grid(Capacity { batch_size: 8, total_tokens, max_seq_len: total_tokens });
        let (smaller, larger) = (within(9), within(40));
        let alone = smaller.iter().filter(|&point| !larger.contains(point)).count();
        assert!(alone > 0, "{smaller:?} {larger:?}");
        let all = smaller.iter().chain(&larger);
        let measured: Vec<_> = all.map(|point| (point.batch(), Duration::ZERO)).collect();
        assert_eq!(measured_of(&larger, &measured[..smaller.len()]), smaller.len() - alone);
        assert_eq!(measured_of(&larger, &measured), larger.len());
    }

    #[test]
    fn the_grid_stays_within_the_capacity_and_ascends() {
        let capacity = Capacity { batch_size: 100, total_tokens: 2048, max_seq_len: 512 };
        let grid = grid(capacity);
        let fits = |point: &Point| point.tokens() <= 2048 && point.batch_size <= 100 && point.seq_len <= 512;
        assert!(grid.iter().all(fits));
        assert!(grid.is_sorted_by_key(|point| point.tokens()));
        for (seq_len, batch_size) in [(1, 1), (1, 100), (512, 1), (512, 4)] {
            let corner = Point { seq_len, batch_size };
            assert!(grid.contains(&corner), "{corner:?} is not in {grid:?}");
        }
    }

    #[test]
    fn a_capacity_of_one_token_has_one_point() {
        let capacity = Capacity { batch_size: 1, total_tokens: 1, max_seq_len: 1 };
        assert_eq!(grid(capacity), [Point { seq_len: 1, batch_size: 1 }]);
    }
}
