//! Tests that every device passes: each family of kernels is compared with an obvious loop in `f64`.
//!
//! In: a device. Out: nothing, or a panic that names the kernel, the case and the value. The twins share no code with
//! any kernel. The cases visit the edges where vector code breaks: one value, a vector and its neighbours, odd rows,
//! rows without a key, large magnitudes, means far from zero, NaN, sequences of one token.
//!
//! Every input lies between NaNs and every output between guard values, not aligned to vectors, so a read or a write
//! beside a buffer shows.
//!
//! Inputs are values of the device's [`Float`], so that a twin sees what the kernel sees. Results may be off by the
//! error of computing in f32 and by one rounding to `Float`. Where a device may also store an intermediate result, the
//! case says so.
//!
//! [`all`] holds on any device. [`bits`] holds for devices that promise that the bits of a row depend on that row
//! alone.

use crate::{Attention, BatchedMatMul, BiasAct, Embed, Float, Gather, Gemm, Norm, Pool, Rotary, Softmax};

pub mod bits;

mod attention;
pub(crate) mod bias_act;
pub(crate) mod embed;
mod empty;
mod experts;
mod feed_forward;
mod gather;
mod gemm;
mod matmul;
mod max_pool;
pub(crate) mod norm;
mod numbers;
pub(crate) mod pool;
mod rig;
mod rotary;
pub(crate) mod softmax;
mod topk;
pub(crate) mod twin;

#[cfg(test)]
mod on_cpu;
#[cfg(test)]
mod rounded;

pub use attention::attention;
pub use bias_act::bias_act;
pub use embed::embed;
pub use empty::empty;
pub use experts::{experts, experts_are_their_parts};
pub use feed_forward::{feed_forward, feed_forward_is_its_parts};
pub use gather::gather;
pub use gemm::gemm;
pub use matmul::matmul;
pub use max_pool::max_pool;
pub use norm::norm;
pub use pool::pool;
pub use rig::aligned;
pub use rotary::rotary;
pub use softmax::softmax;
pub use topk::top_k;

/// One value, and the vectors of 8, 16 and 32 lanes with their neighbours.
const WIDTHS: [usize; 13] = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65];

/// Lengths at which a row outgrows the registers of 32 threads, and the row of a wide model.
const WIDE: [usize; 5] = [1023, 1024, 1025, 2048, 4096];

/// Half a unit in the last place of an f32 near 1: the error of one rounding, relative to its result. Every device
/// computes in f32, whatever it stores.
const ROUNDING: f64 = <f32 as Float>::ROUNDING;

/// Checks for invalid values that only a device can refuse which reads ids and lengths before it works: ids outside
/// their table, layouts that contradict themselves.
///
/// # Panics
/// When the device does not refuse them, or writes something first.
pub fn indices<D: Embed + Gemm + Pool + Attention + Rotary>(device: &D) {
    embed::refuses_ids_outside(device);
    pool::refuses_broken_layouts(device);
    attention::refuses_broken_layouts(device);
    max_pool::refuses_broken_layouts(device);
    rotary::refuses_short_tables(device);
}

/// Every family.
///
/// # Panics
/// When a kernel departs from its twin by more than its roundings explain, writes outside its output, or takes
/// arguments that do not fit.
pub fn all<D>(device: &D)
where
    D: Gemm + BatchedMatMul + Softmax + Norm + BiasAct + Embed + Attention + Gather + Pool + Rotary,
{
    gemm(device);
    feed_forward(device);
    experts(device);
    max_pool(device);
    matmul(device);
    gather(device);
    bias_act(device);
    softmax(device);
    norm(device);
    embed(device);
    pool(device);
    rotary(device);
    attention(device);
    empty(device);
}

/// Row kernels on rows of 1023 values and more; separate from [`all`] since they take an emulator long.
///
/// # Panics
/// As for [`all`].
pub fn wide_rows<D: BiasAct + Softmax + Norm + Embed + Pool>(device: &D) {
    bias_act::wide_rows(device);
    softmax::wide_rows(device);
    norm::wide_rows(device);
    embed::wide_rows(device);
    pool::wide_rows(device);
}
