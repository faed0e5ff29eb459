//! From a node to a kernel call: which bytes it reads and writes, and which kernel answers.

use turbo_alloc::MemoryPlan;
use turbo_kernels::{
    Activation, AttentionMask, Columns, EncoderKernels, Epilogue, Experts, FeedForward, FloatsOn, HeadSizes,
    KernelError, PositionBuckets, Routing, Span,
    attention::AttentionShape,
    embed::{Lookup, LookupOn},
    matmul::{HeadStrides, MatMulShape, Rhs},
    softmax::ScoreShape,
};

use super::{
    constants::Constants,
    heads::{HeadCopy, HeadPlaces},
    inputs::Inputs,
    memory::Memory,
    weights::Weights,
};
use crate::{
    GraphError, Op, Program, ValueId,
    dim::Extents,
    graph::{Node, Storage},
    op::{AddendPlaces, Addends, DistanceBias, FeedForwardParts, HeadColumns, Heads, MAX_LOOKUPS},
};

/// One batch on its way through the nodes.
pub(crate) struct Launch<'a, D: EncoderKernels> {
    pub(crate) device: &'a D,
    pub(crate) queue: &'a mut D::Queue,
    pub(crate) program: &'a Program,
    pub(crate) weights: &'a Weights<D>,
    pub(crate) inputs: &'a Inputs<D>,
    pub(crate) memory: &'a mut Memory<D>,
    pub(crate) plan: &'a MemoryPlan,
    pub(crate) outputs: &'a [ValueId],
    pub(crate) extents: Extents,
}

impl<'a, D: EncoderKernels> Launch<'a, D> {
    /// Runs one node, unless its result has no rows because the batch selects none.
    pub(crate) fn node(&mut self, node: &Node) -> Result<(), GraphError> {
        let out = self.span(node.output);
        if out.bytes == 0 {
            return Ok(());
        }
        let (device, inputs, constants) = (self.device, self.inputs, self.constants(node));
        match node.op {
            Op::Embed => {
                let lookup = self.lookup(node, 0)?;
                self.call([], out, |queue, [], out| device.embed(queue, lookup, out))
            }
            Op::MatMul => self.gemm(node, Epilogue::None, out),
            Op::AddBias => {
                let bias = constants.plain(1)?;
                self.call(self.spans(node), out, |queue, [x], out| device.add_bias(queue, x, bias, out))
            }
            Op::Add => self.call(self.spans(node), out, |queue, [a, b], out| device.add(queue, a, b, out)),
            Op::Mul => self.call(self.spans(node), out, |queue, [a, b], out| device.mul(queue, a, b, out)),
            Op::Scale { factor } => {
                self.call(self.spans(node), out, |queue, [x], out| device.scale(queue, x, factor, out))
            }
            Op::Activate(activation) => {
                self.call(self.spans(node), out, |queue, [x], out| device.activate(queue, x, activation, out))
            }
            Op::Gate(activation) => {
                let half = self.columns(node.inputs[0]) / 2;
                self.call(self.spans(node), out, |queue, [x], out| {
                    device.gate(queue, activation, x, half, out)
                })
            }
            Op::WeighExperts(routing) => self.call(self.spans(node), out, |queue, [x, logits], out| {
                device.weigh_experts(queue, x, logits, routing, out)
            }),
            Op::LayerNorm { epsilon } => {
                let norm = constants.norm(1, epsilon)?;
                self.call(self.spans(node), out, |queue, [x], out| device.layer_norm(queue, x, norm, out))
            }
            Op::RmsNorm { epsilon } => {
                let gain = constants.plain(1)?;
                self.call(self.spans(node), out, |queue, [x], out| {
                    device.rms_norm(queue, x, gain, epsilon, out)
                })
            }
            Op::HeadRmsNorm { heads, epsilon } => self.head_rms_norm(node, heads, epsilon, out),
            Op::Rotary(heads) => self.rotary(node, heads, out),
            Op::SplitHeads(heads) => {
                let copy = HeadCopy::split(self.program, &self.extents, node, heads);
                self.copy_heads(node, copy, out)
            }
            Op::MergeHeads => {
                let copy = HeadCopy::merge(self.program, &self.extents, node);
                self.copy_heads(node, copy, out)
            }
            Op::BatchedMatMul { rhs, a, b, out: to } => self.batched_matmul(node, rhs, [a, b, to], out),
            Op::PositionScores { heads, positions } => self.position_scores(node, heads, positions, out),
            Op::AddRelativeBias(bias) => self.add_relative_bias(node, bias, out),
            Op::Mask(mask) => {
                let (shape, lens) = (self.score_shape(node), inputs.seq_lens(device)?);
                self.call(self.spans(node), out, |queue, [x], out| {
                    device.mask(queue, shape, x, lens, mask, out)
                })
            }
            Op::Softmax => {
                let (shape, mask) = (self.score_shape(node), AttentionMask::Full);
                self.call(self.spans(node), out, |queue, [x], out| {
                    device.scale_mask_softmax(queue, shape, x, 1.0, None, None, mask, out)
                })
            }
            Op::Pool(pooling) => {
                let layout = inputs.layout(device)?;
                self.call(self.spans(node), out, |queue, [x], out| {
                    device.pool(queue, pooling, layout, x, out)
                })
            }
            Op::Select => {
                let ids = inputs.selected(device)?;
                self.call(self.spans(node), out, |queue, [table], out| {
                    device.embed(queue, Lookup { table, ids }, out)
                })
            }
            Op::Linear { activation } => {
                let epilogue = match (constants.optional(2)?, activation) {
                    (Some(bias), Some(activation)) => Epilogue::BiasAct(bias, activation),
                    (Some(bias), None) => Epilogue::Bias(bias),
                    (None, Some(activation)) => Epilogue::Act(activation),
                    (None, None) => Epilogue::None,
                };
                self.gemm(node, epilogue, out)
            }
            Op::ResidualLinear { bias } => self.residual_gemm(node, bias, out),
            Op::LinearLayerNorm { adds, epsilon } => self.gemm_norm(node, adds, epsilon, out),
            Op::FeedForward(parts) => self.feed_forward(node, parts, out),
            Op::Experts { routing, activation } => self.experts(node, routing, activation, out),
            Op::LinearMaxPool => self.gemm_max_pool(node, out),
            Op::ResidualLayerNorm { epsilon } => self.residual_norm(node, [0, 1], None, epsilon, out),
            Op::BiasResidualLayerNorm { epsilon } => self.residual_norm(node, [0, 2], Some(1), epsilon, out),
            Op::ScaleMaskSoftmax { scale, mask, bias } => {
                self.scale_mask_softmax(node, (scale, mask, bias), out)
            }
            Op::Attention { queries, q, k, v, scale, mask, bias } => {
                let shape = AttentionShape {
                    num_heads: q.num_heads,
                    num_kv_heads: k.num_heads,
                    head_dim: q.head_dim,
                    scale,
                    mask,
                    dtype: self.program.graph().dtype(node),
                    queries,
                };
                self.attention(node, shape, [q, k, v], bias, out)
            }
            Op::EmbedSumLayerNorm { lookups, epsilon } => {
                self.embed_sum_layer_norm(node, lookups, epsilon, out)
            }
        }
    }

    /// Calls a kernel that reads these spans, all computed, and writes one.
    fn call<'s, const N: usize>(
        &'s mut self,
        reads: [Span; N],
        out: Span,
        kernel: impl FnOnce(
            &mut D::Queue,
            [FloatsOn<'s, D>; N],
            D::ViewMut<'s, D::Float>,
        ) -> Result<(), KernelError>,
    ) -> Result<(), GraphError> {
        let (reads, [out]) = self.device.views(&mut self.memory.blocks, reads, [out])?;
        Ok(kernel(self.queue, reads, out)?)
    }

    fn embed_sum_layer_norm(
        &mut self,
        node: &Node,
        count: usize,
        epsilon: f32,
        out: Span,
    ) -> Result<(), GraphError> {
        let mut lookups = [self.lookup(node, 0)?; MAX_LOOKUPS];
        for (index, lookup) in lookups.iter_mut().enumerate().take(count).skip(1) {
            *lookup = self.lookup(node, 2 * index)?;
        }
        let norm = self.constants(node).norm(2 * count, epsilon)?;
        let device = self.device;
        self.call([], out, |queue, [], out| device.embed_sum_layer_norm(queue, &lookups[..count], norm, out))
    }

    fn head_rms_norm(
        &mut self,
        node: &Node,
        heads: HeadColumns,
        epsilon: f32,
        out: Span,
    ) -> Result<(), GraphError> {
        let (device, gain) = (self.device, self.constants(node).plain(1)?);
        let row_stride = self.columns(node.inputs[0]);
        self.call(self.spans(node), out, |queue, [rows], out| {
            let x = Columns { rows, first: heads.first, row_stride };
            device.head_rms_norm(queue, sizes(heads), x, gain, epsilon, out)
        })
    }

    fn rotary(&mut self, node: &Node, heads: HeadColumns, out: Span) -> Result<(), GraphError> {
        let (device, table) = (self.device, self.constants(node).plain(1)?);
        let (layout, row_stride) = (self.inputs.layout(device)?, self.columns(node.inputs[0]));
        self.call(self.spans(node), out, |queue, [rows], out| {
            let x = Columns { rows, first: heads.first, row_stride };
            device.rotary(queue, sizes(heads), layout, x, table, out)
        })
    }

    fn copy_heads(&mut self, node: &Node, copy: HeadCopy, out: Span) -> Result<(), GraphError> {
        let (device, HeadCopy { shape, from, to }) = (self.device, copy);
        self.call(self.spans(node), out, |queue, [x], out| {
            device.copy_heads(queue, shape, (x, from), (out, to))
        })
    }

    fn gemm(
        &mut self,
        node: &Node,
        epilogue: Epilogue<FloatsOn<'a, D>>,
        out: Span,
    ) -> Result<(), GraphError> {
        let (device, weight) = (self.device, self.constants(node).matrix(1));
        self.call(self.spans(node), out, |queue, [x], out| device.gemm(queue, x, weight, epilogue, out))
    }

    fn gemm_max_pool(&mut self, node: &Node, out: Span) -> Result<(), GraphError> {
        let (device, constants) = (self.device, self.constants(node));
        let (layout, bias) = (self.inputs.layout(device)?, constants.optional(2)?);
        let weight = constants.matrix(1);
        self.call(self.spans(node), out, |queue, [x], out| {
            device.gemm_max_pool(queue, layout, x, weight, bias, out)
        })
    }

    fn gemm_norm(&mut self, node: &Node, adds: Addends, epsilon: f32, out: Span) -> Result<(), GraphError> {
        let (device, constants, places) = (self.device, self.constants(node), adds.places(2));
        let weight = constants.matrix(1);
        let (bias, norm) = (constants.given(places.bias)?, constants.norm(places.next, epsilon)?);
        self.call(self.rows_and_residual(node, places), out, |queue, [x, residual], out| {
            let residual = places.residual.map(|_| residual);
            device.gemm_norm(queue, x, weight, bias, residual, norm, out)
        })
    }

    fn feed_forward(&mut self, node: &Node, parts: FeedForwardParts, out: Span) -> Result<(), GraphError> {
        let (device, constants, places) = (self.device, self.constants(node), parts.places());
        let norm = parts.norm.map(|epsilon| constants.norm(places.next, epsilon)).transpose()?;
        let (up_bias, down_bias) = (constants.given(parts.up_bias())?, constants.given(places.bias)?);
        let (up, down) = (constants.matrix(1), constants.matrix(2));
        self.call(self.rows_and_residual(node, places), out, |queue, [x, residual], out| {
            let residual = places.residual.map(|_| residual);
            let layer = FeedForward { up, up_bias, hidden: parts.hidden, down, down_bias, residual, norm };
            device.feed_forward(queue, x, layer, out)
        })
    }

    fn experts(
        &mut self,
        node: &Node,
        routing: Routing,
        activation: Activation,
        out: Span,
    ) -> Result<(), GraphError> {
        let device = self.device;
        let [up, down] = [2, 3].map(|input| self.constants(node).experts(input));
        let layer = Experts { routing, up, activation, down };
        self.call(self.spans(node), out, |queue, [x, logits], out| {
            device.experts(queue, x, logits, layer, out)
        })
    }

    /// The rows that a product multiplies, and its residual; if it has none, the rows again.
    fn rows_and_residual(&self, node: &Node, places: AddendPlaces) -> [Span; 2] {
        [0, places.residual.unwrap_or(0)].map(|input| self.span(node.inputs[input]))
    }

    fn residual_gemm(&mut self, node: &Node, bias: bool, out: Span) -> Result<(), GraphError> {
        let (device, constants) = (self.device, self.constants(node));
        let places = Addends { bias, residual: true }.places(2);
        let (weight, bias) = (constants.matrix(1), constants.given(places.bias)?);
        self.call(self.rows_and_residual(node, places), out, |queue, [x, residual], out| {
            let epilogue = match bias {
                Some(bias) => Epilogue::BiasResidual { bias, residual },
                None => Epilogue::Residual(residual),
            };
            device.gemm(queue, x, weight, epilogue, out)
        })
    }

    /// `read`: the positions of `x` and the residual; the norm's weights follow the last of the named inputs.
    fn residual_norm(
        &mut self,
        node: &Node,
        read: [usize; 2],
        bias: Option<usize>,
        epsilon: f32,
        out: Span,
    ) -> Result<(), GraphError> {
        let (device, constants) = (self.device, self.constants(node));
        let (bias, norm) = (constants.given(bias)?, constants.norm(read[1] + 1, epsilon)?);
        let reads = read.map(|input| self.span(node.inputs[input]));
        self.call(reads, out, |queue, [x, residual], out| {
            device.bias_residual_layer_norm(queue, x, bias, residual, norm, out)
        })
    }

    fn batched_matmul(
        &mut self,
        node: &Node,
        rhs: Rhs,
        heads: [Heads; 3],
        out: Span,
    ) -> Result<(), GraphError> {
        let values = [node.inputs[0], node.inputs[1], node.output];
        let places = |index: usize| HeadPlaces::of(self.program, &self.extents, values[index], heads[index]);
        let (a, b, to) = (places(0), places(1), places(2));
        let shape = MatMulShape {
            batch_size: self.extents.batch_size,
            num_heads: a.num_heads,
            num_kv_heads: b.num_heads,
            m: a.rows,
            n: if rhs == Rhs::Transposed { b.rows } else { b.columns },
            k: a.columns,
        };
        let device = self.device;
        self.call(self.spans(node), out, |queue, [a_view, b_view], out| {
            let (a, b, out) = ((a_view, a.strides), (b_view, b.strides, rhs), (out, to.strides));
            device.batched_matmul(queue, shape, a, b, out)
        })
    }

    fn attention(
        &mut self,
        node: &Node,
        shape: AttentionShape,
        heads: [HeadColumns; 3],
        bias: Option<DistanceBias>,
        out: Span,
    ) -> Result<(), GraphError> {
        let (constants, layout) = (self.constants(node), self.inputs.layout(self.device)?);
        let strides = [0, 1, 2].map(|input| self.columns(node.inputs[input]));
        let ([q, k, v], of_bias) = (self.spans(node), self.spans_of_bias(node, 3, bias));
        let reads = [q, k, v, of_bias[0], of_bias[1]];
        let ([q, k, v, of_queries, of_keys], [out]) =
            self.device.views(&mut self.memory.blocks, reads, [out])?;
        let bias = constants.relative_bias(3, bias, [of_queries, of_keys])?;
        let columns = |i: usize, rows| Columns { rows, first: heads[i].first, row_stride: strides[i] };
        let (q, k, v) = (columns(0, q), columns(1, k), columns(2, v));
        Ok(self.device.attention(self.queue, shape, layout, q, k, v, bias, out)?)
    }

    /// Scores only the positions that two tokens of the batch may be apart; the values of the others stay as they are.
    fn position_scores(
        &mut self,
        node: &Node,
        heads: HeadColumns,
        positions: PositionBuckets,
        out: Span,
    ) -> Result<(), GraphError> {
        let (device, table) = (self.device, self.constants(node).plain(1)?);
        let HeadColumns { first, num_heads, head_dim } = heads;
        let (columns, count) = (self.columns(node.inputs[0]), positions.count());
        let met = positions.within(self.extents.padded_len);
        // a GPU multiplies faster if operands begin at multiples of 16 bytes
        let met = met.start / 8 * 8..met.end.next_multiple_of(8).min(count);
        let rows = self.program.value(node.output).shape.elements(&self.extents) / (num_heads * count);
        let shape = MatMulShape {
            batch_size: 1,
            num_heads,
            num_kv_heads: num_heads,
            m: rows,
            n: met.len(),
            k: head_dim,
        };
        let strides =
            |first, head_stride, row_stride| HeadStrides { first, batch_stride: 0, head_stride, row_stride };
        let a = strides(first, head_dim, columns);
        let b = strides(met.start * heads.width(), head_dim, heads.width());
        let to = strides(met.start, count, num_heads * count);
        self.call(self.spans(node), out, |queue, [x], out| {
            device.batched_matmul(queue, shape, (x, a), (table, b, Rhs::Transposed), (out, to))
        })
    }

    fn add_relative_bias(&mut self, node: &Node, bias: DistanceBias, out: Span) -> Result<(), GraphError> {
        let (constants, shape, [x]) = (self.constants(node), self.score_shape(node), self.spans(node));
        let [of_queries, of_keys] = self.spans_of_bias(node, 1, Some(bias));
        let ([x, of_queries, of_keys], [out]) =
            self.device.views(&mut self.memory.blocks, [x, of_queries, of_keys], [out])?;
        let bias = constants.relative_bias(1, Some(bias), [of_queries, of_keys])?.expect("there is a bias");
        Ok(self.device.add_relative_bias(self.queue, shape, x, bias, out)?)
    }

    fn scale_mask_softmax(
        &mut self,
        node: &Node,
        (scale, mask, bias): (f32, AttentionMask, Option<DistanceBias>),
        out: Span,
    ) -> Result<(), GraphError> {
        let (constants, shape, [x]) = (self.constants(node), self.score_shape(node), self.spans(node));
        let seq_lens = Some(self.inputs.seq_lens(self.device)?);
        let [of_queries, of_keys] = self.spans_of_bias(node, 1, bias);
        let ([x, of_queries, of_keys], [out]) =
            self.device.views(&mut self.memory.blocks, [x, of_queries, of_keys], [out])?;
        let bias = constants.relative_bias(1, bias, [of_queries, of_keys])?;
        Ok(self.device.scale_mask_softmax(self.queue, shape, x, scale, bias, seq_lens, mask, out)?)
    }

    /// The computed inputs of a bias, which begin at `first`; if it has none, spans that the node reads anyway.
    fn spans_of_bias(&self, node: &Node, first: usize, bias: Option<DistanceBias>) -> [Span; 2] {
        let inputs = match bias {
            Some(DistanceBias::Disentangled(_)) => [first, first + 1],
            _ => [0; 2],
        };
        inputs.map(|input| self.span(node.inputs[input]))
    }

    fn score_shape(&self, node: &Node) -> ScoreShape {
        let dims = &self.program.value(node.output).shape.0;
        let size = |axis: usize| dims.get(axis).map_or(0, |dim| dim.size(&self.extents));
        ScoreShape { batch_size: size(0), num_heads: size(1), queries: size(2), keys: size(3) }
    }

    fn lookup(&self, node: &Node, input: usize) -> Result<LookupOn<'a, D>, GraphError> {
        let table = self.constants(node).plain(input)?;
        let Storage::Input(ids) = self.program.value(node.inputs[input + 1]).storage else {
            unreachable!("the verifier checked that lookups read ids of the batch")
        };
        Ok(Lookup { table, ids: self.inputs.ids(self.device, ids)? })
    }

    fn constants<'n>(&self, node: &'n Node) -> Constants<'a, 'n, D> {
        Constants { device: self.device, weights: self.weights, node }
    }

    /// Columns of a value's rows.
    fn columns(&self, value: ValueId) -> usize {
        self.program.value(value).shape.last_fixed().unwrap_or(0)
    }

    /// The spans of the first `N` inputs of a node, all computed.
    fn spans<const N: usize>(&self, node: &Node) -> [Span; N] {
        std::array::from_fn(|input| self.span(node.inputs[input]))
    }

    /// The span of a computed value for this batch.
    fn span(&self, value: ValueId) -> Span {
        let bytes =
            self.program.value(value).shape.elements(&self.extents).saturating_mul(size_of::<D::Float>());
        match self.program.slots().of_value(value) {
            Some(slot) => {
                let place = self.plan.placements[slot];
                Span { block: self.memory.block(place.chunk), offset: place.offset, bytes }
            }
            None => {
                let output = self.outputs.iter().position(|&output| output == value);
                Span { block: output.expect("what is not planned is an output"), offset: 0, bytes }
            }
        }
    }
}

fn sizes(HeadColumns { num_heads, head_dim, .. }: HeadColumns) -> HeadSizes {
    HeadSizes { num_heads, head_dim }
}
