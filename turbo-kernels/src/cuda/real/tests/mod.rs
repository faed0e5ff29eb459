//! The calls to a real GPU, checked with fake libraries in place of CUDA's.

mod absence;
mod kernels;
mod products;
mod streams;
mod units;

use std::{ffi::c_void, ptr};

use super::{
    Gpu,
    fake::{Fakes, apart, live},
};
use crate::{
    cuda::{Address, Driver, Kernel, LaunchShape, Module, Stream},
    device::DeviceError,
};

static KERNELS: Module = Module { name: "kernels", source: "without none_u32" };

fn kernel(name: &'static str) -> Kernel {
    Kernel { module: &KERNELS, name }
}

const SHAPE: LaunchShape = LaunchShape { grid: [2, 3, 1], block: 64, shared_bytes: 0 };

/// Adds `amount` to `count` numbers.
fn add(stream: &mut dyn Stream, to: Address, amount: u32, count: u32) -> Result<(), DeviceError> {
    let (mut to, mut amount, mut count) = (to, amount, count);
    let mut arguments: [*mut c_void; 3] =
        [ptr::from_mut(&mut to).cast(), ptr::from_mut(&mut amount).cast(), ptr::from_mut(&mut count).cast()];
    // SAFETY: these are the arguments of the fake kernel, which checks itself whether `to` is memory.
    unsafe { stream.launch(kernel("add_u32"), SHAPE, &mut arguments) }
}

fn bytes_of(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn upload(stream: &mut dyn Stream, numbers: &[u32], to: Address) {
    // SAFETY: every test here allocates blocks as long as its copies.
    unsafe { stream.upload(&bytes_of(numbers), to) }.unwrap();
}

fn download(stream: &mut dyn Stream, from: Address, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; 4 * count];
    // SAFETY: as above.
    unsafe { stream.download(from, &mut bytes) }.unwrap();
    bytes.chunks_exact(4).map(|number| u32::from_le_bytes(number.try_into().unwrap())).collect()
}

/// Frees an allocation of `bytes` bytes.
fn free(gpu: &Gpu, address: Address, bytes: usize) {
    // SAFETY: each test frees its blocks once, and enqueues nothing that uses them afterwards.
    unsafe { gpu.free(address, bytes) };
}

/// Runs `body` in a process with all fake libraries. It must succeed there, and leave no handle and no memory behind.
fn on_a_gpu<F: Fn()>(test: F, variables: &[(&str, &str)], body: impl FnOnce(&Gpu)) {
    let Some(fakes) = Fakes::all() else { return };
    let whole = || {
        let gpu = Gpu::new(0).unwrap();
        body(&gpu);
        drop(gpu);
        format!("{} live", live())
    };
    if let Some(answer) = apart(test, fakes.path(), variables, whole) {
        assert_eq!(answer, "0 live");
    }
}
