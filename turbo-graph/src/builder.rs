//! The builder with which a model is drawn.

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
/// The shapes of the results are inferred; a mistake is an error at the operator that meets it.
pub struct GraphBuilder {
    graph: Graph,
    layer: Option<u32>,
    /// The first output that could not be named, returned when the drawing is finished.
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

    /// Ids of the batch, `[batch_size, padded_len]`, u32.
    pub fn input(&mut self, input: Input) -> ValueId {
        self.graph.add_value(Shape::per_token(&[]), Storage::Input(input))
    }

    /// A tensor of the checkpoint, named and shaped as published: linear `[out, in]`, table `[rows, hidden]`, vector
    /// `[n]`. Equal arguments give the same value, so that shared weights are loaded once.
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> ValueId {
        let named = NamedWeight { name: name.to_owned(), shape: shape.to_vec() };
        self.graph.weight(Shape::fixed(shape), vec![named])
    }

    /// The table that [`GraphBuilder::rotary`] reads, `[positions, head_dim]`: made when the program is loaded. Equal
    /// arguments give the same value. `inverse_frequencies` are the radians per position of each pair of columns,
    /// `head_dim / 2` of them: `base^(−2i / head_dim)` as a rule.
    pub fn rotary_table(&mut self, inverse_frequencies: &[f64], positions: usize) -> ValueId {
        let table = RotaryTable { inverse_frequencies: inverse_frequencies.to_vec(), positions };
        self.graph.constant(Shape::fixed(&table.shape()), Storage::Computed(table))
    }

    /// From now on nodes belong to repeated layer `index`, or to none. Layers ascend, each in one piece; alike ones
    /// share one plan and are printed once.
    pub fn layer(&mut self, index: Option<u32>) {
        self.layer = index;
    }

    /// Rows of `table`, `[rows, hidden]`, one per id.
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

    /// `a + b`, both of one shape.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.node(Op::Add, &[a, b])
    }

    /// `a · b` value by value, both of one shape.
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

    /// `activation(left) · right` of rows that are two halves, `[.., 2n]` to `[.., n]`: a gated feed-forward whose two
    /// matrices are published as one. Two matrices are drawn with [`GraphBuilder::activate`] and [`GraphBuilder::mul`].
    ///
    /// # Errors
    /// [`GraphError::Shape`], also when the number of columns is odd.
    pub fn gate(&mut self, x: ValueId, activation: Activation) -> Result<ValueId, GraphError> {
        self.node(Op::Gate(activation), &[x])
    }

    /// The values of all experts, side by side in a row, times the weights that `routing` makes of the row's `logits`.
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

    /// Layer norm over the last axis, of n values; gain and, where there is one, offset `[n]`. The variance is the mean
    /// square deviation.
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

    /// `x / √(mean of squares + ε) · gain` over the last axis, of n values; gain `[n]`.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn rms_norm(&mut self, x: ValueId, gain: ValueId, epsilon: f32) -> Result<ValueId, GraphError> {
        self.node(Op::RmsNorm { epsilon }, &[x, gain])
    }

    /// As [`GraphBuilder::rms_norm`], each head by itself, with the one gain `[head_dim]`: a row per token to
    /// `[batch_size, padded_len, num_heads · head_dim]`, without the columns that are not of `heads`.
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

    /// Turns every head by the position of its row: a row per token to `[batch_size, padded_len, num_heads · head_dim]`,
    /// without the columns that are not of `heads`. Column `i` of a head turns with `i + head_dim / 2`. `table`:
    /// [`GraphBuilder::rotary_table`]. Drawn before the heads are split.
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

    /// The heads that lie in these columns, `[batch_size, padded_len, columns]` to
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

    /// One product per sequence and head, `[batch_size, num_heads, m, k]` times `[batch_size, num_heads, k, n]`: `a · b`,
    /// or with `b` as `[.., n, k]`, `a · bᵀ`. `b` may have fewer heads, of which each serves as many neighbours of `a`:
    /// grouped queries.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn batched_matmul(&mut self, a: ValueId, b: ValueId, rhs: Rhs) -> Result<ValueId, GraphError> {
        let apart = Heads::Apart;
        self.node(Op::BatchedMatMul { rhs, a: apart, b: apart, out: apart }, &[a, b])
    }

    /// `[batch_size, num_heads, padded_len, padded_len]` of scores, plus `table[bucket, head]` of a table
    /// `[num_buckets, num_heads]`: the bucket follows from how far the key is from the query, two-sided, with logarithmic
    /// steps up to `max_distance` (T5, MPNet).
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

    /// `[batch_size, num_heads, padded_len, padded_len]` of scores, less how far the key is from the query, on either side,
    /// times the head's slope ([`alibi_slope`](turbo_kernels::alibi_slope)): attention with linear biases.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn add_alibi(&mut self, scores: ValueId) -> Result<ValueId, GraphError> {
        self.node(Op::AddRelativeBias(DistanceBias::Alibi), &[scores])
    }

    /// What each head of a row per token scores with each relative position, of which `table` has a row `[num_heads ·
    /// head_dim]` each: `[batch_size, padded_len, num_heads · positions]`, for [`GraphBuilder::add_disentangled`].
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

    /// `[batch_size, num_heads, padded_len, padded_len]` of scores, plus what query and key score with the position that
    /// their distance chooses: disentangled attention (DeBERTa). Both are [`GraphBuilder::position_scores`].
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

    /// `[batch_size, num_heads, rows, padded_len]` of scores: −∞ where the key is padding, or where `mask` hides it from
    /// the query.
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

    /// Rows of the tokens that the batch selects ([`Staging::select`](crate::Staging::select)), in the order of the
    /// sequences: `[batch_size, padded_len, hidden]` to `[selected_rows, hidden]`. What follows is computed for these
    /// rows alone.
    ///
    /// # Errors
    /// [`GraphError::Shape`].
    pub fn select(&mut self, x: ValueId) -> Result<ValueId, GraphError> {
        self.node(Op::Select, &[x])
    }

    /// Names a computed value as a result that the caller reads. A value has one name, and a name one value; other
    /// wishes are refused by [`GraphBuilder::finish`].
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

    /// Values of a row of `x`; `None` where the batch says how many.
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
