//! Multi-head attention as one operation: scores never leave the core's cache.

mod ahead;
mod arrange;
mod cpu;
#[cfg(any(feature = "cuda", feature = "testing", test))]
pub(crate) mod cuda;
pub(crate) mod disentangled;
mod head;
mod mask;
mod product;
pub(crate) mod relative;
mod tile_registers;
mod weights;

pub use disentangled::PositionBuckets;
pub use mask::AttentionMask;
pub(crate) use relative::Biases;
pub use relative::{RelativeBias, RelativeBiasOn, alibi_slope, relative_bucket};

use crate::{ColumnsOn, DType, KernelError, Layout, device::Device};

/// Sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Heads of the queries and of the result.
    pub num_heads: usize,
    /// Heads of keys and values, a divisor of `num_heads`: query head `h` reads head `h / (num_heads / num_kv_heads)`.
    pub num_kv_heads: usize,
    /// Values of one head.
    pub head_dim: usize,
    /// Factor on the scores, `1/√head_dim` as a rule.
    pub scale: f32,
    /// Which tokens a token attends to.
    pub mask: AttentionMask,
    /// The type in which the two products are computed: f32, or queries, keys, values and weights rounded to bfloat16
    /// if the device has fast instructions for that, else f32 (see [`crate::Cpu::computes`]). Sums and softmax are
    /// always f32; [`DType::Int8`] means [`DType::Bf16`].
    ///
    /// Rounding moves a score by at most `δ = scale · Σ |q · k| / 2⁷`. So it moves all weights of a row together by at
    /// most `2 · tanh(δ/2)`, and a result, for which weights and values are rounded too, by at most
    /// `(e^δ − 1 + 2⁻⁷) · max |v|`.
    pub dtype: DType,
    /// Which tokens attend.
    pub queries: Queries,
}

impl AttentionShape {
    /// The head of keys and values that a head of queries reads.
    fn kv_head(&self, head: usize) -> usize {
        head / (self.num_heads / self.num_kv_heads)
    }
}

/// Which tokens of a sequence attend. A caller that reads only one row of each sequence needs no other.
///
/// Where the device promises bits, a row that attends has the same bits whichever others do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Queries {
    /// All of them: queries and results have the rows of keys and values.
    #[default]
    All,
    /// The first one: queries and results have one row per sequence.
    First,
    /// The last one: queries and results have one row per sequence.
    Last,
}

/// Attention over the sequences of a batch.
pub trait Attention: Device {
    /// `out = softmax(scale · q · kᵀ + bias) · v` per sequence and head, over the keys that the mask lets a row see.
    ///
    /// * `q`: `num_heads · head_dim` columns, heads in order; `k` and `v`: `num_kv_heads · head_dim` columns. The
    ///   three may lie in one tensor.
    /// * `bias`: added to the scaled scores, by the distance from query to key.
    /// * `out`: `[rows, num_heads · head_dim]`.
    ///
    /// Unless [`Queries::All`] attend, `q` and `out` have one row per sequence, while `k` and `v` have the rows of the
    /// layout.
    ///
    /// A token attends only to tokens of its own sequence. In a padded layout, rows of padding are computed too (their
    /// values mean nothing), and no row attends to padding. Keys that a row does not see never affect its values, not
    /// even as NaN, and cost nothing where its neighbours do not see them either. A row that sees no key is 0.
    ///
    /// # Errors
    /// [`KernelError::Length`] when the buffers do not fit the layout; [`KernelError::Size`] when heads do not divide,
    /// when columns reach beyond their row, when the bias has no buckets, and when the layout contradicts itself
    /// (where the device can tell).
    #[allow(clippy::too_many_arguments)]
    fn attention(
        &self,
        queue: &mut Self::Queue,
        shape: AttentionShape,
        layout: Layout<Self::View<'_, u32>>,
        q: ColumnsOn<'_, Self>,
        k: ColumnsOn<'_, Self>,
        v: ColumnsOn<'_, Self>,
        bias: Option<RelativeBiasOn<'_, Self>>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;
}
