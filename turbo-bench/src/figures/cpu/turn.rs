//! Turns: in a turn one rival times some batches while all others sleep.

use std::{slice, thread::sleep, time::Duration};

use anyhow::Result;

use crate::{
    load::{Ticks, Used},
    rival::Rival,
};

/// The pause between two turns, in which threads that wait for more work stop spinning.
pub(super) const PAUSE: Duration = Duration::from_millis(30);
/// Milliseconds of a turn, unless one run takes longer.
pub(super) const TURN_MS: f64 = 200.0;
/// The most runs of a turn.
const MOST_RUNS: usize = 40;
/// A first run of so many ms is believed: what a shape costs once is little beside it.
pub(super) const BELIEVED_MS: f64 = 1000.0;
/// Other processes that use more than this share of the machine disturb a measurement.
pub(super) const DISTURBING: f64 = 0.05;

/// Times of one rival at one batch or stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    /// Milliseconds of each run.
    pub ms: Vec<f64>,
    /// What other processes used of the machine in all turns.
    pub used: Used,
}

/// The runs of a turn at one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// Runs before those that count, in which caches and clocks adapt to this rival.
    pub warm_up: usize,
    /// Runs that count.
    pub runs: usize,
}

/// The turns of all rivals at a batch; `ms` are the milliseconds of a run of each. A turn has as many runs as fill it.
/// Either all rivals have a run before that does not count, or none has; the latter is the case if one run fills every
/// turn.
pub(super) fn turns(ms: &[f64]) -> Vec<Turn> {
    let runs: Vec<usize> = ms.iter().map(|&ms| runs_of(ms)).collect();
    let warm_up = usize::from(runs.iter().any(|&runs| runs > 1));
    runs.into_iter().map(|runs| Turn { warm_up, runs }).collect()
}

/// The number of runs of `ms` that fill a turn.
pub(super) fn runs_of(ms: f64) -> usize {
    ((TURN_MS / ms.max(1e-3)) as usize).clamp(1, MOST_RUNS)
}

/// Milliseconds of a run of a batch whose shape the rival has seen before.
pub(super) fn look(rival: &mut Rival, batch: &Vec<u32>) -> Result<f64> {
    let first = rival.time(slice::from_ref(batch), 0, 1)?[0][0];
    if first >= BELIEVED_MS { Ok(first) } else { Ok(rival.time(slice::from_ref(batch), 0, 1)?[0][0]) }
}

impl Times {
    /// One turn at a batch. Processes in `ours` do not count as others.
    pub(super) fn batch(&mut self, rival: &mut Rival, lens: &[u32], turn: Turn, ours: &[u32]) -> Result<()> {
        let ms = self.turn(rival, &[lens.to_vec()], turn, ours)?;
        self.ms.extend(ms.concat());
        Ok(())
    }

    /// One turn at several batches, each once, after one run of `warm_up` that does not count. Returns the milliseconds
    /// of each, and keeps none.
    pub(super) fn batches(
        &mut self,
        rival: &mut Rival,
        warm_up: &[u32],
        batches: &[Vec<u32>],
    ) -> Result<Vec<f64>> {
        let all = [&[warm_up.to_vec()], batches].concat();
        let ms = self.turn(rival, &all, Turn { warm_up: 0, runs: 1 }, &[])?;
        Ok(ms[1..].concat())
    }

    fn turn(
        &mut self,
        rival: &mut Rival,
        batches: &[Vec<u32>],
        Turn { warm_up, runs }: Turn,
        ours: &[u32],
    ) -> Result<Vec<Vec<f64>>> {
        sleep(PAUSE);
        let ours = [ours, &[rival.process_id()]].concat();
        let start = Ticks::now(&ours);
        let ms = rival.time(batches, warm_up, runs)?;
        if let Some((start, end)) = start.zip(Ticks::now(&ours)) {
            self.used += end.since(&start);
        }
        Ok(ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_slower_is_not_colder() {
        let turn = |warm_up, runs| Turn { warm_up, runs };
        assert_eq!(turns(&[60.0, 150.0, 0.1]), [turn(1, 3), turn(1, 1), turn(1, MOST_RUNS)]);
        assert_eq!(turns(&[150.0, 3000.0]), [turn(0, 1); 2]);
    }
}
