//! The suite on this processor, with every instruction set that it has and several numbers of threads.

use std::num::NonZeroUsize;

use super::bits;
use crate::{Cpu, CpuOptions, Isa, simd::PORTABLE_IS_FUSED};

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
    experts => super::experts,
    gather => super::gather,
    feed_forward => super::feed_forward,
    feed_forward_is_its_parts => super::feed_forward_is_its_parts,
    gemm => super::gemm,
    matmul => super::matmul,
    max_pool => super::max_pool,
    embed => super::embed,
    empty => super::empty,
    indices => super::indices,
    norm => super::norm,
    pool => super::pool,
    rotary => super::rotary,
    softmax => super::softmax,
    top_k => super::top_k,
    wide_rows => super::wide_rows,
}

/// Within one instruction set, neither the rest of the batch nor the number of threads changes a bit.
#[test]
fn bits_do_not_depend_on_the_batch_or_the_threads() {
    for isa in Isa::available() {
        let mut alone: Option<Vec<_>> = None;
        for cpu in every_cpu().filter(|cpu| cpu.isa() == isa) {
            let answers = bits::answers(&cpu);
            let first = alone.get_or_insert_with(|| answers.clone());
            for ((name, got), (_, want)) in answers.iter().zip(first) {
                bits::assert_same(&format!("{name} on {isa} with {} threads", cpu.threads()), got, want);
            }
        }
    }
}

#[test]
fn products_are_one_chain() {
    for cpu in every_cpu() {
        bits::chains(&cpu, link(&cpu));
    }
}

#[test]
fn experts_are_their_parts() {
    for cpu in every_cpu() {
        super::experts_are_their_parts(&cpu, link(&cpu));
    }
}

/// `a · b + sum`, as the instructions of a CPU round it.
fn link(cpu: &Cpu) -> fn(f32, f32, f32) -> f32 {
    match cpu.isa() {
        // without FMA a step rounds twice
        Isa::Portable if !PORTABLE_IS_FUSED => |a, b, sum| a * b + sum,
        _ => f32::mul_add,
    }
}
