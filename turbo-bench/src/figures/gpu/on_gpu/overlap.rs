//! Times an encoder's batches one after the other and one behind the other.

use std::time::Instant;

use anyhow::{Result, ensure};
use turbo_kernels::EncoderKernels;
use turbo_models::{Encoder, RowKind, Staging};

use super::super::{
    Dtype,
    contest::{Turns, contest, list},
    operation::relative_error,
    overlap::{AFTER, BEHIND, Flight, Overlap, Timeline},
};
use crate::rival::turbo::Turbo;

/// Times the same batches, with sequences of these lengths, in both ways, and notes the stages of one run.
///
/// # Errors
/// When the device fails, or the two ways compute different things.
pub(super) fn measure<D: EncoderKernels>(
    turbo: &mut Turbo<D>,
    batches: &[Vec<u32>],
    dtype: Dtype,
    turns: Turns,
) -> Result<Overlap> {
    let mut batches = Batches::new(turbo, batches);
    let at_a_time = [1, batches.encoder.depth()];
    let [expected, got] = at_a_time.map(|most| batches.run(most).map(|_| batches.rows.clone()));
    let (error, allowed) = (relative_error(&got?, &expected?), dtype.allowed_error());
    ensure!(error <= allowed, "{BEHIND} the batches give other rows: off by {error}, allowed are {allowed}");
    let times = contest(&[AFTER, BEHIND].map(str::to_owned), turns, 0, |who, runs| {
        let us = (0..runs).map(|_| Ok(batches.run(at_a_time[who])?.0.last().map_or(0, |last| last.read_us)));
        Ok(us.sum::<Result<u64>>()? as f64 / runs as f64)
    })?;
    println!("{} batches: {}", dtype.name(), list(&times));
    Ok(Overlap { tokens: batches.tokens(), times, timeline: batches.run(at_a_time[1])? })
}

/// Batches, and the encoder that computes them.
struct Batches<'a, D: EncoderKernels> {
    encoder: &'a mut Encoder<D>,
    /// The ids of each sequence of each batch.
    ids: Vec<Vec<Vec<u32>>>,
    staging: Staging,
    /// The rows that the last run read.
    rows: Vec<f32>,
}

impl<'a, D: EncoderKernels> Batches<'a, D> {
    fn new(turbo: &'a mut Turbo<D>, batches: &[Vec<u32>]) -> Self {
        let ids = batches.iter().map(|lens| turbo.ids(lens)).collect();
        let encoder = &mut turbo.encoder;
        (0..encoder.depth()).for_each(|_| encoder.forget_oldest()); // what was run before is not read
        Self { encoder, ids, staging: Staging::new(), rows: Vec::new() }
    }

    fn tokens(&self) -> u64 {
        self.ids.iter().flatten().map(|ids| ids.len() as u64).sum()
    }

    /// Computes all batches, at most so many at a time, and reads a row of each sequence.
    fn run(&mut self, most: usize) -> Result<Timeline> {
        self.rows.clear();
        let (begin, count) = (Instant::now(), self.ids.len());
        let mut flights = Vec::with_capacity(count);
        for step in 0..count + most {
            if let Some(oldest) = step.checked_sub(most) {
                self.read(oldest, &mut flights[oldest], begin)?;
            }
            if step < count {
                flights.push(self.launch(step, begin)?);
            }
        }
        Ok(Timeline(flights))
    }

    fn launch(&mut self, batch: usize, begin: Instant) -> Result<Flight> {
        let begun_us = us_since(begin);
        self.staging.clear();
        for ids in &self.ids[batch] {
            self.staging.push(ids, &[])?;
        }
        self.encoder.run_behind(&self.staging, [RowKind::Pooled])?;
        let launched_us = us_since(begin);
        Ok(Flight {
            begun_us,
            launched_us,
            running_us: launched_us,
            done_us: launched_us,
            read_us: launched_us,
        })
    }

    /// Waits for the oldest batch and reads it.
    fn read(&mut self, batch: usize, flight: &mut Flight, begin: Instant) -> Result<()> {
        loop {
            let looked_us = us_since(begin);
            if self.encoder.is_done()? {
                break;
            }
            flight.running_us = looked_us;
        }
        flight.done_us = us_since(begin);
        for sequence in 0..self.ids[batch].len() {
            self.encoder.pooled(sequence, &mut self.rows)?;
        }
        self.encoder.forget_oldest();
        flight.read_us = us_since(begin);
        Ok(())
    }
}

fn us_since(begin: Instant) -> u64 {
    begin.elapsed().as_micros() as u64
}
