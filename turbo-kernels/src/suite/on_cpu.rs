use std::num::NonZeroUsize;

use crate::{Cpu, CpuOptions, Isa};

/// Every instruction set of this machine with one, two and three threads.
fn every_cpu() -> impl Iterator<Item = Cpu> {
    Isa::available().flat_map(|isa| {
        [1, 2, 3].map(|threads| {
            let threads = NonZeroUsize::new(threads);
            Cpu::new(CpuOptions { threads, isa: Some(isa) }).expect("the instruction set is available")
        })
    })
}

/// Runs a check on every CPU.
macro_rules! on_every_cpu {
    ($($name:ident => $check:path),* $(,)?) => {$(
        #[test]
        fn $name() {
            every_cpu().for_each(|cpu| $check(&cpu));
        }
    )*};
}

on_every_cpu! {
    attention => super::attention,
    bias_act => super::bias_act,
    gemm => super::gemm,
    embed => super::embed,
    indices => super::indices,
    norm => super::norm,
    pool => super::pool,
    softmax => super::softmax,
}
