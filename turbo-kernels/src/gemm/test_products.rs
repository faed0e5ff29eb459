//! What tests of products share: values, the processor in every instruction set, and a product as bits.

use std::num::NonZeroUsize;

use super::{Epilogue, Gemm, PackedWeight};
use crate::{Cpu, CpuOptions, Device, Isa};

/// Values from -1 to 1 whose sums round, from a small generator.
pub(super) fn values(len: usize, seed: usize) -> Vec<f32> {
    let mut state = seed as u64 * 2 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// One of as many threads for each instruction set.
pub(super) fn cpus(threads: usize) -> impl Iterator<Item = Cpu> {
    let threads = NonZeroUsize::new(threads);
    Isa::available().map(move |isa| Cpu::new(CpuOptions { threads, isa: Some(isa) }).unwrap())
}

/// The bits of a product.
pub(super) fn product(cpu: &Cpu, x: &[f32], weight: &PackedWeight, epilogue: Epilogue<&[f32]>) -> Vec<u32> {
    let mut queue = cpu.queue().unwrap();
    let mut out = vec![f32::NAN; x.len() / weight.in_features() * weight.out_features()];
    cpu.gemm(&mut queue, x, weight, epilogue, &mut out).unwrap();
    out.into_iter().map(f32::to_bits).collect()
}
