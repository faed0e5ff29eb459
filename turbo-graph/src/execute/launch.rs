//! From a node to a kernel call: which bytes it reads and writes, and which kernel answers.

use turbo_alloc::MemoryPlan;
use turbo_kernels::{
    EncoderKernels, Epilogue, Span,
    attention::AttentionShape,
    embed::{Lookup, LookupOn},
    gather::HeadShape,
    matmul::{HeadStrides, MatMulShape, Rhs},
    norm::NormWeights,
    softmax::ScoreShape,
};

use super::{inputs::Inputs, memory::Memory, weights::Weights};
use crate::{
    GraphError, Op, Program, ValueId,
    dim::Extents,
    graph::{Node, Storage},
    op::{Heads, MAX_LOOKUPS},
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
    /// Runs one node.
    pub(crate) fn node(&mut self, node: &Node) -> Result<(), GraphError> {
        let out = self.span(node.output);
        match node.op {
            Op::Embed => {
                let lookup = self.lookup(node, 0)?;
                let ([], [out]) = self.device.views(&mut self.memory.blocks, [], [out])?;
                self.device.embed(self.queue, lookup, out)?;
            }
            Op::EmbedSumLayerNorm { lookups: count, epsilon } => {
                let mut lookups = [self.lookup(node, 0)?; MAX_LOOKUPS];
                for (index, lookup) in lookups.iter_mut().enumerate().take(count).skip(1) {
                    *lookup = self.lookup(node, 2 * index)?;
                }
                let norm = self.norm(node, 2 * count, epsilon)?;
                let ([], [out]) = self.device.views(&mut self.memory.blocks, [], [out])?;
                self.device.embed_sum_layer_norm(self.queue, &lookups[..count], norm, out)?;
            }
            Op::MatMul => self.gemm(node, Epilogue::None, out)?,
            Op::Linear { activation } => {
                let bias = self.weights.plain(self.device, node.inputs[2])?;
                let epilogue = match activation {
                    Some(activation) => Epilogue::BiasAct(bias, activation),
                    None => Epilogue::Bias(bias),
                };
                self.gemm(node, epilogue, out)?;
            }
            Op::BiasResidualLayerNorm { epsilon } => {
                let bias = self.weights.plain(self.device, node.inputs[1])?;
                let norm = self.norm(node, 3, epsilon)?;
                let reads = [self.span(node.inputs[0]), self.span(node.inputs[2])];
                let ([x, residual], [out]) = self.device.views(&mut self.memory.blocks, reads, [out])?;
                self.device.bias_residual_layer_norm(self.queue, x, bias, residual, norm, out)?;
            }
            Op::Add => {
                let reads = [self.span(node.inputs[0]), self.span(node.inputs[1])];
                let ([a, b], [out]) = self.device.views(&mut self.memory.blocks, reads, [out])?;
                self.device.add(self.queue, a, b, out)?;
            }
            Op::BatchedMatMul { rhs, a, b, out: to } => self.batched_matmul(node, rhs, [a, b, to], out)?,
            _ => self.one_input(node, out)?,
        }
        Ok(())
    }

    /// The operators that read one computed value.
    fn one_input(&mut self, node: &Node, out: Span) -> Result<(), GraphError> {
        let read = self.span(node.inputs[0]);
        let split = self.head_copy(node);
        let scores = self.score_shape(node);
        let device = self.device;
        let ([x], [out]) = device.views(&mut self.memory.blocks, [read], [out])?;
        let queue = &mut *self.queue;
        match node.op {
            Op::AddBias => device.add_bias(queue, x, self.weights.plain(device, node.inputs[1])?, out)?,
            Op::Scale { factor } => device.scale(queue, x, factor, out)?,
            Op::Activate(activation) => device.activate(queue, x, activation, out)?,
            Op::LayerNorm { epsilon } => {
                let norm = NormWeights {
                    gain: self.weights.plain(device, node.inputs[1])?,
                    offset: self.weights.plain(device, node.inputs[2])?,
                    epsilon,
                };
                device.layer_norm(queue, x, norm, out)?;
            }
            Op::SplitHeads(_) | Op::MergeHeads => {
                let (shape, from, to) = split.expect("splitting and merging heads is a copy between strides");
                device.copy_heads(queue, shape, (x, from), (out, to))?;
            }
            Op::Mask => device.mask(queue, scores, x, self.inputs.seq_lens(device)?, out)?,
            Op::Softmax => device.scale_mask_softmax(queue, scores, x, None, 1.0, out)?,
            Op::ScaleMaskSoftmax { scale } => {
                let seq_lens = Some(self.inputs.seq_lens(device)?);
                device.scale_mask_softmax(queue, scores, x, seq_lens, scale, out)?;
            }
            Op::Attention { num_heads, head_dim, scale } => {
                let shape = AttentionShape { num_heads, head_dim, scale };
                device.attention(queue, shape, self.inputs.layout(device)?, x, out)?;
            }
            Op::Pool(pooling) => device.pool(queue, pooling, self.inputs.layout(device)?, x, out)?,
            Op::Embed
            | Op::EmbedSumLayerNorm { .. }
            | Op::MatMul
            | Op::Linear { .. }
            | Op::BiasResidualLayerNorm { .. }
            | Op::Add
            | Op::BatchedMatMul { .. } => unreachable!("{} does not read one computed value", node.op.name()),
        }
        Ok(())
    }

    fn gemm(
        &mut self,
        node: &Node,
        epilogue: Epilogue<D::View<'a, f32>>,
        out: Span,
    ) -> Result<(), GraphError> {
        let read = self.span(node.inputs[0]);
        let weight = self.weights.packed(node.inputs[1]);
        let ([x], [out]) = self.device.views(&mut self.memory.blocks, [read], [out])?;
        Ok(self.device.gemm(self.queue, x, weight, epilogue, out)?)
    }

    fn batched_matmul(
        &mut self,
        node: &Node,
        rhs: Rhs,
        [a, b, to]: [Heads; 3],
        out: Span,
    ) -> Result<(), GraphError> {
        let reads = [self.span(node.inputs[0]), self.span(node.inputs[1])];
        let (a, b) = (self.heads(node.inputs[0], a), self.heads(node.inputs[1], b));
        let to = self.heads(node.output, to);
        let shape = MatMulShape {
            batch_size: self.extents.batch_size,
            num_heads: a.num_heads,
            m: a.rows,
            n: if rhs == Rhs::Transposed { b.rows } else { b.columns },
            k: a.columns,
        };
        let ([a_view, b_view], [out]) = self.device.views(&mut self.memory.blocks, reads, [out])?;
        let (a, b, out) = ((a_view, a.strides), (b_view, b.strides, rhs), (out, to.strides));
        Ok(self.device.batched_matmul(self.queue, shape, a, b, out)?)
    }

    /// The copy that a split or merge of heads is.
    fn head_copy(&self, node: &Node) -> Option<(HeadShape, HeadStrides, HeadStrides)> {
        let (from, to) = match node.op {
            Op::SplitHeads(columns) => {
                (self.heads(node.inputs[0], Heads::Within(columns)), self.heads(node.output, Heads::Apart))
            }
            Op::MergeHeads => {
                let from = self.heads(node.inputs[0], Heads::Apart);
                let columns =
                    crate::op::HeadColumns { first: 0, num_heads: from.num_heads, head_dim: from.columns };
                (from, self.heads(node.output, Heads::Within(columns)))
            }
            _ => return None,
        };
        let shape = HeadShape {
            batch_size: self.extents.batch_size,
            num_heads: from.num_heads,
            rows: from.rows,
            head_dim: from.columns,
        };
        Some((shape, from.strides, to.strides))
    }

    /// Where the heads of `value` lie.
    fn heads(&self, value: ValueId, heads: Heads) -> HeadPlaces {
        let dims = &self.program.value(value).shape.0;
        let size = |axis: usize| dims.get(axis).map_or(0, |dim| dim.size(&self.extents));
        match heads {
            Heads::Apart => {
                let (num_heads, rows, columns) = (size(1), size(2), size(3));
                let (head_stride, batch_stride) = (rows * columns, num_heads * rows * columns);
                let strides = HeadStrides { first: 0, batch_stride, head_stride, row_stride: columns };
                HeadPlaces { num_heads, rows, columns, strides }
            }
            Heads::Within(columns) => {
                let (rows, width) = (size(1), size(2));
                let strides = HeadStrides {
                    first: columns.first,
                    batch_stride: rows * width,
                    head_stride: columns.head_dim,
                    row_stride: width,
                };
                HeadPlaces { num_heads: columns.num_heads, rows, columns: columns.head_dim, strides }
            }
        }
    }

    fn score_shape(&self, node: &Node) -> ScoreShape {
        let dims = &self.program.value(node.output).shape.0;
        let size = |axis: usize| dims.get(axis).map_or(0, |dim| dim.size(&self.extents));
        ScoreShape { batch_size: size(0), num_heads: size(1), queries: size(2), keys: size(3) }
    }

    fn lookup(&self, node: &Node, input: usize) -> Result<LookupOn<'a, D>, GraphError> {
        let table = self.weights.plain(self.device, node.inputs[input])?;
        let Storage::Input(ids) = self.program.value(node.inputs[input + 1]).storage else {
            unreachable!("the verifier checked that lookups read ids of the batch")
        };
        Ok(Lookup { table, ids: self.inputs.ids(self.device, ids)? })
    }

    fn norm(
        &self,
        node: &Node,
        first: usize,
        epsilon: f32,
    ) -> Result<NormWeights<D::View<'a, f32>>, GraphError> {
        let gain = self.weights.plain(self.device, node.inputs[first])?;
        let offset = self.weights.plain(self.device, node.inputs[first + 1])?;
        Ok(NormWeights { gain, offset, epsilon })
    }

    /// The bytes of a computed value for this batch.
    fn span(&self, value: ValueId) -> Span {
        let bytes = self.program.value(value).shape.elements(&self.extents).saturating_mul(size_of::<f32>());
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

/// Sizes and strides of a tensor of heads.
struct HeadPlaces {
    num_heads: usize,
    rows: usize,
    columns: usize,
    strides: HeadStrides,
}
