//! Batches: in each round every rival has a turn at each batch, and so has the machine's peak.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::{
    Precision,
    ceilings::Limit,
    turn::{TURN_MS, Times, Turn, look, turns},
};
use crate::{
    figures::{
        numbers::{quantile, rounded},
        order::order,
    },
    progress::Timeline,
    rival::Rival,
};

/// Length of a turn of the peak.
const PEAK_TURN: Duration = Duration::from_millis(TURN_MS as u64);

/// The times of one rival for one batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// The engine that computed it.
    pub rival: String,
    /// Sequences of the batch.
    pub batch_size: usize,
    /// Tokens of the longest sequence.
    pub max_seq_len: u32,
    /// Tokens of all sequences.
    pub total_tokens: u32,
    /// Median of all runs, ms.
    pub median_ms: f64,
    /// 10th percentile of the runs, ms.
    pub p10_ms: f64,
    /// 90th percentile of the runs, ms.
    pub p90_ms: f64,
    /// Number of runs that count.
    pub runs: usize,
    /// The least time that the machine allows, ms.
    pub floor_ms: f64,
    /// Share of the machine that other processes used meanwhile.
    pub foreign_cpu: Option<f64>,
}

impl Case {
    /// Whether its sequences differ in length.
    #[must_use]
    pub fn is_ragged(&self) -> bool {
        self.total_tokens != self.batch_size as u32 * self.max_seq_len
    }

    /// The shape, which tells it from the other batches of its regime.
    #[must_use]
    pub fn shape(&self) -> (usize, u32, u32) {
        (self.batch_size, self.max_seq_len, self.total_tokens)
    }
}

/// Measures all batches in so many rounds of turns.
///
/// # Errors
/// When a rival fails.
pub(super) fn run(
    batches: &[Vec<u32>],
    precision: Precision,
    rivals: &mut [&mut Rival],
    limit: &mut Limit<'_>,
    rounds: usize,
    timeline: &mut Timeline,
) -> Result<Vec<Case>> {
    // Before the rounds, one look shows how many runs fill a turn. It also touches every shape once.
    let mut plan: Vec<Vec<Turn>> = Vec::new();
    for batch in batches {
        let ms = rivals.iter_mut().map(|rival| look(rival, batch)).collect::<Result<Vec<f64>>>()?;
        plan.push(turns(&ms));
        timeline.done(1.0 / (rounds + 1) as f64 / batches.len() as f64);
    }
    let mut times = vec![vec![Times::default(); rivals.len()]; batches.len()];
    let mut peaks = vec![Vec::new(); batches.len()];
    for round in 0..rounds {
        limit.look()?;
        for (index, batch) in batches.iter().enumerate() {
            for who in order(rivals.len() + 1, round, index) {
                match rivals.get_mut(who) {
                    Some(rival) => times[index][who].batch(rival, batch, plan[index][who], &[])?,
                    None => peaks[index].push(limit.peak_turn(precision, PEAK_TURN)?),
                }
            }
            timeline.done(1.0 / (rounds + 1) as f64 / batches.len() as f64);
        }
    }
    let of_batch = |((batch, times), peaks): ((&Vec<u32>, &Vec<Times>), &Vec<f64>)| {
        let floor_ms = rounded(limit.ms_at(batch, precision, peaks));
        let pairs = rivals.iter().zip(times);
        pairs.map(|(rival, times)| case(rival.name(), batch, times, floor_ms)).collect::<Vec<_>>()
    };
    Ok(batches.iter().zip(&times).zip(&peaks).flat_map(of_batch).collect())
}

fn case(rival: &str, batch: &[u32], times: &Times, floor_ms: f64) -> Case {
    Case {
        rival: rival.to_owned(),
        batch_size: batch.len(),
        max_seq_len: batch.iter().copied().max().unwrap_or(0),
        total_tokens: batch.iter().sum(),
        median_ms: rounded(quantile(&times.ms, 0.5)),
        p10_ms: rounded(quantile(&times.ms, 0.1)),
        p90_ms: rounded(quantile(&times.ms, 0.9)),
        runs: times.ms.len(),
        floor_ms,
        foreign_cpu: times.used.share(),
    }
}
