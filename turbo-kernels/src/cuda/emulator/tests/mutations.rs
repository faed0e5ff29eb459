//! Our kernels with an injected mistake: the suite finds each of them in some order of threads.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use half::f16;

use super::{Emulator, ORDERS};
use crate::{
    cuda::{Cuda, emulator::Edit},
    suite::{self, aligned},
};

/// Compute capabilities of GPUs with and without products of four warps.
const NEW: (u32, u32) = (9, 0);
const OLDER: (u32, u32) = (8, 0);

/// Runs `check` on device code with `from` replaced by `to`, in every order until one fails.
fn is_found(from: &'static str, to: &'static str, check: fn(&Cuda<f16>)) {
    is_found_on(NEW, from, to, check);
}

fn is_found_on(capability: (u32, u32), from: &'static str, to: &'static str, check: fn(&Cuda<f16>)) {
    for order in ORDERS {
        let Some(emulator) = Emulator::or_skip(order) else { return };
        let emulator = emulator.of_capability(capability).edited(Edit { from, to });
        let device = Cuda::new(Arc::new(emulator), Default::default());
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&device))) {
            let says = panic.downcast_ref::<String>().map_or("", String::as_str);
            assert!(!says.contains(".cu:"), "found by the compiler: {says}");
            return;
        }
    }
    panic!("nothing found that {from:?} became {to:?}");
}

#[test]
fn a_block_that_reduces_without_its_barrier() {
    is_found("__syncthreads();", "", suite::norm::wide_rows);
}

#[test]
fn a_block_that_pools_without_its_barrier() {
    is_found("__syncthreads();\n  if (threadIdx.x >= GROUP", "if (threadIdx.x >= GROUP", suite::pool);
}

#[test]
fn a_bias_of_the_next_column() {
    is_found("at % columns", "(at + 1) % columns", suite::bias_act);
}

/// With tensor cores.
fn attention(device: &Cuda<f16>) {
    aligned(|| suite::attention(device));
}

#[test]
fn copies_that_nobody_waits_for() {
    is_found("cp_async_wait<0>();", "", attention);
    is_found_on(OLDER, "cp_async_wait<0>();", "", attention);
}

#[test]
fn tiles_that_are_read_while_they_are_filled() {
    is_found("__syncthreads_or(copied_not_finite)", "copied_not_finite", attention);
    is_found_on(OLDER, "__syncthreads_or(copied_not_finite)", "copied_not_finite", attention);
}

#[test]
fn fragments_that_are_not_transposed() {
    is_found_on(OLDER, "ldmatrix_x4_trans(values", "ldmatrix_x4(values", attention);
}

#[test]
fn products_that_nobody_waits_for() {
    is_found("wgmma_wait<1>(scores);", "", attention);
}

#[test]
fn weights_that_change_while_they_are_multiplied() {
    is_found(
        "const bool risen = weigh(next);",
        "const bool risen = weigh(next); round_weights();",
        attention,
    );
}

#[test]
fn copies_that_products_do_not_see() {
    is_found("wgmma_fence_shared();\n    if (__syncthreads_or", "if (__syncthreads_or", attention);
}
