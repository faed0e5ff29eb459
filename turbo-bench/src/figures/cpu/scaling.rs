//! What a second thread gains, and what another process costs that takes a twentieth of one core.

use std::process::Child;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::{
    Precision,
    ceilings::Limit,
    turn::{Times, Turn, look, runs_of},
};
use crate::{
    figures::{
        numbers::{quantile, rounded},
        order::order,
    },
    load::Used,
    progress::Timeline,
    rival::Rival,
};

/// The times of one rival for one batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scale {
    /// The engine that computed it.
    pub rival: String,
    /// Sequences of the batch.
    pub batch_size: usize,
    /// Tokens of each.
    pub seq_len: u32,
    /// Median with one thread, ms.
    pub one_ms: f64,
    /// Median with all threads, ms.
    pub all_ms: f64,
    /// Median with all threads while another process takes a twentieth of one core, ms.
    pub disturbed_ms: f64,
    /// The least time that the machine allows with all threads, ms.
    pub floor_ms: f64,
    /// Share of the machine that other processes used meanwhile; the one that disturbs on purpose does not count.
    pub foreign_cpu: Option<f64>,
}

impl Scale {
    /// How many times faster all threads are than one.
    #[must_use]
    pub fn speedup(&self) -> f64 {
        self.one_ms / self.all_ms
    }

    /// The time lost by being disturbed, as a share of the undisturbed time.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.disturbed_ms / self.all_ms - 1.0
    }
}

/// A rival as two processes.
pub(super) struct Pair<'a> {
    /// With one thread.
    pub one: &'a mut Rival,
    /// With all threads.
    pub all: &'a mut Rival,
}

/// How a batch is run.
#[derive(Clone, Copy)]
enum Way {
    One,
    All,
    Disturbed,
}

const WAYS: [Way; 3] = [Way::One, Way::All, Way::Disturbed];
/// Turns are so many times as long as elsewhere, so that the disturbance comes and goes some tens of times in one.
const LONGER: usize = 4;

/// Measures all batches in so many rounds. `disturb` starts a process that disturbs until it is killed.
///
/// # Errors
/// When a rival fails, or the disturbing process does not start or ends within a turn.
pub(super) fn run(
    batches: &[Vec<u32>],
    pairs: &mut [Pair<'_>],
    mut disturb: impl FnMut() -> Result<Disturbance>,
    limit: &mut Limit<'_>,
    rounds: usize,
    timeline: &mut Timeline,
) -> Result<Vec<Scale>> {
    let mut scales = Vec::new();
    let share = 1.0 / (batches.len() * rounds) as f64;
    for (index, batch) in batches.iter().enumerate() {
        let mut plan = Vec::new();
        for pair in pairs.iter_mut() {
            let (one, all) = (turn(look(pair.one, batch)?), turn(look(pair.all, batch)?));
            plan.push((one, all));
        }
        let mut times: Vec<[Times; WAYS.len()]> = plan.iter().map(|_| Default::default()).collect();
        for round in 0..rounds {
            limit.look()?;
            for place in order(pairs.len() * WAYS.len(), round, index) {
                let (who, way) = (place / WAYS.len(), place % WAYS.len());
                let (pair, (one, all), times) = (&mut pairs[who], plan[who], &mut times[who][way]);
                match WAYS[way] {
                    Way::One => times.batch(pair.one, batch, one, &[])?,
                    Way::All => times.batch(pair.all, batch, all, &[])?,
                    Way::Disturbed => {
                        let mut disturbance = disturb()?;
                        times.batch(pair.all, batch, all, &[disturbance.0.id()])?;
                        disturbance.lasted()?;
                    }
                }
            }
            timeline.done(share);
        }
        for (pair, times) in pairs.iter().zip(&times) {
            let [one_ms, all_ms, disturbed_ms] = times.each_ref().map(|it| rounded(quantile(&it.ms, 0.5)));
            scales.push(Scale {
                rival: pair.all.name().to_owned(),
                batch_size: batch.len(),
                seq_len: batch[0],
                one_ms,
                all_ms,
                disturbed_ms,
                floor_ms: rounded(limit.ms(batch, Precision::F32)),
                foreign_cpu: times.iter().map(|it| it.used).sum::<Used>().share(),
            });
        }
    }
    Ok(scales)
}

/// The turn of an engine whose runs take `ms` each.
pub(super) fn turn(ms: f64) -> Turn {
    Turn { warm_up: 1, runs: LONGER * runs_of(ms) }
}

/// A process that takes a share of a core; it ends with this value.
pub struct Disturbance(pub Child);

impl Disturbance {
    /// Makes sure that it has run until now.
    ///
    /// # Errors
    /// When it has ended by itself, so that the timed runs had no neighbour.
    fn lasted(&mut self) -> Result<()> {
        match self.0.try_wait().context("cannot tell whether the neighbour is still there")? {
            None => Ok(()),
            Some(status) => bail!("the neighbour that takes a share of a core ended by itself ({status})"),
        }
    }
}

impl Drop for Disturbance {
    fn drop(&mut self) {
        // If it has ended by itself, there is nothing to do.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_brings_and_what_being_disturbed_costs() {
        let scale = Scale {
            rival: "it".into(),
            batch_size: 1,
            seq_len: 128,
            one_ms: 100.0,
            all_ms: 50.0,
            disturbed_ms: 53.0,
            floor_ms: 45.0,
            foreign_cpu: None,
        };
        assert_eq!(scale.speedup(), 2.0);
        assert!((scale.loss() - 0.06).abs() < 1e-9);
    }
}
