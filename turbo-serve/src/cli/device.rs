//! The one place where a device is chosen; everything below is generic over it.

use std::{fmt::Write, num::NonZeroUsize};

use anyhow::{Context, Result, bail};
use turbo_models::{
    Cpu, CpuOptions, DType,
    graph::kernels::{Device, limits::Limits},
};

use super::output::{self, rate};

/// The device that `--device` names, with so many threads.
///
/// # Errors
/// When this build does not have it, or the processor cannot be used.
pub(super) fn choose(name: &str, threads: Option<NonZeroUsize>) -> Result<Cpu> {
    if !matches!(name, "auto" | "cpu") {
        bail!("--device {name}: this build has the CPU only, expected auto or cpu");
    }
    Cpu::new(CpuOptions { threads, isa: None }).context("--device cpu")
}

/// Prints what there is, how it computes each dtype, and its ceilings, which are measured for less than a second.
///
/// # Errors
/// When the processor cannot be used.
pub(super) fn list() -> Result<()> {
    let cpu = choose("cpu", None)?;
    let limits = Limits::measure(&cpu)?;
    let mut text = cpu.name();
    for dtype in DType::ALL {
        let (ceiling, unit) = match dtype {
            DType::F32 => (limits.flops, "GFLOP/s"),
            DType::Bf16 => (limits.bf16_flops, "GFLOP/s"),
            DType::Int8 => (limits.int8_ops, "GOP/s"),
        };
        let (name, computes) = (dtype.to_string(), cpu.computes(dtype));
        _ = write!(text, "\n  {name:<7} {:>6} {unit:<8} {computes}", rate(ceiling / 1e9));
    }
    _ = write!(text, "\n  memory  {:>6} GB/s", rate(limits.memory_bytes / 1e9));
    output::line(&text)
}
