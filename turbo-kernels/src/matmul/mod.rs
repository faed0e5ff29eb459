//! The two batched products of unfused attention: `q · kᵀ` and `p · v`, one small matrix per sequence and head.

mod cpu;
mod strides;

pub use strides::HeadStrides;

use crate::{KernelError, device::Device};

/// Whether the second factor is read by rows or by columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rhs {
    /// `b` is `[k, n]`: `out = a · b`.
    Normal,
    /// `b` is `[n, k]`: `out = a · bᵀ`.
    Transposed,
}

/// Sizes of a batched product: `batch_size · num_heads` times `[m, k] · [k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatMulShape {
    /// Sequences.
    pub batch_size: usize,
    /// Heads of each sequence.
    pub num_heads: usize,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Summed dimension.
    pub k: usize,
}

/// Products of two activations.
pub trait BatchedMatMul: Device {
    /// `out[b, h] = a[b, h] · b[b, h]` for every sequence and head, each value one chain over ascending `k`.
    ///
    /// # Errors
    /// [`KernelError::Length`] when strides reach outside a buffer; [`KernelError::Size`] when two values of `out` may
    /// share an element.
    #[allow(clippy::too_many_arguments)]
    fn batched_matmul(
        &self,
        queue: &mut Self::Queue,
        shape: MatMulShape,
        a: (Self::View<'_, f32>, HeadStrides),
        b: (Self::View<'_, f32>, HeadStrides, Rhs),
        out: (Self::ViewMut<'_, f32>, HeadStrides),
    ) -> Result<(), KernelError>;
}
