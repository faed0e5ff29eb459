//! The builder that draws a model.

use turbo_kernels::{Activation, AttentionMask, Pooling, PositionBuckets, Routing, matmul::Rhs};

use crate::{
    GraphError,
    dim::Shape,
    graph::{Graph, Input, NamedWeight, Node, Storage, ValueId},
    op::{DistanceBias, HeadColumns, Heads, Op, RelativeBuckets},
    precision::Precision,
    rotary::RotaryTable,
    shape, verify,
};

/// Draws a model as a textbook does: one node per operator, sequences padded to one length.
///
/// The shape of each result is inferred; a mismatch is an error of the call that adds the operator.
pub struct GraphBuilder {
    graph: Graph,
    layer: Option<u32>,
    /// The error of the first output that could not be named; [`GraphBuilder::finish`] returns it.
    wrong_output: Option<GraphError>,
}

impl GraphBuilder {
    /// An empty drawing.
    pub fn new(name: &str) -> Self {
        let graph = Graph {
            name: name.to_owned(),
            values: Vec::new(),
            nodes: Vec::new(),
            precision: Precision::default(),
        };
        GraphBuilder { graph, layer: None, wrong_output: None }
    }

    /// An input of the batch, `[batch_size, padded_len]`, u32.
    pub fn input(&mut self, input: Input) -> ValueId {
        self.graph.add_value(Shape::per_token(&[]), Storage::Input(input))
    }

    /// A tensor of the checkpoint, with its published name and shape: `[out, in]` for a linear layer, `[rows, hidden]`
    /// for a table, `[n]` for a vector. Equal arguments return the same value, so that shared weights are loaded once.
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> ValueId {
        let named = NamedWeight { name: name.to_owned(), shape: shape.to_vec() };
        self.graph.weight(Shape::fixed(shape), vec![named])
    }

    /// The table that [`GraphBuilder::rotary`] reads, `[positions, head_dim]`, computed when the program is loaded.
    /// Equal arguments return the same value. `inverse_frequencies` are the radians per position of each pair of
    /// columns, `head_dim / 2` of them, usually `base^(−2i / head_dim)`.
    pub fn rotary_table(&mut self, inverse_frequencies: &[f64], positions: usize) -> ValueId {
        let table = RotaryTable { inverse_frequencies: inverse_frequencies.to_vec(), positions };
        self.graph.constant(Shape::fixed(&table.shape()), Storage::Computed(table))
    }

    /// Assigns the nodes that follow to repeated layer `index`, or to none. Layers are contiguous and in ascending
    /// order; layers of the same structure share one plan and are printed once.
    pub fn layer(&mut self, index: Option<u32>) {
        self.layer = index;
    }

    /// Looks up a row of `table`, `[rows, hidden]`, for each id.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn embed(&mut self, table: ValueId, ids: ValueId) -> Result<ValueId, GraphError> {
        self.node(Op::Embed, &[table, ids])
    }

    /// `x · weightᵀ`, weight `[out, in]`.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn matmul(&mut self, x: ValueId, weight: ValueId) -> Result<ValueId, GraphError> {
        self.node(Op::MatMul, &[x, weight])
    }

    /// `x + bias`, bias `[columns of x]`.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn add_bias(&mut self, x: ValueId, bias: ValueId) -> Result<ValueId, GraphError> {
        self.node(Op::AddBias, &[x, bias])
    }

    /// `a + b`, both of the same shape.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.node(Op::Add, &[a, b])
    }

    /// `a · b` elementwise, both of the same shape.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.node(Op::Mul, &[a, b])
    }

    /// `factor · x`.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn scale(&mut self, x: ValueId, factor: f32) -> Result<ValueId, GraphError> {
        self.node(Op::Scale { factor }, &[x])
    }

    /// `activation(x)`.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn activate(&mut self, x: ValueId, activation: Activation) -> Result<ValueId, GraphError> {
        self.node(Op::Activate(activation), &[x])
    }

    /// `activation(left half) · right half` of each row, `[.., 2n]` to `[.., n]`: for a gated feed-forward whose two
    /// matrices are published as one. If they are published separately, use [`GraphBuilder::activate`] and
    /// [`GraphBuilder::mul`].
    ///
    /// # Errors
    /// [`GraphError::Shape`], also when the number of columns is odd.
    pub fn gate(&mut self, x: ValueId, activation: Activation) -> Result<ValueId, GraphError> {
        self.node(Op::Gate(activation), &[x])
    }

    /// Multiplies the values of each expert, which lie side by side in a row, by the weight that `routing` derives for
    /// the expert from the row's `logits`.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn weigh_experts(
        &mut self,
        x: ValueId,
        logits: ValueId,
        routing: Routing,
    ) -> Result<ValueId, GraphError> {
        self.node(Op::WeighExperts(routing), &[x, logits])
    }

    /// Layer norm over the last axis, of `n` values; `gain` and the optional `offset` are `[n]`. The variance is the
    /// mean squared deviation.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn layer_norm(
        &mut self,
        x: ValueId,
        gain: ValueId,
        offset: Option<ValueId>,
        epsilon: f32,
    ) -> Result<ValueId, GraphError> {
        let inputs: Vec<ValueId> = [x, gain].into_iter().chain(offset).collect();
        self.node(Op::LayerNorm { epsilon }, &inputs)
    }

    /// `x / √(mean of squares + ε) · gain` over the last axis, of `n` values; `gain` is `[n]`.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn rms_norm(&mut self, x: ValueId, gain: ValueId, epsilon: f32) -> Result<ValueId, GraphError> {
        self.node(Op::RmsNorm { epsilon }, &[x, gain])
    }

    /// As [`GraphBuilder::rms_norm`], but for each head separately, all with the same gain `[head_dim]`. `x` has a row
    /// per token; the result, `[batch_size, padded_len, num_heads · head_dim]`, has only the columns of `heads`.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn head_rms_norm(
        &mut self,
        x: ValueId,
        heads: HeadColumns,
        gain: ValueId,
        epsilon: f32,
    ) -> Result<ValueId, GraphError> {
        self.node(Op::HeadRmsNorm { heads, epsilon }, &[x, gain])
    }

    /// Rotates each head by the position of its row. `x` has a row per token; the result,
    /// `[batch_size, padded_len, num_heads · head_dim]`, has only the columns of `heads`. Column `i` of a head is
    /// paired with column `i + head_dim / 2`. `table` comes from [`GraphBuilder::rotary_table`]. Rotate before
    /// splitting the heads.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn rotary(&mut self, x: ValueId, heads: HeadColumns, table: ValueId) -> Result<ValueId, GraphError> {
        self.node(Op::Rotary(heads), &[x, table])
    }

    /// `[batch_size, padded_len, hidden]` to `[batch_size, num_heads, padded_len, hidden / num_heads]`.
    ///
    /// # Errors
    /// [`GraphError::Shape`], also when `num_heads` does not divide the hidden size.
    pub fn split_heads(&mut self, x: ValueId, num_heads: usize) -> Result<ValueId, GraphError> {
        match self.columns(x).filter(|hidden| num_heads > 0 && hidden.is_multiple_of(num_heads)) {
            Some(hidden) => {
                let columns = HeadColumns { first: 0, num_heads, head_dim: hidden / num_heads };
                self.node(Op::SplitHeads(columns), &[x])
            }
            None => Err(GraphError::Shape {
                op: "split_heads",
                input: 0,
                expected: format!("[batch_size, padded_len, a multiple of {num_heads}]"),
                got: self.graph.value(x).shape.clone(),
            }),
        }
    }

    /// Splits off the heads in these columns, `[batch_size, padded_len, columns]` to
    /// `[batch_size, num_heads, padded_len, head_dim]`: for projections that are published as one matrix.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn split_heads_at(&mut self, x: ValueId, heads: HeadColumns) -> Result<ValueId, GraphError> {
        self.node(Op::SplitHeads(heads), &[x])
    }

    /// `[batch_size, num_heads, padded_len, head_dim]` to `[batch_size, padded_len, num_heads · head_dim]`.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn merge_heads(&mut self, x: ValueId) -> Result<ValueId, GraphError> {
        self.node(Op::MergeHeads, &[x])
    }

    /// One product per sequence and head: `a · b` of `[batch_size, num_heads, m, k]` and
    /// `[batch_size, num_heads, k, n]`, or `a · bᵀ` with `b` stored as `[.., n, k]`. `b` may have fewer heads than `a`;
    /// each then serves an equal number of neighbouring heads of `a` (grouped queries).
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn batched_matmul(&mut self, a: ValueId, b: ValueId, rhs: Rhs) -> Result<ValueId, GraphError> {
        let apart = Heads::Apart;
        self.node(Op::BatchedMatMul { rhs, a: apart, b: apart, out: apart }, &[a, b])
    }

    /// Adds `table[bucket, head]` to scores `[batch_size, num_heads, padded_len, padded_len]`; `table` is
    /// `[num_buckets, num_heads]`. The bucket follows from the distance between query and key: each side has buckets of
    /// its own, in logarithmic steps up to `max_distance` (T5, MPNet).
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn add_relative_bias(
        &mut self,
        scores: ValueId,
        table: ValueId,
        num_buckets: usize,
        max_distance: usize,
    ) -> Result<ValueId, GraphError> {
        let buckets = RelativeBuckets { num_buckets, max_distance };
        self.node(Op::AddRelativeBias(DistanceBias::Buckets(buckets)), &[scores, table])
    }

    /// Subtracts from scores `[batch_size, num_heads, padded_len, padded_len]` the distance between query and key, on
    /// either side, times the head's slope ([`alibi_slope`](turbo_kernels::alibi_slope)): attention with linear biases.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn add_alibi(&mut self, scores: ValueId) -> Result<ValueId, GraphError> {
        self.node(Op::AddRelativeBias(DistanceBias::Alibi), &[scores])
    }

    /// The score of each head of `x` with each relative position, `[batch_size, padded_len, num_heads · positions]`,
    /// for [`GraphBuilder::add_disentangled`]. `x` has a row per token, `table` a row `[num_heads · head_dim]` per
    /// position.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn position_scores(
        &mut self,
        x: ValueId,
        heads: HeadColumns,
        table: ValueId,
        positions: PositionBuckets,
    ) -> Result<ValueId, GraphError> {
        self.node(Op::PositionScores { heads, positions }, &[x, table])
    }

    /// Adds to scores `[batch_size, num_heads, padded_len, padded_len]` the scores of query and key with the position
    /// that their distance selects: disentangled attention (DeBERTa). `of_queries` and `of_keys` come from
    /// [`GraphBuilder::position_scores`].
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn add_disentangled(
        &mut self,
        scores: ValueId,
        [of_queries, of_keys]: [ValueId; 2],
        positions: PositionBuckets,
    ) -> Result<ValueId, GraphError> {
        let bias = DistanceBias::Disentangled(positions);
        self.node(Op::AddRelativeBias(bias), &[scores, of_queries, of_keys])
    }

    /// Sets scores `[batch_size, num_heads, rows, padded_len]` to −∞ where the key is padding, or where `mask` hides it
    /// from the query.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn mask(&mut self, scores: ValueId, mask: AttentionMask) -> Result<ValueId, GraphError> {
        self.node(Op::Mask(mask), &[scores])
    }

    /// Softmax over the last axis of `[batch_size, num_heads, rows, columns]`.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn softmax(&mut self, scores: ValueId) -> Result<ValueId, GraphError> {
        self.node(Op::Softmax, &[scores])
    }

    /// `[batch_size, padded_len, hidden]` to `[batch_size, hidden]`.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn pool(&mut self, x: ValueId, pooling: Pooling) -> Result<ValueId, GraphError> {
        self.node(Op::Pool(pooling), &[x])
    }

    /// The rows of the tokens that the batch selects ([`Staging::select`](crate::Staging::select)), in the order of the
    /// sequences: `[batch_size, padded_len, hidden]` to `[selected_rows, hidden]`. Later operators compute only these
    /// rows.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn select(&mut self, x: ValueId) -> Result<ValueId, GraphError> {
        self.node(Op::Select, &[x])
    }

    /// Names a computed value as an output, which the caller reads. A value has at most one name, and a name at most
    /// one value; otherwise [`GraphBuilder::finish`] returns an error.
    pub fn output(&mut self, name: &str, value: ValueId) {
        let taken = self.graph.outputs().find(|(_, taken)| *taken == name);
        let why = match (taken, &self.graph.value(value).storage) {
            (Some((other, _)), _) => format!("%{} has this name already", other.0),
            (None, Storage::Output(other)) => format!("%{} is the output {other:?} already", value.0),
            (None, Storage::Weight(_) | Storage::Computed(_) | Storage::Input(_)) => {
                format!("%{} is not a computed value", value.0)
            }
            (None, Storage::Activation) => {
                self.graph.values[value.index()].storage = Storage::Output(name.to_owned());
                return;
            }
        };
        self.wrong_output.get_or_insert(GraphError::Output { name: name.to_owned(), why });
    }

    /// The number of values in a row of `x`; `None` where the batch determines it.
    pub fn columns(&self, x: ValueId) -> Option<usize> {
        self.graph.value(x).shape.last_fixed()
    }

    /// The finished graph.
    ///
    /// # Errors
    /// [`GraphError::Output`], [`GraphError::NoOutput`], [`GraphError::Malformed`].
    pub fn finish(self) -> Result<Graph, GraphError> {
        if let Some(error) = self.wrong_output {
            return Err(error);
        }
        verify::verify(&self.graph, "build")?;
        Ok(self.graph)
    }

    fn node(&mut self, op: Op, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let shapes: Vec<&Shape> = inputs.iter().map(|&input| &self.graph.value(input).shape).collect();
        let output = shape::infer(&op, &shapes)?;
        let output = self.graph.add_value(output, Storage::Activation);
        self.graph.nodes.push(Node { op, inputs: inputs.to_vec(), output, layer: self.layer });
        Ok(output)
    }
}
