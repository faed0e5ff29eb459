//! Runs the same check on every emulated GPU.

use super::{
    Cuda, CudaBlock, CudaQueue, CudaView, CudaViewMut,
    emulator::{self, Order},
};
use crate::device::{Device, Element, Float};

/// The orders of threads in which a kernel runs: a missing barrier shows in some of them. The memory that a kernel
/// touches does not depend on the order, so one is enough where a process checks only that.
pub(crate) fn orders() -> &'static [Order] {
    const ORDERS: [Order; 3] = [Order::Forward, Order::Reverse, Order::Seeded(7)];
    if emulator::is_sanitized() { &ORDERS[..1] } else { &ORDERS }
}

/// Calls a function that is generic over the device with an emulated GPU of each type of floats, in each of [`orders`].
/// bf16 runs only in the last of them, since its kernels wait for each other and touch memory where those of f16 do.
/// Without a C++ compiler the macro says so and does nothing.
macro_rules! on_every_emulator {
    ($check:path) => {
        for order in $crate::cuda::on_emulator::orders() {
            let Some(emulator) = $crate::cuda::emulator::Emulator::or_skip(*order) else { return };
            let device = $crate::cuda::Cuda::<f32>::new(std::sync::Arc::new(emulator), Default::default());
            $check(&device);
            $check(&device.with_float::<half::f16>());
            if matches!(order, $crate::cuda::emulator::Order::Seeded(_)) {
                $check(&device.with_float::<half::bf16>());
            }
        }
    };
}
pub(crate) use on_every_emulator;

/// A block that holds `values`.
pub(crate) fn upload<F: Float, T: Element>(
    device: &Cuda<F>,
    queue: &mut CudaQueue,
    values: &[T],
) -> CudaBlock {
    let mut block = device.allocate(size_of_val(values)).unwrap();
    device.upload(queue, values, device.view_mut(&mut block, 0, values.len()).unwrap()).unwrap();
    block
}

/// All of the `len` values of a block.
pub(crate) fn all<T: Element>(block: &CudaBlock, len: usize) -> CudaView<'_, T> {
    block.view(0, len).unwrap()
}

/// The `len` values that `kernel` writes.
pub(crate) fn answer<F: Float>(
    device: &Cuda<F>,
    queue: &mut CudaQueue,
    len: usize,
    kernel: impl FnOnce(&mut CudaQueue, CudaViewMut<'_, F>),
) -> Vec<f32> {
    let mut block = upload(device, queue, &vec![F::from_f32(f32::NAN); len]);
    kernel(queue, device.view_mut(&mut block, 0, len).unwrap());
    let mut answer = vec![F::default(); len];
    device.download(queue, all(&block, len), &mut answer).unwrap();
    answer.into_iter().map(F::to_f32).collect()
}
