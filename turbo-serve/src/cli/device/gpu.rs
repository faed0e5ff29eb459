//! NVIDIA GPUs, as far as this machine has any.

use std::{fmt::Write, sync::Arc};

use anyhow::{Result, bail};
use turbo_models::{
    DType,
    graph::kernels::{
        Device, bf16,
        cuda::{self, Cuda, CudaOptions, Unavailable},
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
    let mut text = String::new();
    for (ordinal, gpu) in gpus.iter().enumerate() {
        let (major, minor) = gpu.compute_capability;
        _ = write!(
            text,
            "\ncuda:{ordinal} ({}, {major}.{minor}, {} multiprocessors, {} GB)",
            gpu.name,
            gpu.multiprocessors,
            gpu.memory_bytes / 1_000_000_000
        );
    }
    text
}
