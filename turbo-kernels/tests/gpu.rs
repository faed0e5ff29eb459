//! A GPU is held to what the emulated one is held to: the same suite, over the driver that is CUDA.
//!
//! Without a GPU each test says so and ends; with `TURBO_REQUIRE_GPU=1` that is a failure. With one:
//! `TURBO_REQUIRE_GPU=1 cargo test -p turbo-kernels --features cuda,testing --test gpu -- --nocapture`.

use std::sync::Arc;

use half::{bf16, f16};
use turbo_kernels::{
    Float,
    cuda::{Cuda, CudaOptions, Driver, Gpu},
    device::{Device, DeviceError},
    suite,
};

/// The first GPU; `None`, and a line that says why, where there is none.
///
/// # Panics
/// When there is none although `TURBO_REQUIRE_GPU=1`.
fn gpu() -> Option<Gpu> {
    let required = std::env::var_os("TURBO_REQUIRE_GPU").is_some_and(|value| value == "1");
    match Gpu::new(0) {
        Ok(gpu) => Some(gpu),
        Err(error) if required => panic!("TURBO_REQUIRE_GPU=1: {error}"),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// The whole suite, of values that lie anywhere and of values that lie for wide accesses.
fn agrees_with_the_twins<F: Float>() {
    let Some(gpu) = gpu() else { return };
    let device = Cuda::<F>::new(Arc::new(gpu), CudaOptions::default());
    println!("{}", device.name());
    let whole = || {
        suite::all(&device);
        suite::wide_rows(&device);
        suite::top_k(&device);
    };
    whole();
    suite::aligned(whole);
}

#[test]
fn values_of_f32_agree_with_the_twins() {
    agrees_with_the_twins::<f32>();
}

#[test]
fn values_of_f16_agree_with_the_twins() {
    agrees_with_the_twins::<f16>();
}

#[test]
fn values_of_bf16_agree_with_the_twins() {
    agrees_with_the_twins::<bf16>();
}

#[test]
fn a_block_that_does_not_fit_changes_nothing() {
    let Some(gpu) = gpu() else { return };
    let device = Cuda::<f32>::new(Arc::new(gpu.clone()), CudaOptions::default());
    let mut queue = device.queue().unwrap();
    let too_much = usize::try_from(gpu.info().memory_bytes).unwrap() + 1;
    let error = device.allocate(too_much).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfMemory { bytes } if bytes == too_much), "{error}");
    // 12 MB: each of the two buffers for uploads, and the first one again
    let numbers: Vec<u32> = (0..3_000_000).collect();
    let mut block = device.allocate(4 * numbers.len()).unwrap();
    let mut got = vec![1; numbers.len()];
    device.download(&mut queue, device.view(&block, 0, got.len()).unwrap(), &mut got).unwrap();
    assert!(got.iter().all(|number| *number == 0), "a block is zero");
    device.upload(&mut queue, &numbers, device.view_mut(&mut block, 0, numbers.len()).unwrap()).unwrap();
    device.download(&mut queue, device.view(&block, 0, got.len()).unwrap(), &mut got).unwrap();
    assert!(got == numbers);
}
