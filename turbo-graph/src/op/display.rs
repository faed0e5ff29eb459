//! Operators as text: their names, and their constants behind them.

use std::fmt;

use turbo_kernels::{AttentionMask, Hidden, Queries, Routing, matmul::Rhs};

use super::{DistanceBias, HeadColumns, Heads, Op, RelativeBuckets};

impl Op {
    /// The operator's name, without its constants.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed => "embed",
            Op::MatMul => "matmul",
            Op::AddBias => "add_bias",
            Op::Add => "add",
            Op::Mul => "mul",
            Op::Scale { .. } => "scale",
            Op::Activate(_) => "activate",
            Op::Gate(_) => "gate",
            Op::WeighExperts(_) => "weigh_experts",
            Op::LayerNorm { .. } => "layer_norm",
            Op::RmsNorm { .. } => "rms_norm",
            Op::HeadRmsNorm { .. } => "head_rms_norm",
            Op::Rotary(_) => "rotary",
            Op::SplitHeads(_) => "split_heads",
            Op::MergeHeads => "merge_heads",
            Op::BatchedMatMul { .. } => "batched_matmul",
            Op::PositionScores { .. } => "position_scores",
            Op::AddRelativeBias(_) => "add_relative_bias",
            Op::Mask(_) => "mask",
            Op::Softmax => "softmax",
            Op::Pool(_) => "pool",
            Op::Select => "select",
            Op::Linear { .. } => "linear",
            Op::ResidualLinear { .. } => "residual_linear",
            Op::LinearLayerNorm { .. } => "linear_layer_norm",
            Op::FeedForward(_) => "feed_forward",
            Op::Experts { .. } => "experts",
            Op::LinearMaxPool => "linear_max_pool",
            Op::ResidualLayerNorm { .. } => "residual_layer_norm",
            Op::BiasResidualLayerNorm { .. } => "bias_residual_layer_norm",
            Op::ScaleMaskSoftmax { .. } => "scale_mask_softmax",
            Op::Attention { .. } => "attention",
            Op::EmbedSumLayerNorm { .. } => "embed_sum_layer_norm",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Op::Scale { factor } => write!(f, " ×{factor}"),
            Op::Activate(activation) | Op::Gate(activation) | Op::Linear { activation: Some(activation) } => {
                write!(f, " {activation:?}")
            }
            Op::WeighExperts(routing) => write!(f, "{}", RoutingSuffix(*routing)),
            Op::Experts { routing, activation } => write!(f, "{} {activation:?}", RoutingSuffix(*routing)),
            Op::LayerNorm { epsilon }
            | Op::RmsNorm { epsilon }
            | Op::LinearLayerNorm { epsilon, .. }
            | Op::ResidualLayerNorm { epsilon }
            | Op::BiasResidualLayerNorm { epsilon }
            | Op::EmbedSumLayerNorm { epsilon, .. } => write!(f, " ε={epsilon:e}"),
            Op::FeedForward(parts) => {
                match parts.hidden {
                    Hidden::Activation(activation) => write!(f, " {activation:?}")?,
                    Hidden::Gate(activation) => write!(f, " gate {activation:?}")?,
                }
                parts.norm.map_or(Ok(()), |epsilon| write!(f, " ε={epsilon:e}"))
            }
            Op::HeadRmsNorm { heads, epsilon } => write!(f, " {heads} ε={epsilon:e}"),
            Op::SplitHeads(columns) | Op::Rotary(columns) | Op::PositionScores { heads: columns, .. } => {
                write!(f, " {columns}")
            }
            Op::BatchedMatMul { rhs, a, b, out } => {
                f.write_str(if *rhs == Rhs::Transposed { " a·bᵀ" } else { " a·b" })?;
                for (name, heads) in [("a", a), ("b", b), ("out", out)] {
                    if let Heads::Within(columns) = heads {
                        write!(f, " {name}:{columns}")?;
                    }
                }
                Ok(())
            }
            Op::AddRelativeBias(bias) => write!(f, " {bias}"),
            Op::Mask(mask) => write!(f, "{}", MaskSuffix(*mask)),
            Op::Pool(pooling) => write!(f, " {pooling:?}"),
            Op::ScaleMaskSoftmax { scale, mask, bias } => {
                write!(f, " ×{scale}{}", MaskSuffix(*mask))?;
                bias.map_or(Ok(()), |bias| write!(f, " {bias}"))
            }
            Op::Attention { queries, q, k, v, scale, mask, bias } => {
                write!(f, "{} {}×{}", QueriesSuffix(*queries), q.num_heads, q.head_dim)?;
                if k.num_heads != q.num_heads {
                    write!(f, "/{}", k.num_heads)?;
                }
                // heads side by side, or each at the beginning, are not printed; few queries have a tensor of their own
                let beside = if *queries == Queries::All { q.end() } else { 0 };
                let firsts = [q.first, k.first, v.first];
                if firsts != [0; 3] && firsts != [0, beside, beside + k.width()] {
                    write!(f, "@{},{},{}", q.first, k.first, v.first)?;
                }
                write!(f, " ×{scale}{}", MaskSuffix(*mask))?;
                bias.map_or(Ok(()), |bias| write!(f, " {bias}"))
            }
            _ => Ok(()),
        }
    }
}

/// ` of the first`, or nothing when every token has a query.
pub(crate) struct QueriesSuffix(pub(crate) Queries);

impl fmt::Display for QueriesSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Queries::All => "",
            Queries::First => " of the first",
            Queries::Last => " of the last",
        })
    }
}

/// ` causal`, ` ±64`, or nothing when every key is seen.
pub(crate) struct MaskSuffix(pub(crate) AttentionMask);

impl fmt::Display for MaskSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            AttentionMask::Full => Ok(()),
            AttentionMask::Causal => f.write_str(" causal"),
            AttentionMask::Window { reach } => write!(f, " ±{reach}"),
        }
    }
}

/// ` 2 of 8`.
pub(crate) struct RoutingSuffix(pub(crate) Routing);

impl fmt::Display for RoutingSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Routing { num_experts, top_k } = self.0;
        write!(f, " {top_k} of {num_experts}")
    }
}

impl fmt::Display for DistanceBias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DistanceBias::Buckets(RelativeBuckets { num_buckets, max_distance }) => {
                write!(f, "{num_buckets} buckets to {max_distance}")
            }
            DistanceBias::Alibi => f.write_str("alibi"),
            DistanceBias::Disentangled(positions) => write!(f, "{} places", positions.count()),
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
