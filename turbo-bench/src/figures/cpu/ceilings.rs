//! The ceilings of the machine, and how fast a batch could be under them.

use std::{path::Path, thread::sleep, time::Duration};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use turbo_graph::{LayoutKind, Program, dim::Extents, passes};
use turbo_kernels::{
    Cpu,
    limits::{Limits, operations, round_trip},
};
use turbo_models::{Checkpoint, Pooling};

use super::{Precision, turn::PAUSE};
use crate::figures::numbers::quantile;

/// Ceilings with all threads of a device, in units of 10⁹ per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// f32 operations; a multiply-add is two.
    pub f32: f64,
    /// bf16 operations.
    pub bf16: f64,
    /// 8-bit integer operations.
    pub int8: f64,
    /// Bytes read from memory.
    pub memory: f64,
    /// Nanoseconds that a cache line takes to the other threads and back; `None` with one thread, and in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_ns: Option<f64>,
}

impl Ceilings {
    /// Measures what the device reaches undisturbed, in a third of a second.
    ///
    /// # Errors
    /// When there is no memory or no thread.
    pub fn measure(device: &Cpu) -> Result<Self> {
        let limits = Limits::measure(device)?;
        let [f32, bf16, int8, memory] =
            [limits.flops, limits.bf16_flops, limits.int8_ops, limits.memory_bytes].map(|it| it / 1e9);
        let round_trip_ns = round_trip(device)?.map(|time| time.as_nanos() as f64);
        Ok(Self { f32, bf16, int8, memory, round_trip_ns })
    }

    /// The median of each ceiling.
    pub(super) fn median(looks: &[Self]) -> Self {
        let of = |ceiling: fn(&Self) -> f64| quantile(&looks.iter().map(ceiling).collect::<Vec<_>>(), 0.5);
        let trips: Vec<f64> = looks.iter().filter_map(|it| it.round_trip_ns).collect();
        Self {
            f32: of(|it| it.f32),
            bf16: of(|it| it.bf16),
            int8: of(|it| it.int8),
            memory: of(|it| it.memory),
            round_trip_ns: (!trips.is_empty()).then(|| quantile(&trips, 0.5)),
        }
    }

    /// These ceilings, with another peak at a precision (10⁹ operations per second).
    #[must_use]
    pub(super) fn with_peak(self, precision: Precision, peak: f64) -> Self {
        match precision {
            Precision::F32 => Self { f32: peak, ..self },
            Precision::Bf16 => Self { bf16: peak, ..self },
            Precision::Int8 => Self { int8: peak, ..self },
        }
    }

    /// The peak at a precision: 10⁹ operations per second.
    #[must_use]
    pub fn of(&self, precision: Precision) -> f64 {
        match precision {
            Precision::F32 => self.f32,
            Precision::Bf16 => self.bf16,
            Precision::Int8 => self.int8,
        }
    }

    /// The least possible seconds: all operations at the peak, or all weights once from memory, whichever takes longer.
    /// `weights` counts values.
    #[must_use]
    pub fn floor(&self, precision: Precision, operations: f64, weights: f64) -> f64 {
        let read = weights * precision.bytes() as f64 / self.memory;
        (operations / self.of(precision)).max(read) / 1e9
    }
}

/// Measures the peak at a precision in a turn like a rival's: after the same pause, by the median of its runs. The
/// clock rate varies from minute to minute, and is higher after a rest than in the midst of work. Returns 10⁹
/// operations per second.
pub(super) fn peak_turn(device: &Cpu, precision: Precision, turn: Duration) -> Result<f64> {
    sleep(PAUSE);
    Ok(quantile(&operations(device, precision.into(), turn)?, 0.5) / 1e9)
}

/// How fast a model could run on a machine.
pub(super) struct Floor(Program);

impl Floor {
    /// The floor of the checkpoint in the folder `model`.
    pub(super) fn new(model: &Path) -> Result<Self> {
        let graph = Checkpoint::open(model)?.graph(Pooling::Mean)?;
        Ok(Self(Program::compile(&graph, LayoutKind::Packed, passes::ALL)?))
    }

    /// The least milliseconds of a batch, without padding. All operations count at the precision of the products, so
    /// the floor at lower precisions is below what can be reached.
    pub(super) fn ms(&self, lens: &[u32], precision: Precision, ceilings: &Ceilings) -> f64 {
        let lens: Vec<usize> = lens.iter().map(|&len| len as usize).collect();
        let (graph, extents) = (self.0.graph(), Extents::of(&lens));
        let operations = graph.total_cost(&extents).flops as f64;
        let weights = graph.weight_bytes_read(&extents) as f64 / Precision::F32.bytes() as f64;
        ceilings.floor(precision, operations, weights) * 1e3
    }
}

/// The [`Floor`] on this machine during a measurement. The clock rate varies with time and with other processes, so
/// rounds of turns alternate with looks at the ceilings, and medians are compared with medians.
pub(super) struct Limit<'a> {
    floor: &'a Floor,
    device: &'a Cpu,
    looks: Vec<Ceilings>,
}

impl<'a> Limit<'a> {
    /// A limit without any look at the ceilings yet.
    pub(super) fn new(floor: &'a Floor, device: &'a Cpu) -> Self {
        Self { floor, device, looks: Vec::new() }
    }

    /// Measures the ceilings; called once a round.
    pub(super) fn look(&mut self) -> Result<()> {
        self.looks.push(Ceilings::measure(self.device)?);
        Ok(())
    }

    /// [`peak_turn`] of the device.
    pub(super) fn peak_turn(&self, precision: Precision, turn: Duration) -> Result<f64> {
        peak_turn(self.device, precision, turn)
    }

    /// The medians of all looks.
    pub(super) fn ceilings(&self) -> Ceilings {
        Ceilings::median(&self.looks)
    }

    /// [`Floor::ms`] under [`Limit::ceilings`].
    pub(super) fn ms(&self, lens: &[u32], precision: Precision) -> f64 {
        self.floor.ms(lens, precision, &self.ceilings())
    }

    /// [`Limit::ms`] of a batch with turns of the peak among its own: the median of these `peaks` counts.
    pub(super) fn ms_at(&self, lens: &[u32], precision: Precision, peaks: &[f64]) -> f64 {
        self.floor.ms(lens, precision, &self.ceilings().with_peak(precision, quantile(peaks, 0.5)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scarcer_of_the_two_counts() {
        let ceilings = Ceilings { f32: 100.0, bf16: 200.0, int8: 400.0, memory: 10.0, round_trip_ns: None };
        assert_eq!(ceilings.floor(Precision::F32, 100e9, 0.0), 1.0);
        assert_eq!(ceilings.floor(Precision::Int8, 100e9, 1e9), 0.25);
        assert_eq!(ceilings.floor(Precision::Bf16, 0.0, 10e9), 2.0);
        assert_eq!(ceilings.with_peak(Precision::F32, 50.0).floor(Precision::F32, 100e9, 0.0), 2.0);
        assert_eq!(ceilings.with_peak(Precision::Int8, 50.0).floor(Precision::F32, 100e9, 0.0), 1.0);
    }
}
