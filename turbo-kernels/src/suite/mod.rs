//! What every device has to answer alike: each family of kernels against an obvious loop in `f64`.
//!
//! In: a device. Out: nothing, or a panic that names the kernel, the case and the value. The twins share no code with
//! any kernel. The cases visit the edges where vector code breaks: one value, a vector and its neighbours, odd rows,
//! rows without a key, large magnitudes, means far from zero, NaN, sequences of one token.
//!
//! Every input lies between NaNs and every output between guard values, off the alignment of vectors, so a read or a
//! write next to a buffer shows.
//!
//! [`all`] holds on any device. [`bits`] holds where a device promises that the bits of a row depend on that row alone.

use crate::{Attention, Embed, EncoderKernels, Gemm, Pool, Rotary};

pub mod bits;

mod attention;
mod bias_act;
mod embed;
mod feed_forward;
mod gather;
mod gemm;
mod matmul;
mod max_pool;
mod norm;
mod numbers;
mod pool;
mod rig;
mod rotary;
mod softmax;
pub(crate) mod twin;

#[cfg(test)]
mod on_cpu;

pub use attention::attention;
pub use bias_act::bias_act;
pub use embed::embed;
pub use feed_forward::{feed_forward, feed_forward_is_its_parts};
pub use gather::gather;
pub use gemm::gemm;
pub use matmul::matmul;
pub use max_pool::max_pool;
pub use norm::norm;
pub use pool::pool;
pub use rotary::rotary;
pub use softmax::softmax;

/// One value, and the vectors of 8, 16 and 32 lanes with their neighbours.
const WIDTHS: [usize; 13] = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65];

/// Half a unit in the last place of an f32 near 1: the error of one rounding, relative to its result.
const ROUNDING: f64 = 1.0 / (1u64 << 24) as f64;

/// What only a device that can read ids and lengths before it works is able to refuse: ids outside their table, layouts
/// that contradict themselves.
///
/// # Panics
/// When it does not, or has written something before it does.
pub fn indices<D: Embed<Float = f32> + Gemm + Pool + Attention + Rotary>(device: &D) {
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
pub fn all<D: EncoderKernels>(device: &D) {
    gemm(device);
    feed_forward(device);
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
}
