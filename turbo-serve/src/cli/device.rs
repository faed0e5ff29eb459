//! The one place where a device is chosen; everything below is generic over it.

use std::{fmt, fmt::Write, num::NonZeroUsize, str::FromStr};

use anyhow::{Context, Result, bail};
use turbo_models::{
    Cpu, CpuOptions, DType, EncoderKernels,
    graph::kernels::{Device, limits::Limits},
};

use super::{
    model_arguments::Dtype,
    number::above_0,
    output::{self, rate},
};

#[cfg(feature = "cuda")]
mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "device/no_gpu.rs"]
mod gpu;

/// What `--device` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// The first GPU that can be used, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// This GPU.
    Cuda(u32),
}

impl FromStr for Wish {
    type Err = String;

    fn from_str(name: &str) -> Result<Wish, String> {
        let number = |name: &str| name.parse().ok().map(Wish::Cuda);
        match name.to_ascii_lowercase().as_str() {
            "auto" => Ok(Wish::Auto),
            "cpu" => Ok(Wish::Cpu),
            "cuda" => Ok(Wish::Cuda(0)),
            lower => lower.strip_prefix("cuda:").and_then(number).ok_or_else(|| {
                "expected auto, cpu, cuda or cuda:N, where N counts from 0 as `turbo devices` does".to_owned()
            }),
        }
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wish::Auto => f.write_str("auto"),
            Wish::Cpu => f.write_str("cpu"),
            Wish::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// The most that share an operation of the CPU.
const MOST_THREADS: usize = 4096;

/// What `--threads` takes.
pub(super) fn threads(text: &str) -> Result<NonZeroUsize, &'static str> {
    let threads: NonZeroUsize = above_0(text)?;
    if threads.get() > MOST_THREADS { Err("expected at most 4096") } else { Ok(threads) }
}

/// A device of either kind. Clones are the same device.
#[derive(Clone)]
pub(super) enum Chosen {
    Cpu(Cpu),
    /// And its number.
    Gpu(gpu::Gpu, u32),
}

/// The CPU, with so many threads.
///
/// # Errors
/// When the processor cannot be used.
pub(super) fn cpu(threads: Option<NonZeroUsize>) -> Result<Cpu> {
    Cpu::new(CpuOptions { threads, isa: None }).context("--device cpu")
}

/// Why the CPU computes where a GPU might have.
pub(super) struct NoGpu {
    /// What was not found, in one line.
    pub(super) why: String,
    /// Whether there is a driver, so that a GPU was expected to be used.
    pub(super) has_driver: bool,
}

/// What is done on a device, whichever it is.
pub(super) trait OnDevice {
    /// What comes of it.
    type Output;

    /// Does it on `device`, with the products of the layers in `dtype`.
    ///
    /// # Errors
    /// Its own.
    fn on<D: EncoderKernels>(self, device: D, dtype: DType) -> Result<Self::Output>;
}

impl Chosen {
    /// The device that `wish` names; of the CPU so many threads. `tell` hears why a GPU is not used where one might
    /// have been.
    ///
    /// # Errors
    /// When a GPU was asked for that cannot be used, or the processor cannot.
    pub(super) fn new(wish: Wish, threads: Option<NonZeroUsize>, tell: impl FnOnce(NoGpu)) -> Result<Chosen> {
        match wish {
            Wish::Cpu => Ok(Chosen::Cpu(cpu(threads)?)),
            Wish::Cuda(ordinal) => match gpu::Gpu::new(ordinal) {
                Ok(gpu) => Ok(Chosen::Gpu(gpu, ordinal)),
                Err(why) => bail!("--device {wish}: {why}"),
            },
            Wish::Auto => match gpu::Gpu::first() {
                Ok((gpu, ordinal)) => Ok(Chosen::Gpu(gpu, ordinal)),
                Err(why) => {
                    let has_driver = gpu::has_driver(&why);
                    tell(NoGpu { why: format!("no GPU is used: {why}"), has_driver });
                    Ok(Chosen::Cpu(cpu(threads)?))
                }
            },
        }
    }

    /// The wish that names this device and no other.
    pub(super) fn wish(&self) -> Wish {
        match self {
            Chosen::Cpu(_) => Wish::Cpu,
            Chosen::Gpu(_, ordinal) => Wish::Cuda(*ordinal),
        }
    }

    /// Bytes of the device's memory that are free; `None` of a CPU.
    ///
    /// # Errors
    /// A device failure.
    pub(super) fn free_bytes(&self) -> Result<Option<u64>> {
        match self {
            Chosen::Cpu(_) => Ok(None),
            Chosen::Gpu(gpu, _) => gpu.free_bytes(),
        }
    }

    /// Threads of this process that are busy while a batch is computed.
    pub(super) fn threads(&self) -> NonZeroUsize {
        match self {
            Chosen::Cpu(cpu) => cpu.threads(),
            Chosen::Gpu(..) => NonZeroUsize::MIN,
        }
    }

    /// Does `work` on this device, in `dtype`; `warn` hears where that is not what is computed in.
    ///
    /// # Errors
    /// Those of `work`; a dtype that this device does not have.
    pub(super) fn run<W: OnDevice>(
        self,
        work: W,
        dtype: Dtype,
        warn: impl FnOnce(&str),
    ) -> Result<W::Output> {
        match self {
            Chosen::Cpu(cpu) => {
                if dtype == Dtype::Float16 {
                    warn("--dtype float16: a CPU cannot multiply in it, so products are computed in bf16");
                }
                work.on(cpu, dtype.of_cpu_products())
            }
            Chosen::Gpu(gpu, _) => gpu.run(work, dtype),
        }
    }
}

/// Prints what there is, how it computes each dtype, and its ceilings, which are measured for less than a second.
///
/// # Errors
/// When the processor cannot be used.
pub(super) fn list() -> Result<()> {
    let cpu = cpu(None)?;
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
    text += &gpu::list();
    output::line(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
        for (name, wish) in
            [("auto", Wish::Auto), ("CPU", Wish::Cpu), ("cuda", Wish::Cuda(0)), ("cuda:3", Wish::Cuda(3))]
        {
            assert_eq!(name.parse(), Ok(wish));
        }
        for name in ["", "gpu", "cuda:", "cuda:-1", "cuda:x"] {
            assert!(name.parse::<Wish>().unwrap_err().contains("cuda:N"), "{name}");
        }
        assert_eq!(Wish::Cuda(3).to_string(), "cuda:3");
    }

    #[test]
    fn threads_that_are_too_many_are_told_by_their_flag() {
        assert_eq!(threads("4096").map(NonZeroUsize::get), Ok(MOST_THREADS));
        assert_eq!(threads("4097"), Err("expected at most 4096"));
        assert!(cpu(NonZeroUsize::new(MOST_THREADS + 1)).is_err(), "of which there may be no more here");
        assert_eq!(threads("0"), Err("expected a whole number above 0"));
    }

    /// A GPU that is asked for is never replaced by the CPU.
    #[test]
    fn a_gpu_that_is_not_there_is_no_cpu() {
        let beyond = Wish::Cuda(4_000_000);
        let Err(error) = Chosen::new(beyond, None, |_| ()) else { panic!("there is no such GPU") };
        assert!(error.to_string().starts_with("--device cuda:4000000: "), "{error}");
    }
}
