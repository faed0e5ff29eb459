//! Attention as a textbook draws it (Vaswani et al., 2017), with the additions of later models: masks, heads that share
//! keys and values (Ainslie et al., 2023), and biases that depend on the distance (Raffel et al., 2020; Press et al.,
//! 2021; He et al., 2021).

use turbo_graph::{AttentionMask, HeadColumns, PositionBuckets, Rhs, ValueId};

use crate::{
    ModelConfig, ModelError,
    drawing::{Bias, Drawing},
};

/// Rows in which a range of columns holds the values of heads, side by side.
#[derive(Clone, Copy)]
pub(super) struct HeadRows {
    /// `[BatchSize, PaddedLen, columns]`.
    pub(super) rows: ValueId,
    /// The columns of these heads.
    pub(super) heads: HeadColumns,
}

impl HeadRows {
    /// Rows that consist of `num_heads` heads and nothing else.
    pub(super) fn all(rows: ValueId, num_heads: usize, head_dim: usize) -> Self {
        Self { rows, heads: HeadColumns { first: 0, num_heads, head_dim } }
    }

    /// The three equal parts of rows that hold queries, keys and values side by side.
    pub(super) fn thirds(rows: ValueId, num_heads: usize, head_dim: usize) -> [Self; 3] {
        [0, 1, 2].map(|third| Self {
            rows,
            heads: HeadColumns { first: third * num_heads * head_dim, num_heads, head_dim },
        })
    }

    /// The same heads, rotated by their positions.
    pub(super) fn turned(self, drawing: &mut Drawing<'_>, table: ValueId) -> Result<Self, ModelError> {
        let HeadColumns { num_heads, head_dim, .. } = self.heads;
        Ok(Self::all(drawing.graph.rotary(self.rows, self.heads, table)?, num_heads, head_dim))
    }
}

/// A bias on the scores that depends on the distance between query and key.
#[derive(Clone, Copy)]
pub(super) enum RelativeBias {
    /// A learned bias, from a table.
    Buckets {
        /// `[num_buckets, num_heads]`.
        table: ValueId,
        /// Rows of the table.
        num_buckets: usize,
        /// Distances from here on share the last row of their side.
        max_distance: usize,
    },
    /// Minus the distance times a slope, which differs by head.
    Alibi,
    /// The score of the query with a row for the key's position, plus that of the key with another row for the same
    /// position. These are not scaled; both tables are `[positions, num_heads · head_dim]`.
    Disentangled {
        /// Rows that are multiplied with queries.
        for_queries: ValueId,
        /// Rows that are multiplied with keys.
        for_keys: ValueId,
        /// How a distance chooses a position.
        positions: PositionBuckets,
    },
}

/// Queries, keys and values of one attention, and how they are combined.
pub(super) struct Attention {
    pub(super) query: HeadRows,
    pub(super) key: HeadRows,
    pub(super) value: HeadRows,
    /// Which keys a query sees.
    pub(super) mask: AttentionMask,
    pub(super) bias: Option<RelativeBias>,
    /// Factor of the scores; `None`: 1 / √head_dim.
    pub(super) scale: Option<f32>,
}

impl Attention {
    /// `softmax(mask(scale · q kᵀ + bias)) v` per head, heads side by side.
    pub(super) fn draw(self, drawing: &mut Drawing<'_>) -> Result<ValueId, ModelError> {
        let graph = &mut drawing.graph;
        let mut split = |of: HeadRows| graph.split_heads_at(of.rows, of.heads);
        let (query, key, value) = (split(self.query)?, split(self.key)?, split(self.value)?);
        let scores = graph.batched_matmul(query, key, Rhs::Transposed)?;
        let scale = self.scale.unwrap_or(1.0 / (self.query.heads.head_dim as f32).sqrt());
        let mut scores = graph.scale(scores, scale)?;
        scores = match self.bias {
            None => scores,
            Some(RelativeBias::Buckets { table, num_buckets, max_distance }) => {
                graph.add_relative_bias(scores, table, num_buckets, max_distance)?
            }
            Some(RelativeBias::Alibi) => graph.add_alibi(scores)?,
            Some(RelativeBias::Disentangled { for_queries, for_keys, positions }) => {
                let mut meet =
                    |of: HeadRows, table| graph.position_scores(of.rows, of.heads, table, positions);
                let met = [meet(self.query, for_queries)?, meet(self.key, for_keys)?];
                graph.add_disentangled(scores, met, positions)?
            }
        };
        let scores = graph.mask(scores, self.mask)?;
        let weights = graph.softmax(scores)?;
        let context = graph.batched_matmul(weights, value, Rhs::Normal)?;
        Ok(graph.merge_heads(context)?)
    }
}

/// Attention whose heads are rotated by position, with one published matrix for queries, keys and values.
pub(super) struct TurnedAttention<'a> {
    /// Names of that matrix and of the one behind attention.
    pub(super) matrices: [&'a str; 2],
    /// Bias of both matrices.
    pub(super) bias: Bias,
    /// Which keys a query sees.
    pub(super) mask: AttentionMask,
    /// Angles by position.
    pub(super) table: ValueId,
}

impl TurnedAttention<'_> {
    /// Draws it for the rows `x`; the result has the same width.
    pub(super) fn draw(
        self,
        drawing: &mut Drawing<'_>,
        config: &ModelConfig,
        x: ValueId,
    ) -> Result<ValueId, ModelError> {
        let Self { matrices: [before, behind], bias, mask, table } = self;
        let hidden = config.hidden_size;
        let rows = drawing.linear_with(x, before, (hidden, 3 * hidden), bias)?;
        let [query, key, value] = HeadRows::thirds(rows, config.num_attention_heads, config.head_dim());
        let (query, key) = (query.turned(drawing, table)?, key.turned(drawing, table)?);
        let context = Attention { query, key, value, mask, bias: None, scale: None }.draw(drawing)?;
        drawing.linear_with(context, behind, (hidden, hidden), bias)
    }
}
