//! Batches of one length: each rival has its turn at each, round after round.

use std::{thread::sleep, time::Duration};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::{Data, Field, Floor, Subject, quantile, rounded};
use crate::{load::Ticks, progress, rival::Rival};

/// Between two turns: threads that wait for more work stop spinning.
pub(super) const PAUSE: Duration = Duration::from_millis(30);
/// Most runs of a turn.
const MOST_RUNS: usize = 40;

/// What one rival takes for one batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// The model.
    pub model: String,
    /// Who computed.
    pub rival: String,
    /// Sequences of the batch.
    pub batch_size: usize,
    /// Tokens of each.
    pub seq_len: u32,
    /// Median of all runs, ms.
    pub median_ms: f64,
    /// A tenth of the runs was faster, ms.
    pub p10_ms: f64,
    /// A tenth of the runs was slower, ms.
    pub p90_ms: f64,
    /// Runs that count.
    pub runs: usize,
    /// What the machine can do at best, ms.
    pub floor_ms: f64,
    /// Share of the machine that other processes used meanwhile.
    pub foreign_cpu: Option<f64>,
}

/// What has been measured of one rival at one case.
#[derive(Default)]
struct Times {
    ms: Vec<f64>,
    foreign: Vec<f64>,
}

/// Measures all cases of a model.
///
/// # Errors
/// What a rival fails with.
pub(super) fn run(data: &Data, subject: &Subject, field: &mut Field, floor: &Floor) -> Result<Vec<Case>> {
    let bar = progress::bar(&format!("{}: batches", subject.model), data.rounds + 1)?;
    // The first round only shows how many runs fill a turn; it touches every shape once, too.
    let mut runs = vec![Vec::new(); subject.batches.len()];
    for (batch, runs) in subject.batches.iter().zip(&mut runs) {
        for rival in &mut field.rivals {
            let ms = rival.time(&[lens(*batch)], 1, 1)?[0][0];
            runs.push(((data.turn_ms as f64 / ms.max(1e-3)) as usize).clamp(1, MOST_RUNS));
        }
    }
    bar.inc(1);

    let rivals = field.rivals.len();
    let mut times: Vec<Times> = (0..subject.batches.len() * rivals).map(|_| Times::default()).collect();
    for round in 0..data.rounds {
        for (index, &batch) in subject.batches.iter().enumerate() {
            for turn in 0..rivals {
                let who = (turn + round) % rivals; // nobody always follows the same one
                turn_of(&mut field.rivals[who], batch, runs[index][who], &mut times[index * rivals + who])?;
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();

    let names: Vec<String> = field.rivals.iter().map(|rival| rival.name().to_owned()).collect();
    let of_case = |(index, &(batch_size, seq_len)): (usize, &(usize, u32))| {
        let floor_ms = rounded(floor.ms(&lens((batch_size, seq_len))));
        let times = &times[index * rivals..][..rivals];
        let case = |(name, times): (&String, &Times)| Case {
            model: subject.model.clone(),
            rival: name.clone(),
            batch_size,
            seq_len,
            median_ms: rounded(quantile(&times.ms, 0.5)),
            p10_ms: rounded(quantile(&times.ms, 0.1)),
            p90_ms: rounded(quantile(&times.ms, 0.9)),
            runs: times.ms.len(),
            floor_ms,
            foreign_cpu: mean(&times.foreign),
        };
        names.iter().zip(times).map(case).collect::<Vec<_>>()
    };
    Ok(subject.batches.iter().enumerate().flat_map(of_case).collect())
}

/// One turn: caches and clocks get used to this rival in a run that does not count, unless the batch fills the turn.
fn turn_of(rival: &mut Rival, batch: (usize, u32), runs: usize, times: &mut Times) -> Result<()> {
    sleep(PAUSE);
    let ours = [rival.process_id()];
    let start = Ticks::now(&ours);
    let warm_up = usize::from(runs > 1);
    times.ms.extend(rival.time(&[lens(batch)], warm_up, runs)?.concat());
    let both = start.zip(Ticks::now(&ours));
    times.foreign.extend(both.map(|(start, end)| end.others_since(&start)));
    Ok(())
}

fn lens((batch_size, seq_len): (usize, u32)) -> Vec<u32> {
    vec![seq_len; batch_size]
}

/// To three decimals; `None` of nothing.
pub(super) fn mean(values: &[f64]) -> Option<f64> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (!values.is_empty()).then(|| (mean * 1e3).round() / 1e3)
}
