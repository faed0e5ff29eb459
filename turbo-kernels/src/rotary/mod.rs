//! Rotary positions: pairs of values turned by an angle that grows with the position.

mod cpu;
#[cfg(any(feature = "cuda", feature = "testing", test))]
pub(crate) mod cuda;

use crate::{ColumnsOn, HeadSizes, KernelError, Layout, device::Device};

/// Rotation of queries and keys by their position.
pub trait Rotary: Device {
    /// Turns the halves of each head against each other: with `x1` and `x2` the first and second half,
    /// `out = [x1 · cos − x2 · sin, x2 · cos + x1 · sin]`.
    ///
    /// * `x`: `num_heads · head_dim` columns; `out`: `[rows, num_heads · head_dim]`.
    /// * `table`: `[positions, head_dim]`: the cosines of the first half of a head, then its sines. A row's position
    ///   is its index within its sequence. Rows of padding become 0.
    ///
    /// Source: Su et al., Neurocomputing 568 (2024), in the form that pairs halves, as published checkpoints are
    /// trained.
    ///
    /// # Errors
    /// [`KernelError::Length`]; [`KernelError::Size`] for an odd `head_dim`, for columns that reach beyond their row,
    /// and (where the device can tell) for a sequence longer than the table and a layout that contradicts itself.
    fn rotary(
        &self,
        queue: &mut Self::Queue,
        heads: HeadSizes,
        layout: Layout<Self::View<'_, u32>>,
        x: ColumnsOn<'_, Self>,
        table: Self::View<'_, Self::Float>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;
}
