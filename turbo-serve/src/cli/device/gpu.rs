//! NVIDIA GPUs, as far as this machine has any.

use std::{fmt::Write, sync::Arc};

use anyhow::{Result, bail};
use turbo_models::{
    DType,
    graph::kernels::{
        Device, bf16,
        cuda::{self, Cuda, CudaOptions, FoundGpu, Unavailable},
        f16,
    },
};

use super::OnDevice;
use crate::cli::model_arguments::{Dtype, NO_INT8};

/// One of them.
#[derive(Clone)]
pub(in crate::cli) struct Gpu(Cuda<f32>);

impl Gpu {
    /// GPU number `ordinal`.
    pub(super) fn new(ordinal: u32) -> Result<Self, Unavailable> {
        Ok(Self(Cuda::new(Arc::new(cuda::Gpu::new(ordinal)?), CudaOptions::default())))
    }

    /// The first that can be used, and its number; else why number 0 cannot.
    pub(super) fn first() -> Result<(Self, u32), Unavailable> {
        let why = match Self::new(0) {
            Ok(gpu) => return Ok((gpu, 0)),
            Err(why) => why,
        };
        // None where it is the driver or a library that is missing.
        let others = cuda::available().unwrap_or_default().into_iter().zip(0..).skip(1);
        let mut usable = others.filter(|(gpu, _)| gpu.usable.is_ok());
        usable.find_map(|(_, ordinal)| Some((Self::new(ordinal).ok()?, ordinal))).ok_or(why)
    }

    pub(super) fn free_bytes(&self) -> Result<Option<u64>> {
        Ok(self.0.free_bytes()?)
    }

    /// A GPU multiplies what it stores, so that a dtype is a type of device.
    pub(super) fn run<W: OnDevice>(self, work: W, dtype: Dtype) -> Result<W::Output> {
        match dtype {
            Dtype::F32 => work.on(self.0, DType::F32),
            Dtype::Bf16 => work.on(self.0.with_float::<bf16>(), DType::F32),
            Dtype::Float16 => work.on(self.0.with_float::<f16>(), DType::F32),
            Dtype::Int8 => bail!(NO_INT8),
        }
    }
}

/// Whether a driver is installed, though a GPU cannot be used.
pub(super) fn has_driver(why: &Unavailable) -> bool {
    !matches!(why, Unavailable::NoDriver)
}

/// What `turbo devices` says of them.
pub(super) fn list() -> String {
    let gpus = match cuda::available() {
        Ok(gpus) => gpus,
        Err(why) => return format!("\ncuda: not available: {why}"),
    };
    gpus.iter().enumerate().map(|(ordinal, gpu)| line(ordinal, gpu)).collect()
}

/// What it says of one, below what stands before.
fn line(ordinal: usize, FoundGpu { info, usable }: &FoundGpu) -> String {
    let (major, minor) = info.compute_capability;
    let mut text = format!(
        "\ncuda:{ordinal} ({}, {major}.{minor}, {} multiprocessors, {} GB)",
        info.name,
        info.multiprocessors,
        info.memory_bytes / 1_000_000_000
    );
    if let Err(why) = usable {
        _ = write!(text, ": cannot be used: {why}");
    }
    text
}

#[cfg(test)]
mod tests {
    use turbo_models::graph::kernels::cuda::DeviceInfo;

    use super::*;

    #[test]
    fn a_gpu_that_cannot_be_used_is_listed_so() {
        let info = DeviceInfo {
            name: "Tesla T4".to_owned(),
            compute_capability: (7, 5),
            multiprocessors: 40,
            memory_bytes: 16 << 30,
        };
        let described = "\ncuda:1 (Tesla T4, 7.5, 40 multiprocessors, 17 GB)";
        assert_eq!(line(1, &FoundGpu { info: info.clone(), usable: Ok(()) }), described);
        let old = Unavailable::OldGpu { name: info.name.clone(), found: info.compute_capability };
        let why = "cannot be used: Tesla T4 has compute capability 7.5, needed is 8.0 or more";
        assert_eq!(line(1, &FoundGpu { info, usable: Err(old) }), format!("{described}: {why}"));
    }
}
