//! What an operator costs for a batch: floating-point operations, and bytes that must pass at least once.

use turbo_kernels::matmul::Rhs;

use crate::{
    dim::{Dim, Extents},
    graph::{Graph, Node, Storage, ValueId},
    op::{Heads, Op},
};

/// The floor of an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Additions, multiplications and the like; a fused multiply-add counts two.
    pub flops: u64,
    /// Bytes of inputs, weights and results, each once.
    pub bytes: u64,
}

impl std::ops::Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost { flops: self.flops + other.flops, bytes: self.bytes + other.bytes }
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::default(), |total, cost| total + cost)
    }
}

impl Graph {
    /// The cost of one node for a batch. Element-wise steps count one operation per value and step; of an embedding
    /// table only the rows taken count.
    pub fn cost(&self, node: &Node, extents: &Extents) -> Cost {
        let elements = |value: ValueId| self.value(value).shape.elements(extents) as u64;
        let (out, first) = (elements(node.output), elements(node.inputs[0]));
        let flops = match node.op {
            Op::Embed | Op::SplitHeads(_) | Op::MergeHeads | Op::Mask => 0,
            Op::MatMul => self.product_flops(node, out),
            Op::Linear { activation } => {
                self.product_flops(node, out) + out * if activation.is_some() { 1 + ACTIVATION } else { 1 }
            }
            Op::AddBias | Op::Add | Op::Scale { .. } => out,
            Op::Activate(_) => out * ACTIVATION,
            Op::LayerNorm { .. } => out * NORM,
            Op::BiasResidualLayerNorm { .. } => out * (NORM + 2),
            Op::EmbedSumLayerNorm { .. } => out * (NORM + 2),
            Op::Softmax => out * SOFTMAX,
            Op::ScaleMaskSoftmax { .. } => out * (SOFTMAX + 1),
            Op::BatchedMatMul { rhs, a, .. } => 2 * out * self.summed(node, rhs, a, extents),
            Op::Attention { num_heads, head_dim, .. } => {
                let scores = num_heads as u64 * self.score_count(node, extents);
                scores * (4 * head_dim as u64 + SOFTMAX + 1)
            }
            Op::Pool(_) => first,
        };
        let values = node.inputs.iter().enumerate().map(|(index, &input)| match self.value(input).storage {
            Storage::Weight(_) if self.is_table(node, index) => out,
            _ => elements(input),
        });
        Cost { flops, bytes: 4 * (out + values.sum::<u64>()) }
    }

    /// The cost of all nodes for a batch.
    pub fn total_cost(&self, extents: &Extents) -> Cost {
        self.nodes().iter().map(|node| self.cost(node, extents)).sum()
    }

    fn product_flops(&self, node: &Node, out: u64) -> u64 {
        2 * out * self.value(node.inputs[1]).shape.last_fixed().unwrap_or(0) as u64
    }

    fn summed(&self, node: &Node, rhs: Rhs, a: Heads, extents: &Extents) -> u64 {
        match (rhs, a) {
            (Rhs::Transposed, Heads::Within(columns)) => columns.head_dim as u64,
            _ => self.value(node.inputs[0]).shape.0.last().map_or(0, |dim| dim.size(extents)) as u64,
        }
    }

    /// Scores of one head over the batch.
    fn score_count(&self, node: &Node, extents: &Extents) -> u64 {
        let padded = self.value(node.inputs[0]).shape.0.contains(&Dim::PaddedLen);
        let scores = if padded { extents.batch_size * extents.padded_len.pow(2) } else { extents.sum_len_sq };
        scores as u64
    }

    fn is_table(&self, node: &Node, input: usize) -> bool {
        matches!((node.op, input), (Op::Embed, 0) | (Op::EmbedSumLayerNorm { .. }, 0 | 2 | 4))
    }
}

/// Steps per value: mean, deviation, square, sum, scale, offset.
const NORM: u64 = 7;
/// Steps per value: maximum, difference, exponential, sum, quotient.
const SOFTMAX: u64 = 5;
/// Steps per value of an activation, counted as one evaluation of a short polynomial.
const ACTIVATION: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, Input, dim::Extents};

    #[test]
    fn a_product_counts_two_per_multiply_add_and_each_byte_once() {
        let mut g = GraphBuilder::new("product");
        let (table, ids) = (g.weight("table", &[1000, 8]), g.input(Input::InputIds));
        let x = g.embed(table, ids).unwrap();
        let weight = g.weight("w", &[4, 8]);
        let y = g.matmul(x, weight).unwrap();
        g.output("y", y);
        let graph = g.finish().unwrap();
        let extents = Extents::of(&[3, 2]); // padded: 6 rows
        assert_eq!(graph.cost(&graph.nodes()[0], &extents), Cost { flops: 0, bytes: 4 * (48 + 48 + 6) });
        assert_eq!(
            graph.cost(&graph.nodes()[1], &extents),
            Cost { flops: 2 * 6 * 8 * 4, bytes: 4 * (6 * 8 + 32 + 6 * 4) }
        );
    }
}
