//! Softmax over attention scores: scale, mask the padding keys, subtract the maximum, normalise.

mod cpu;
mod row;

pub(crate) use cpu::SoftmaxRow;
pub(crate) use row::{exponentials, inverse_or_zero};

use crate::{KernelError, device::Device};

/// Sizes of a score tensor, `[batch_size, num_heads, queries, keys]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreShape {
    /// Sequences.
    pub batch_size: usize,
    /// Heads of each sequence.
    pub num_heads: usize,
    /// Rows of each head.
    pub queries: usize,
    /// Columns of each head.
    pub keys: usize,
}

/// Softmax along the last axis of a score tensor.
pub trait Softmax: Device {
    /// `out = softmax(scale · scores)`, where keys `j ≥ seq_lens[b]` get weight 0; a row without keys is all 0.
    /// Without `seq_lens` every key counts. A row of nothing but −∞ has no keys either, so that [`Softmax::mask`] and a
    /// softmax without `seq_lens` give what both give together; NaN in a visible key makes its row NaN.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn scale_mask_softmax(
        &self,
        queue: &mut Self::Queue,
        shape: ScoreShape,
        scores: Self::View<'_, f32>,
        seq_lens: Option<Self::View<'_, u32>>,
        scale: f32,
        out: Self::ViewMut<'_, f32>,
    ) -> Result<(), KernelError>;

    /// `out = scores`, but −∞ for keys `j ≥ seq_lens[b]`: the mask of the textbook, as a step of its own.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn mask(
        &self,
        queue: &mut Self::Queue,
        shape: ScoreShape,
        scores: Self::View<'_, f32>,
        seq_lens: Self::View<'_, u32>,
        out: Self::ViewMut<'_, f32>,
    ) -> Result<(), KernelError>;
}
