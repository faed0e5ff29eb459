//! Softmax over attention scores: scale, add a relative bias, mask, subtract the maximum, normalise.

mod cpu;
#[cfg(any(feature = "cuda", feature = "testing", test))]
pub(crate) mod cuda;
mod row;

pub(crate) use cpu::SoftmaxRow;

use crate::{
    AttentionMask, KernelError, RelativeBias, RelativeBiasOn,
    device::{Device, Values},
};

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

impl ScoreShape {
    /// Whether everything fits these sizes.
    ///
    /// # Errors
    /// As for [`Softmax::scale_mask_softmax`].
    fn check<V: Values>(
        &self,
        kernel: &'static str,
        scores: &V,
        bias: Option<RelativeBias<V>>,
        seq_lens: Option<impl Values>,
        out: &impl Values,
    ) -> Result<(), KernelError> {
        let Self { batch_size, num_heads, queries, keys } = *self;
        let values = [num_heads, queries, keys].into_iter().fold(batch_size, usize::saturating_mul);
        KernelError::check_length(kernel, "scores", values, scores.len())?;
        KernelError::check_length(kernel, "out", values, out.len())?;
        let rows = [queries, keys].map(|rows| batch_size.saturating_mul(rows));
        bias.map_or(Ok(()), |bias| bias.check(kernel, num_heads, rows))?;
        seq_lens.map_or(Ok(()), |lens| KernelError::check_length(kernel, "seq_lens", batch_size, lens.len()))
    }
}

/// Softmax along the last axis of a score tensor. Query `i` and key `i` of a sequence are its token `i`.
///
/// For a disentangled bias, the rows of queries and keys are those of the sequences, `queries` and `keys` for each.
pub trait Softmax: Device {
    /// `out = softmax(scale · scores + bias)`, where keys `j ≥ seq_lens[b]` and keys that `mask` hides from query `i`
    /// get weight 0; a row without keys is all 0. Without `seq_lens` every key is a token. A row of nothing but −∞
    /// counts as a row without keys, so that [`Softmax::mask`] followed by a softmax without masks gives what both give
    /// at once. A NaN in a visible key makes its row NaN.
    ///
    /// # Errors
    /// [`KernelError::Length`]; [`KernelError::Size`] for a bias without buckets.
    #[allow(clippy::too_many_arguments)]
    fn scale_mask_softmax(
        &self,
        queue: &mut Self::Queue,
        shape: ScoreShape,
        scores: Self::View<'_, Self::Float>,
        scale: f32,
        bias: Option<RelativeBiasOn<'_, Self>>,
        seq_lens: Option<Self::View<'_, u32>>,
        mask: AttentionMask,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// `out = scores`, but −∞ for keys `j ≥ seq_lens[b]` and for those that `mask` hides: the mask of the textbook, as
    /// a step of its own.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn mask(
        &self,
        queue: &mut Self::Queue,
        shape: ScoreShape,
        scores: Self::View<'_, Self::Float>,
        seq_lens: Self::View<'_, u32>,
        mask: AttentionMask,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// `out = scores + bias`, by the distance from query to key: the relative bias of the textbook, as a step of its
    /// own.
    ///
    /// # Errors
    /// [`KernelError::Length`]; [`KernelError::Size`] for a bias without buckets.
    fn add_relative_bias(
        &self,
        queue: &mut Self::Queue,
        shape: ScoreShape,
        scores: Self::View<'_, Self::Float>,
        bias: RelativeBiasOn<'_, Self>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;
}
