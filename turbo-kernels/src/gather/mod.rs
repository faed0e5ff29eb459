//! Moving rows: splitting heads apart and joining them again. The textbook draws these steps; fusion makes them vanish.

mod cpu;
#[cfg(any(feature = "cuda", feature = "testing", test))]
pub(crate) mod cuda;

use crate::{KernelError, device::Device, matmul::HeadStrides};

/// Reordering of values.
pub trait Gather: Device {
    /// Copies `[batch_size, num_heads, rows, head_dim]` values from one order to another.
    ///
    /// # Errors
    /// [`KernelError::Length`] when strides reach outside a buffer; [`KernelError::Size`] when two values of `to` may
    /// share an element.
    fn copy_heads(
        &self,
        queue: &mut Self::Queue,
        shape: HeadShape,
        from: (Self::View<'_, Self::Float>, HeadStrides),
        to: (Self::ViewMut<'_, Self::Float>, HeadStrides),
    ) -> Result<(), KernelError>;
}

/// Sizes of a tensor of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadShape {
    /// Sequences.
    pub batch_size: usize,
    /// Heads of each sequence.
    pub num_heads: usize,
    /// Rows of each head.
    pub rows: usize,
    /// Values of each row.
    pub head_dim: usize,
}
