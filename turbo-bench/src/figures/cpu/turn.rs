//! A turn: one rival times some batches while all others sleep.

use std::{thread::sleep, time::Duration};

use anyhow::Result;

use crate::{load::Ticks, rival::Rival};

/// Between two turns: threads that wait for more work stop spinning.
const PAUSE: Duration = Duration::from_millis(30);
/// What a turn lasts, ms, unless one run takes longer.
pub(super) const TURN_MS: f64 = 200.0;
/// Most runs of a turn.
const MOST_RUNS: usize = 40;

/// What has been measured of one rival at one thing.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    /// Milliseconds of each run.
    pub ms: Vec<f64>,
    /// Share of the machine that others used, of each turn.
    pub foreign: Vec<f64>,
}

/// Runs that fill a turn when one takes so long.
pub(super) fn runs_of(ms: f64) -> usize {
    ((TURN_MS / ms.max(1e-3)) as usize).clamp(1, MOST_RUNS)
}

impl Times {
    /// One turn at a batch: caches and clocks get used to this rival in a run that does not count, unless the batch
    /// fills the turn. Processes in `ours` do not count as others.
    pub(super) fn batch(&mut self, rival: &mut Rival, lens: &[u32], runs: usize, ours: &[u32]) -> Result<()> {
        let ms = self.turn(rival, &[lens.to_vec()], usize::from(runs > 1), runs, ours)?;
        self.ms.extend(ms.concat());
        Ok(())
    }

    /// One turn at several batches, each once; gives their milliseconds, and keeps none.
    pub(super) fn batches(&mut self, rival: &mut Rival, batches: &[Vec<u32>]) -> Result<f64> {
        Ok(self.turn(rival, batches, 0, 1, &[])?.concat().iter().sum())
    }

    fn turn(
        &mut self,
        rival: &mut Rival,
        batches: &[Vec<u32>],
        warm_up: usize,
        runs: usize,
        ours: &[u32],
    ) -> Result<Vec<Vec<f64>>> {
        sleep(PAUSE);
        let ours = [ours, &[rival.process_id()]].concat();
        let start = Ticks::now(&ours);
        let ms = rival.time(batches, warm_up, runs)?;
        let both = start.zip(Ticks::now(&ours));
        self.foreign.extend(both.map(|(start, end)| end.others_since(&start)));
        Ok(ms)
    }
}
