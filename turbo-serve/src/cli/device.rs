//! The one place where a device is chosen; everything below is generic over it.

use std::{io::Write, num::NonZeroUsize};

use anyhow::{Context, Result, bail};
use turbo_models::{Cpu, CpuOptions, graph::kernels::Device};

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

/// Prints what there is.
///
/// # Errors
/// When the processor cannot be used.
pub(super) fn list() -> Result<()> {
    let cpu = choose("cpu", None)?;
    writeln!(std::io::stdout(), "{}", cpu.name()).context("cannot write to standard output")
}
