//! Kernels of ours with a mistake put in: the suite finds each, in some order of threads.

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

/// Runs `check` on device code with `from` replaced by `to`, in every order until one fails.
fn is_found(from: &'static str, to: &'static str, check: fn(&Cuda<f16>)) {
    for order in ORDERS {
        let Some(emulator) = Emulator::or_skip(order) else { return };
        let device = Cuda::new(Arc::new(emulator.edited(Edit { from, to })), Default::default());
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

#[test]
fn copies_that_nobody_waits_for() {
    is_found("cp_async_wait<0>();", "", |device| aligned(|| suite::attention(device)));
}

#[test]
fn tiles_that_are_read_while_they_are_filled() {
    is_found("__syncthreads();  // what everyone", "// what everyone", |device| {
        aligned(|| suite::attention(device))
    });
}

#[test]
fn fragments_that_are_not_transposed() {
    is_found("ldmatrix_x4_trans(values", "ldmatrix_x4(values", |device| aligned(|| suite::attention(device)));
}
