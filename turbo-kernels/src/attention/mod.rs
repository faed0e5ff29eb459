//! Multi-head attention as one operation: scores never leave the core's cache.

mod cpu;
mod head;

use crate::{KernelError, Layout, device::Device};

/// Sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Heads.
    pub num_heads: usize,
    /// Values of one head; `hidden_size = num_heads · head_dim`.
    pub head_dim: usize,
    /// Factor on the scores, `1/√head_dim` as a rule.
    pub scale: f32,
}

/// Attention over the sequences of a batch.
pub trait Attention: Device {
    /// `out = softmax(scale · q · kᵀ) · v` per sequence and head.
    ///
    /// * `qkv`: `[rows, 3 · hidden_size]`: queries, keys and values of a row side by side, heads in order.
    /// * `out`: `[rows, hidden_size]`.
    ///
    /// A token attends to the tokens of its own sequence alone. In a padded layout rows of padding are computed too
    /// (their values mean nothing), and no row attends to padding.
    ///
    /// # Errors
    /// [`KernelError::Length`] when the buffers do not fit the layout; [`KernelError::Size`] when the layout contradicts
    /// itself (where the device can tell).
    fn attention(
        &self,
        queue: &mut Self::Queue,
        shape: AttentionShape,
        layout: Layout<Self::View<'_, u32>>,
        qkv: Self::View<'_, f32>,
        out: Self::ViewMut<'_, f32>,
    ) -> Result<(), KernelError>;
}
