//! What is true of an operator, whatever it is asked for: which inputs are of which kind, and which rows and columns it
//! reads of them.

use turbo_kernels::Pooling;

use super::{Addends, HeadColumns, Heads, Op};

impl Op {
    /// The positions of the inputs that are constant matrices of products.
    pub fn factors(&self) -> &'static [usize] {
        match self {
            Op::MatMul
            | Op::Linear { .. }
            | Op::ResidualLinear { .. }
            | Op::LinearLayerNorm { .. }
            | Op::LinearMaxPool => &[1],
            Op::FeedForward(_) => &[1, 2],
            Op::Experts { .. } => &[2, 3],
            _ => &[],
        }
    }

    /// What a product with this number of inputs adds, if it does nothing else; `None` for other operators.
    pub(crate) fn adds(&self, inputs: usize) -> Option<Addends> {
        match *self {
            Op::MatMul => Some(Addends::default()),
            Op::Linear { activation: None } => Some(Addends { bias: inputs > 2, residual: false }),
            Op::ResidualLinear { bias } => Some(Addends { bias, residual: true }),
            _ => None,
        }
    }

    /// Whether the operator needs one padded block of rows per sequence.
    pub fn needs_padding(&self) -> bool {
        matches!(
            self,
            Op::SplitHeads(_)
                | Op::MergeHeads
                | Op::BatchedMatMul { .. }
                | Op::AddRelativeBias(_)
                | Op::Mask(_)
                | Op::Softmax
                | Op::ScaleMaskSoftmax { .. }
        )
    }

    /// Whether input `index` is a constant: a tensor of the checkpoint, or one computed from its configuration.
    pub(crate) fn takes_constant(&self, index: usize) -> bool {
        match *self {
            Op::Embed => index == 0,
            Op::MatMul
            | Op::AddBias
            | Op::LayerNorm { .. }
            | Op::RmsNorm { .. }
            | Op::HeadRmsNorm { .. }
            | Op::Rotary(_)
            | Op::PositionScores { .. }
            | Op::Linear { .. }
            | Op::LinearMaxPool => index > 0,
            Op::ResidualLinear { bias } => index == 1 || (bias && index == 2),
            Op::LinearLayerNorm { adds, .. } => index > 0 && Some(index) != adds.places(2).residual,
            Op::FeedForward(parts) => index > 0 && Some(index) != parts.places().residual,
            Op::Experts { .. } | Op::ResidualLayerNorm { .. } => index > 1,
            Op::BiasResidualLayerNorm { .. } => index == 1 || index > 2,
            Op::AddRelativeBias(bias) => index > 0 && bias.takes_constants(),
            Op::ScaleMaskSoftmax { bias, .. } => index > 0 && bias.is_some_and(|bias| bias.takes_constants()),
            Op::Attention { bias, .. } => index > 2 && bias.is_some_and(|bias| bias.takes_constants()),
            Op::EmbedSumLayerNorm { lookups, .. } => index.is_multiple_of(2) || index > 2 * lookups,
            Op::Add
            | Op::Mul
            | Op::Scale { .. }
            | Op::Activate(_)
            | Op::Gate(_)
            | Op::WeighExperts(_)
            | Op::SplitHeads(_)
            | Op::MergeHeads
            | Op::BatchedMatMul { .. }
            | Op::Mask(_)
            | Op::Softmax
            | Op::Pool(_)
            | Op::Select => false,
        }
    }

    /// Whether input `index` holds ids rather than floats.
    pub(crate) fn takes_ids(&self, index: usize) -> bool {
        match self {
            Op::Embed => index == 1,
            Op::EmbedSumLayerNorm { lookups, .. } => !index.is_multiple_of(2) && index < 2 * lookups,
            _ => false,
        }
    }

    /// Whether the result consists of rows of the input, unchanged.
    pub(crate) fn is_pick(&self) -> bool {
        matches!(self, Op::Pool(Pooling::Cls | Pooling::LastToken) | Op::Select)
    }

    /// Whether a row of the result depends only on the same row of the computed inputs.
    pub(crate) fn is_row_by_row(&self) -> bool {
        match self {
            Op::MatMul
            | Op::AddBias
            | Op::Add
            | Op::Mul
            | Op::Scale { .. }
            | Op::Activate(_)
            | Op::Gate(_)
            | Op::WeighExperts(_)
            | Op::LayerNorm { .. }
            | Op::RmsNorm { .. }
            | Op::PositionScores { .. }
            | Op::Linear { .. }
            | Op::ResidualLinear { .. }
            | Op::LinearLayerNorm { .. }
            | Op::FeedForward(_)
            | Op::Experts { .. }
            | Op::ResidualLayerNorm { .. }
            | Op::BiasResidualLayerNorm { .. } => true,
            // lookups read the ids of all tokens; operators on heads need rows that know their sequence
            Op::Embed
            | Op::EmbedSumLayerNorm { .. }
            | Op::HeadRmsNorm { .. }
            | Op::Rotary(_)
            | Op::SplitHeads(_)
            | Op::MergeHeads
            | Op::BatchedMatMul { .. }
            | Op::AddRelativeBias(_)
            | Op::Mask(_)
            | Op::Softmax
            | Op::ScaleMaskSoftmax { .. }
            | Op::Attention { .. }
            | Op::Pool(_)
            | Op::Select
            | Op::LinearMaxPool => false,
        }
    }

    /// The columns of its first input that an operator on heads reads, if that is all it reads of computed values. It
    /// can read them from a wider tensor as well.
    pub(crate) fn head_columns(mut self) -> Option<HeadColumns> {
        self.head_columns_mut().copied()
    }

    /// As [`Op::head_columns`], to be moved.
    pub(crate) fn head_columns_mut(&mut self) -> Option<&mut HeadColumns> {
        match self {
            Op::SplitHeads(heads)
            | Op::Rotary(heads)
            | Op::HeadRmsNorm { heads, .. }
            | Op::PositionScores { heads, .. } => Some(heads),
            _ => None,
        }
    }

    /// The columns that the operator reads of an input, if it does not read them all.
    pub(crate) fn columns_read(&self, input: usize) -> Option<HeadColumns> {
        match (*self, input) {
            (Op::BatchedMatMul { a: Heads::Within(heads), .. }, 0)
            | (Op::BatchedMatMul { b: Heads::Within(heads), .. }, 1) => Some(heads),
            (Op::Attention { q, .. }, 0) => Some(q),
            (Op::Attention { k, .. }, 1) => Some(k),
            (Op::Attention { v, .. }, 2) => Some(v),
            (_, 0) => self.head_columns(),
            _ => None,
        }
    }
}
