//! The operators: those a textbook draws, and those that fusion makes of them. A closed list: adding one makes the
//! compiler name every shape rule, cost and kernel call that has to answer.

use std::fmt;

use turbo_kernels::{Activation, Pooling, matmul::Rhs};

/// Which columns of a row hold the heads of one of queries, keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadColumns {
    /// First column.
    pub first: usize,
    /// Heads, side by side.
    pub num_heads: usize,
    /// Columns of each head.
    pub head_dim: usize,
}

impl HeadColumns {
    /// One past the last column.
    pub fn end(&self) -> usize {
        self.first + self.num_heads * self.head_dim
    }
}

/// Where a batched product finds or puts its heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heads {
    /// In a tensor of their own, `[batch_size, num_heads, padded_len, ..]`.
    Apart,
    /// In columns of `[batch_size, padded_len, ..]`.
    Within(HeadColumns),
}

/// Most lookups of one [`Op::EmbedSumLayerNorm`]: words, token types and positions.
pub const MAX_LOOKUPS: usize = 3;

/// An operator. Each has one result; its inputs are listed in order.
///
/// `Mask`, `ScaleMaskSoftmax`, `Attention` and `Pool` also read the lengths of the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// `[table, ids]`: rows of a table.
    Embed,
    /// `[x, weight]`: `x · weightᵀ`.
    MatMul,
    /// `[x, bias]`.
    AddBias,
    /// `[a, b]`.
    Add,
    /// `[x]`: times a constant.
    Scale {
        /// The constant.
        factor: f32,
    },
    /// `[x]`.
    Activate(Activation),
    /// `[x, gain, offset]`.
    LayerNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// `[x]`: `[batch_size, padded_len, columns]` to `[batch_size, num_heads, padded_len, head_dim]`.
    SplitHeads(HeadColumns),
    /// `[x]`: `[batch_size, num_heads, padded_len, head_dim]` to `[batch_size, padded_len, num_heads · head_dim]`.
    MergeHeads,
    /// `[a, b]`: one product per sequence and head.
    BatchedMatMul {
        /// How `b` is read.
        rhs: Rhs,
        /// Where the heads of `a` lie.
        a: Heads,
        /// Where the heads of `b` lie.
        b: Heads,
        /// Where the heads of the result go.
        out: Heads,
    },
    /// `[scores]`: −∞ for keys of padding.
    Mask,
    /// `[scores]`.
    Softmax,
    /// `[x]`: `[rows, hidden_size]` to `[batch_size, hidden_size]`.
    Pool(Pooling),

    /// Fused, `[x, weight, bias]`: `activation(x · weightᵀ + bias)`.
    Linear {
        /// Applied last.
        activation: Option<Activation>,
    },
    /// Fused, `[x, bias, residual, gain, offset]`: `layer_norm(x + bias + residual)`.
    BiasResidualLayerNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// Fused, `[scores]`: `softmax(mask(scale · scores))`.
    ScaleMaskSoftmax {
        /// Factor on the scores.
        scale: f32,
    },
    /// Fused, `[qkv]`: queries, keys and values side by side to contexts; scores stay in the kernel.
    Attention {
        /// Heads.
        num_heads: usize,
        /// Columns of each head.
        head_dim: usize,
        /// Factor on the scores.
        scale: f32,
    },
    /// Fused, `[table, ids, …, gain, offset]`: `layer_norm` of the sum of lookups.
    EmbedSumLayerNorm {
        /// How many there are, up to [`MAX_LOOKUPS`].
        lookups: usize,
        /// Added to the variance.
        epsilon: f32,
    },
}

impl Op {
    /// The operator's name, without its constants.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed => "embed",
            Op::MatMul => "matmul",
            Op::AddBias => "add_bias",
            Op::Add => "add",
            Op::Scale { .. } => "scale",
            Op::Activate(_) => "activate",
            Op::LayerNorm { .. } => "layer_norm",
            Op::SplitHeads(_) => "split_heads",
            Op::MergeHeads => "merge_heads",
            Op::BatchedMatMul { .. } => "batched_matmul",
            Op::Mask => "mask",
            Op::Softmax => "softmax",
            Op::Pool(_) => "pool",
            Op::Linear { .. } => "linear",
            Op::BiasResidualLayerNorm { .. } => "bias_residual_layer_norm",
            Op::ScaleMaskSoftmax { .. } => "scale_mask_softmax",
            Op::Attention { .. } => "attention",
            Op::EmbedSumLayerNorm { .. } => "embed_sum_layer_norm",
        }
    }

    /// Whether the operator needs one padded row block per sequence.
    pub fn needs_padding(&self) -> bool {
        matches!(
            self,
            Op::SplitHeads(_)
                | Op::MergeHeads
                | Op::BatchedMatMul { .. }
                | Op::Mask
                | Op::Softmax
                | Op::ScaleMaskSoftmax { .. }
        )
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Op::Scale { factor } => write!(f, " ×{factor}"),
            Op::Activate(activation) | Op::Linear { activation: Some(activation) } => {
                write!(f, " {activation:?}")
            }
            Op::LayerNorm { epsilon }
            | Op::BiasResidualLayerNorm { epsilon }
            | Op::EmbedSumLayerNorm { epsilon, .. } => write!(f, " ε={epsilon:e}"),
            Op::SplitHeads(columns) => write!(f, " {columns}"),
            Op::BatchedMatMul { rhs, a, b, out } => {
                f.write_str(if *rhs == Rhs::Transposed { " a·bᵀ" } else { " a·b" })?;
                for (name, heads) in [("a", a), ("b", b), ("out", out)] {
                    if let Heads::Within(columns) = heads {
                        write!(f, " {name}:{columns}")?;
                    }
                }
                Ok(())
            }
            Op::Pool(pooling) => write!(f, " {pooling:?}"),
            Op::ScaleMaskSoftmax { scale } => write!(f, " ×{scale}"),
            Op::Attention { num_heads, head_dim, scale } => write!(f, " {num_heads}×{head_dim} ×{scale}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for HeadColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{}", self.num_heads, self.head_dim)?;
        if self.first > 0 {
            write!(f, "@{}", self.first)?;
        }
        Ok(())
    }
}
