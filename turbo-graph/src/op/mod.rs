//! The operators: those that a textbook draws, and those that fusion makes of them.
//!
//! The list is closed: after one is added, the compiler names every shape rule, cost and kernel call that must handle
//! it.

mod display;
mod facts;

use turbo_kernels::{
    Activation, AttentionMask, Hidden, Pooling, PositionBuckets, Queries, Routing, matmul::Rhs,
};

pub(crate) use display::{MaskSuffix, QueriesSuffix, RoutingSuffix};

/// Which columns of a row hold the heads of queries, keys or values.
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
    /// One past the last column; saturates at `usize::MAX`, which no row reaches.
    pub fn end(&self) -> usize {
        self.first.saturating_add(self.width())
    }

    /// Columns of all heads.
    pub fn width(&self) -> usize {
        self.num_heads.saturating_mul(self.head_dim)
    }
}

/// How the distance of a key from its query chooses a row of a table `[num_buckets, num_heads]` (T5, MPNet): half of the
/// buckets for keys after the query, single distances first, then logarithmic steps up to `max_distance`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelativeBuckets {
    /// Rows of the table.
    pub num_buckets: usize,
    /// Distances from here on share the last bucket.
    pub max_distance: usize,
}

/// What a head adds to a score for the distance between key and query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DistanceBias {
    /// A value of a table, which is an input of the node.
    Buckets(RelativeBuckets),
    /// The distance times the head's slope, which follows from the number of heads (ALiBi): no input.
    Alibi,
    /// The scores of query and key with the position that the distance selects (DeBERTa). The inputs of the node are
    /// two [`Op::PositionScores`], one of the queries and one of the keys.
    Disentangled(PositionBuckets),
}

impl DistanceBias {
    /// The number of its inputs: tables, or scores with positions.
    pub fn inputs(&self) -> usize {
        match self {
            DistanceBias::Buckets(_) => 1,
            DistanceBias::Alibi => 0,
            DistanceBias::Disentangled(_) => 2,
        }
    }

    /// Whether its inputs are constants.
    pub(crate) fn takes_constants(&self) -> bool {
        !matches!(self, DistanceBias::Disentangled(_))
    }
}

/// Where a batched product reads or writes its heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heads {
    /// In a tensor of their own, `[batch_size, num_heads, padded_len, ..]`.
    Apart,
    /// In columns of `[batch_size, padded_len, ..]`.
    Within(HeadColumns),
}

/// Which optional inputs are added to a product. They come one after the other: a bias, then a residual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Addends {
    /// A value per column.
    pub bias: bool,
    /// A value per value of the product.
    pub residual: bool,
}

impl Addends {
    /// How many there are.
    pub fn count(&self) -> usize {
        usize::from(self.bias) + usize::from(self.residual)
    }

    /// Their positions when the first of them is input `first`.
    pub(crate) fn places(&self, first: usize) -> AddendPlaces {
        AddendPlaces {
            bias: self.bias.then_some(first),
            residual: self.residual.then_some(first + usize::from(self.bias)),
            next: first + self.count(),
        }
    }
}

/// Positions of optional inputs.
#[derive(Clone, Copy)]
pub(crate) struct AddendPlaces {
    pub(crate) bias: Option<usize>,
    pub(crate) residual: Option<usize>,
    /// The input after them.
    pub(crate) next: usize,
}

/// What an [`Op::FeedForward`] does with its rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FeedForwardParts {
    /// What stands between the two products.
    pub hidden: Hidden,
    /// Whether the first product has a bias.
    pub up_bias: bool,
    /// What is added to the second product.
    pub adds: Addends,
    /// The ε of a layer norm of the sum, when there is one.
    pub norm: Option<f32>,
}

impl FeedForwardParts {
    /// The position of the bias of the first product.
    pub(crate) fn up_bias(&self) -> Option<usize> {
        self.up_bias.then_some(3)
    }

    /// The positions of the addends of the second product; the gain of the norm comes next.
    pub(crate) fn places(&self) -> AddendPlaces {
        self.adds.places(3 + usize::from(self.up_bias))
    }
}

/// The most lookups of one [`Op::EmbedSumLayerNorm`]: words, token types and positions.
pub const MAX_LOOKUPS: usize = 3;

/// An operator, with one result. Each variant lists its inputs in order; those with a question mark are optional.
///
/// `Mask`, `Rotary`, `ScaleMaskSoftmax`, `Attention`, `Pool` and `LinearMaxPool` also read the lengths of the batch,
/// `PositionScores` the longest of them, and `Select` the tokens that the batch selects.
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
    /// `[a, b]`: elementwise.
    Mul,
    /// `[x]`: times a constant.
    Scale {
        /// The constant.
        factor: f32,
    },
    /// `[x]`.
    Activate(Activation),
    /// `[x]`: `activation(left half) · right half` of every row.
    Gate(Activation),
    /// `[x, logits]`: every expert's values, side by side in a row, times the expert's weight of that row.
    WeighExperts(Routing),
    /// `[x, gain, offset?]`.
    LayerNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// `[x, gain]`: divided by the root of the mean square.
    RmsNorm {
        /// Added to the mean square.
        epsilon: f32,
    },
    /// `[x, gain]`: each head separately, gain `[head_dim]`; the result has only the columns of the heads.
    HeadRmsNorm {
        /// Where the heads lie.
        heads: HeadColumns,
        /// Added to the mean square.
        epsilon: f32,
    },
    /// `[x, table]`: each head rotated by the position of its row; the result has only the columns of the heads.
    Rotary(HeadColumns),
    /// `[x]`: `[batch_size, padded_len, columns]` to `[batch_size, num_heads, padded_len, head_dim]`.
    SplitHeads(HeadColumns),
    /// `[x]`: `[batch_size, num_heads, padded_len, head_dim]` to `[batch_size, padded_len, num_heads · head_dim]`.
    MergeHeads,
    /// `[a, b]`: one product per sequence and head of `a`; if `b` has fewer heads, neighbouring heads of `a` share one.
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
    /// `[x, table]`: the score of each head with each relative position, `x · tableᵀ` head by head. `table` is
    /// `[positions, num_heads · head_dim]`, the result `[.., num_heads · positions]`. Positions that no two tokens of a
    /// batch are apart may be left out: their values are unspecified.
    PositionScores {
        /// Where the heads lie.
        heads: HeadColumns,
        /// Which positions there are.
        positions: PositionBuckets,
    },
    /// `[scores, table?]`, or `[scores, of queries, of keys]`: adds a value per head that depends on the distance
    /// between key and query.
    AddRelativeBias(DistanceBias),
    /// `[scores]`: −∞ for padding keys, and for keys that the mask hides.
    Mask(AttentionMask),
    /// `[scores]`.
    Softmax,
    /// `[x]`: `[rows, hidden_size]` to `[batch_size, hidden_size]`.
    Pool(Pooling),
    /// `[x]`: `[rows, hidden_size]` to `[selected_rows, hidden_size]`.
    Select,

    /// Fused, `[x, weight, bias?]`: `activation(x · weightᵀ + bias)`.
    Linear {
        /// Applied last.
        activation: Option<Activation>,
    },
    /// Fused, `[x, weight, bias?, residual]`: `x · weightᵀ + bias + residual`.
    ResidualLinear {
        /// Whether there is a bias.
        bias: bool,
    },
    /// Fused, `[x, weight, bias?, residual?, gain, offset?]`: `layer_norm(x · weightᵀ + bias + residual)`.
    LinearLayerNorm {
        /// Which of bias and residual there are.
        adds: Addends,
        /// Added to the variance.
        epsilon: f32,
    },
    /// Fused, `[x, up, down, up bias?, bias?, residual?, gain?, offset?]`:
    /// `hidden(x · upᵀ + up bias) · downᵀ + bias + residual`, then a layer norm if there is one; the wide rows between
    /// the products are never stored whole.
    FeedForward(FeedForwardParts),
    /// Fused, `[x, logits, up, down]`: for each row the sum over its experts of `activation(x · upᵀ) · downᵀ`, times
    /// the expert's weight. `up` has the matrices of all experts below each other, `down` has them side by side.
    Experts {
        /// How many experts there are, and how many each row uses.
        routing: Routing,
        /// What stands between the products.
        activation: Activation,
    },
    /// Fused, `[x, weight, bias?]`: the maximum over each sequence's rows of `x · weightᵀ + bias`; the product is never
    /// stored.
    LinearMaxPool,
    /// Fused, `[x, residual, gain, offset?]`: `layer_norm(x + residual)`.
    ResidualLayerNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// Fused, `[x, bias, residual, gain, offset?]`: `layer_norm(x + bias + residual)`.
    BiasResidualLayerNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// Fused, `[scores, ..]` with the inputs of the bias: `softmax(mask(scale · scores + relative bias))`.
    ScaleMaskSoftmax {
        /// Factor on the scores.
        scale: f32,
        /// Which keys a query sees.
        mask: AttentionMask,
        /// What is added to scores by distance.
        bias: Option<DistanceBias>,
    },
    /// Fused, `[q, k, v, ..]` with the inputs of the bias: contexts, heads side by side; scores stay in the kernel. If
    /// every token has a query, the first three may be one tensor. Otherwise `q`, and the scores of its queries with
    /// positions, have a row per sequence.
    Attention {
        /// Which tokens of a sequence have queries: all, or just one. Only their contexts are computed.
        queries: Queries,
        /// Where the queries lie.
        q: HeadColumns,
        /// Where the keys lie; if there are fewer, neighbouring query heads share one.
        k: HeadColumns,
        /// Where the values lie; there are as many heads as keys have.
        v: HeadColumns,
        /// Factor on the scores.
        scale: f32,
        /// Which keys a query sees.
        mask: AttentionMask,
        /// What is added to scores by distance.
        bias: Option<DistanceBias>,
    },
    /// Fused, `[table, ids, …, gain, offset?]`: `layer_norm` of the sum of lookups.
    EmbedSumLayerNorm {
        /// How many there are, up to [`MAX_LOOKUPS`].
        lookups: usize,
        /// Added to the variance.
        epsilon: f32,
    },
}
