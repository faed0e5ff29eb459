//! The two batched products of unfused attention: `q · kᵀ` and `p · v`, one small matrix per sequence and head.

mod cpu;
#[cfg(any(feature = "cuda", feature = "testing", test))]
mod cuda;
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
///
/// `b` may have fewer heads than `a` and the result, as keys and values of grouped queries do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatMulShape {
    /// Sequences.
    pub batch_size: usize,
    /// Heads of each sequence, in `a` and in the result.
    pub num_heads: usize,
    /// Heads of each sequence in `b`, a divisor of `num_heads`: head `h` reads head `h / (num_heads / num_kv_heads)`.
    pub num_kv_heads: usize,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Summed dimension.
    pub k: usize,
}

impl MatMulShape {
    /// Whether `a`, `b` and the result lie inside buffers of these lengths, and no two values of the result share an
    /// element.
    ///
    /// # Errors
    /// As for [`BatchedMatMul::batched_matmul`].
    fn check(self, at: [HeadStrides; 3], rhs: Rhs, lens: [usize; 3]) -> Result<(), KernelError> {
        const KERNEL: &str = "batched_matmul";
        let MatMulShape { batch_size, num_heads, num_kv_heads, m, n, k } = self;
        KernelError::check_grouping(KERNEL, num_heads, num_kv_heads)?;
        let b_sizes = match rhs {
            Rhs::Normal => [batch_size, num_kv_heads, k, n],
            Rhs::Transposed => [batch_size, num_kv_heads, n, k],
        };
        let out_sizes = [batch_size, num_heads, m, n];
        at[0].check_inside(KERNEL, "a", [batch_size, num_heads, m, k], lens[0])?;
        at[1].check_inside(KERNEL, "b", b_sizes, lens[1])?;
        at[2].check_inside(KERNEL, "out", out_sizes, lens[2])?;
        at[2].check_apart(KERNEL, "out strides", out_sizes)
    }
}

/// Products of two activations.
pub trait BatchedMatMul: Device {
    /// `out[s, h] = a[s, h] · b[s, h / group]` for every sequence and head, where `group` heads of `a` share one of
    /// `b`; each value is one chain over ascending `k`.
    ///
    /// # Errors
    /// [`KernelError::Length`] when strides reach outside a buffer; [`KernelError::Size`] when two values of `out` may
    /// share an element, and when the heads of `b` do not divide those of `a`.
    #[allow(clippy::too_many_arguments)]
    fn batched_matmul(
        &self,
        queue: &mut Self::Queue,
        shape: MatMulShape,
        a: (Self::View<'_, Self::Float>, HeadStrides),
        b: (Self::View<'_, Self::Float>, HeadStrides, Rhs),
        out: (Self::ViewMut<'_, Self::Float>, HeadStrides),
    ) -> Result<(), KernelError>;
}
