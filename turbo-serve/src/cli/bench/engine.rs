//! The bare engine under the clock: a compiled model, batches of random ids, and how long each takes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use turbo_models::{
    Checkpoint, Cpu, DType, LayoutKind, Staging, Task,
    graph::{Executor, ExecutorConfig, Program, passes},
};

use crate::cli::task;

/// Ids below this mean something to the models that have them; random text is above.
const FIRST_WORD: u32 = 1000;

/// A model compiled with every pass for packed rows, and the ids that it is given.
pub(super) struct Engine {
    pub(super) executor: Executor<Cpu>,
    ids: fastrand::Rng,
    vocab_size: u32,
    positions: usize,
    /// Tokens of each sequence that are selected: its first ones.
    selected_rows: usize,
}

/// How often a batch is run.
#[derive(Clone, Copy)]
pub(super) struct Effort {
    /// Runs that count.
    pub(super) reps: usize,
    /// Time after which no more are begun, once three were.
    pub(super) most: Duration,
}

impl Engine {
    /// Compiles `checkpoint` for `device` and `task`, with its products in `dtype`.
    ///
    /// # Errors
    /// What compiling or loading fails with.
    pub(super) fn new(device: Cpu, checkpoint: &Checkpoint, task: Task, dtype: DType) -> Result<Self> {
        let graph = checkpoint.graph(task)?;
        let program = Program::compile(&graph, LayoutKind::Packed, passes::ALL)?.with_dtype(dtype);
        let config = checkpoint.config();
        let executor = Executor::new(device, program, checkpoint, ExecutorConfig::default())?;
        Ok(Self {
            executor,
            ids: fastrand::Rng::with_seed(1),
            vocab_size: u32::try_from(config.vocab_size).context("a vocabulary of 2³² tokens")?,
            positions: config.max_input_length(),
            selected_rows: task::selected_rows(task),
        })
    }

    /// Most tokens of a sequence.
    pub(super) fn positions(&self) -> usize {
        self.positions
    }

    /// Whether the model has positions for sequences of these lengths.
    ///
    /// # Errors
    /// The longest that it has none for.
    pub(super) fn check(&self, seq_lens: &[u32]) -> Result<()> {
        match seq_lens.iter().max().filter(|&&longest| longest as usize > self.positions) {
            Some(longest) => bail!("{longest} tokens, but the model has {} positions", self.positions),
            None => Ok(()),
        }
    }

    /// A batch of sequences of these lengths.
    ///
    /// # Errors
    /// A length that the model has no positions for.
    pub(super) fn batch(&mut self, seq_lens: &[u32]) -> Result<Staging> {
        self.check(seq_lens)?;
        let mut batch = Staging::new();
        let last = self.vocab_size.saturating_sub(1);
        let first = if last >= FIRST_WORD { FIRST_WORD } else { 0 };
        for &seq_len in seq_lens {
            let ids: Vec<u32> = (0..seq_len).map(|_| self.ids.u32(first..=last)).collect();
            batch.push(&ids, &[])?;
            let selected: Vec<u32> = (0..seq_len).take(self.selected_rows).collect();
            batch.select(&selected)?;
        }
        Ok(batch)
    }

    /// Runs `batch` once, from ids to the last hidden state.
    ///
    /// # Errors
    /// What the executor fails with.
    pub(super) fn time(&mut self, batch: &Staging) -> Result<Duration> {
        let start = Instant::now();
        self.executor.run(batch)?;
        Ok(start.elapsed())
    }

    /// Runs `batch` to warm up, then as often as `effort` says; the times in ascending order.
    ///
    /// # Errors
    /// What the executor fails with.
    pub(super) fn times(&mut self, batch: &Staging, effort: Effort) -> Result<Vec<Duration>> {
        if self.time(batch)? < Duration::from_secs(1) {
            self.time(batch)?;
            self.time(batch)?;
        }
        let mut times = repeat(effort, || self.time(batch))?;
        times.sort_unstable();
        Ok(times)
    }
}

/// Calls `once` as often as `effort` says, and keeps what it gives.
pub(super) fn repeat<T>(effort: Effort, mut once: impl FnMut() -> Result<T>) -> Result<Vec<T>> {
    let (mut all, start) = (Vec::new(), Instant::now());
    while all.len() < effort.reps {
        all.push(once()?);
        let spent = start.elapsed();
        if spent > effort.most && (all.len() >= 3 || spent > 4 * effort.most) {
            break;
        }
    }
    Ok(all)
}

/// The value at share `q` of ascending `times`, which are not empty: between two of them where it falls between, so the
/// median of an even count is the mean of the two in the middle. turbo-bench has the same for its records.
pub(super) fn quantile(times: &[Duration], q: f64) -> Duration {
    let place = q * (times.len() - 1) as f64;
    let (below, above) = (times[place.floor() as usize], times[place.ceil() as usize]);
    below + (above - below).mul_f64(place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_fall_between_two_times() {
        let times: Vec<Duration> = (0..10).map(Duration::from_millis).collect();
        let at = |q| quantile(&times, q).as_micros();
        assert_eq!([at(0.0), at(0.1), at(0.5), at(0.9), at(1.0)], [0, 900, 4500, 8100, 9000]);
        assert_eq!(quantile(&times[3..4], 0.9), times[3]);
    }

    #[test]
    fn most_runs_may_be_more_than_any() {
        let effort = Effort { reps: usize::MAX, most: Duration::ZERO };
        assert!(repeat(effort, || Ok(Instant::now())).unwrap().len() < usize::MAX);
    }

    #[test]
    fn the_median_has_as_many_below_as_above() {
        let median = |nanos: &[u64]| {
            let times: Vec<_> = nanos.iter().copied().map(Duration::from_nanos).collect();
            quantile(&times, 0.5).as_nanos()
        };
        assert_eq!([median(&[7]), median(&[2, 4]), median(&[1, 4, 9]), median(&[1, 4, 8, 90])], [7, 3, 4, 6]);
    }

    #[test]
    fn three_runs_count_however_long_they_take() {
        let none = Effort { reps: 30, most: Duration::ZERO };
        assert_eq!(repeat(none, || Ok(())).unwrap().len(), 1, "four times nothing is nothing");
        let some = Effort { reps: 30, most: Duration::from_millis(20) };
        let slow = || {
            std::thread::sleep(Duration::from_millis(21));
            Ok(())
        };
        assert_eq!(repeat(some, slow).unwrap().len(), 3);
        let enough = Effort { reps: 5, most: Duration::from_secs(60) };
        assert_eq!(repeat(enough, || Ok(())).unwrap().len(), 5);
    }
}
