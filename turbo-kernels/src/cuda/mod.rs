//! NVIDIA GPUs: one device type over any driver.
//!
//! ```text
//! family traits ──▶ Cuda<F>: views, launch shapes, arguments ──▶ Driver ──▶ CUDA, or the processor in tests
//! ```
//!
//! Activations, and the constants of row kernels, are stored as `F`: f32, f16 or bf16. Kernels widen the values that
//! they read, sum in f32 and round each result once.
//!
//! # How a family launches
//! Device code lies beside the family's Rust code, in `softmax/softmax.cu`; it is compiled behind `common.cuh`, which
//! declares everything that families share. `softmax/cuda.rs` chooses the kernel instance and the number of blocks by a
//! pure function of the sizes, checks lengths as the CPU does, and passes views as they are:
//!
//! ```ignore
//! static FAMILY: Family = family!("softmax", "softmax.cu");
//!
//! impl<F: Float> Softmax for Cuda<F> {
//!     fn softmax(&self, queue: &mut CudaQueue, x: CudaView<'_, F>, columns: usize, scale: f32, out: CudaViewMut<'_, F>)
//!     -> Result<(), KernelError> {
//!         let rows = KernelError::check_rows("softmax", "out", columns, out.len())?;
//!         KernelError::check_length("softmax", "x", out.len(), x.len())?;
//!         let kernel = Kernel { module: FAMILY.of::<F>(), name: named!(F, "softmax", "_warp") };
//!         // SAFETY: the kernel reads and writes `rows` rows of `columns` values, which both views hold.
//!         Ok(unsafe { queue.launch(kernel, shape(rows), (x, out, rows, columns, scale)) }?)
//!     }
//! }
//! ```
//!
//! An argument is a view, an `Option` of one (null where it is `None`), or a `u32`, `u64`, `i32` or `f32`, for
//! parameters `const T *`, `T *`, `unsigned`, `unsigned long long`, `int` and `float`: kernels have no other
//! parameters. A kernel touches the values of its views and no byte beside them, which tests check. Memory between
//! kernels is borrowed with `CudaQueue::with_scratch`. Operations on one queue are done in order, so a kernel may read
//! what the previous one has written.

mod device;
mod driver;
mod family;
mod launch;
mod memory;
mod queue;
mod rows;
pub(crate) mod sequences;

#[cfg(any(feature = "testing", test))]
pub mod emulator;
#[cfg(test)]
pub(crate) mod on_emulator;
#[cfg(feature = "cuda")]
mod real;

pub use device::{Cuda, CudaLanding, CudaOptions, CudaRecording};
pub(crate) use driver::named;
pub use driver::{
    Address, DeviceInfo, Driver, FloatType, Kernel, Landing, LaunchShape, Matrices, Module, Product,
    Recording, Stream,
};
pub(crate) use family::{Family, family};
pub(crate) use launch::Arguments;
pub use memory::{CudaBlock, CudaView, CudaViewMut, Freed};
#[cfg(test)]
pub(crate) use on_emulator::on_every_emulator;
pub use queue::CudaQueue;
#[cfg(feature = "cuda")]
pub use real::{FoundGpu, Gpu, Unavailable, Version, available};
pub use rows::Reduction;
pub(crate) use rows::{RowKernel, blocks, count, is_wide, row_kernels, warp_to_a_row};

use crate::KernelError;

/// Converts a size to a kernel's 32-bit argument.
///
/// # Errors
/// [`KernelError::Size`] from 2³² on.
pub(crate) fn size(kernel: &'static str, argument: &'static str, size: usize) -> Result<u32, KernelError> {
    let expected = "less than 2^32".into();
    u32::try_from(size).map_err(|_| KernelError::Size { kernel, argument, expected, got: size })
}
