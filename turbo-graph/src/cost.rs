//! What an operator costs for a batch: floating-point operations, and bytes that must move at least once.

mod summary;

pub use summary::KindCost;

use turbo_kernels::{AttentionMask, DType, Hidden, Pooling, Queries, Routing};

use crate::{
    dim::{Dim, Extents},
    graph::{Graph, Node, ValueId},
    op::{Heads, Op},
};

/// What an operator costs at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Additions, multiplications and the like; a fused multiply-add counts two.
    pub flops: u64,
    /// The operations among them that are of bf16 products.
    pub bf16_flops: u64,
    /// The operations among them that are of int8 products.
    pub int8_ops: u64,
    /// Bytes of inputs, weights and results, each once.
    pub bytes: u64,
}

/// Sums saturate at `u64::MAX`.
impl std::ops::Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            flops: self.flops.saturating_add(other.flops),
            bf16_flops: self.bf16_flops.saturating_add(other.bf16_flops),
            int8_ops: self.int8_ops.saturating_add(other.int8_ops),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::default(), |total, cost| total + cost)
    }
}

impl Graph {
    /// The cost of one node for a batch.
    ///
    /// * An elementwise step counts one operation per value.
    /// * Of tables, and of tensors that rows are picked from, only the rows taken count; of a tensor that holds several
    ///   heads, only the columns read; of attention, only the keys that are seen.
    /// * Of experts, the operations of those that a row uses count, whatever a device computes, and the bytes of as
    ///   many as the rows can use together.
    /// * What windows hide in the packed layout is exact for sequences of one length; others count as if all had the
    ///   mean length of their tokens.
    /// * Matrices count in their dtype, without the scales of int8.
    pub fn cost(&self, node: &Node, extents: &Extents) -> Cost {
        let (multiplied, beside) = (self.product_flops(node, extents), self.other_flops(node, extents));
        let of_dtype = |dtype| if self.dtype(node) == dtype { multiplied } else { 0 };
        let read = (0..node.inputs.len()).map(|input| self.bytes_read(node, input, extents));
        Cost {
            flops: multiplied + beside,
            bf16_flops: of_dtype(DType::Bf16),
            int8_ops: of_dtype(DType::Int8),
            bytes: 4 * self.elements(node.output, extents) + read.sum::<u64>(),
        }
    }

    fn elements(&self, value: ValueId, extents: &Extents) -> u64 {
        self.value(value).shape.elements(extents) as u64
    }

    /// Operations of the products of a node.
    fn product_flops(&self, node: &Node, extents: &Extents) -> u64 {
        match node.op {
            Op::BatchedMatMul { a, .. } => {
                2 * self.elements(node.output, extents) * self.summed(node, a, extents)
            }
            Op::Attention { queries, q, mask, .. } => {
                q.num_heads as u64 * self.score_count(node, queries, mask, extents) * 4 * q.head_dim as u64
            }
            Op::PositionScores { heads, positions } => {
                let met = positions.within(extents.padded_len).len();
                2 * self.product_rows(node, extents) * (met * heads.width()) as u64
            }
            Op::Experts { routing, .. } => {
                let of_all = 2 * self.product_rows(node, extents) * self.weights_multiplied(node);
                of_all * routing.top_k as u64 / routing.num_experts as u64
            }
            _ => 2 * self.product_rows(node, extents) * self.weights_multiplied(node),
        }
    }

    /// Values of the matrices that a node multiplies by.
    fn weights_multiplied(&self, node: &Node) -> u64 {
        self.factors(node).map(|matrix| self.matrix(matrix).iter().product::<usize>() as u64).sum()
    }

    /// Operations of a node besides its products.
    fn other_flops(&self, node: &Node, extents: &Extents) -> u64 {
        let out = self.elements(node.output, extents);
        let given = |input: usize| u64::from(node.inputs.len() > input);
        match node.op {
            Op::Embed | Op::SplitHeads(_) | Op::MergeHeads | Op::Mask(_) | Op::Select => 0,
            Op::PositionScores { .. } => 0,
            Op::Pool(Pooling::Cls | Pooling::LastToken) | Op::MatMul | Op::BatchedMatMul { .. } => 0,
            Op::Linear { activation } => out * (given(2) + if activation.is_some() { ACTIVATION } else { 0 }),
            Op::ResidualLinear { bias } => out * (1 + u64::from(bias)),
            Op::LinearLayerNorm { adds, .. } => out * (adds.count() as u64 + NORM),
            Op::FeedForward(parts) => {
                let [wide, hidden] = [self.matrix(node.inputs[1])[0], self.matrix(node.inputs[2])[1]];
                let between = match parts.hidden {
                    Hidden::Activation(_) => hidden as u64 * ACTIVATION,
                    Hidden::Gate(_) => hidden as u64 * (ACTIVATION + 1),
                };
                let norm = if parts.norm.is_some() { NORM } else { 0 };
                self.product_rows(node, extents) * (wide as u64 * u64::from(parts.up_bias) + between)
                    + out * (parts.adds.count() as u64 + norm)
            }
            Op::Experts { routing: Routing { num_experts, top_k }, .. } => {
                let [num_experts, top_k] = [num_experts, top_k].map(|count| count as u64);
                let between = self.matrix(node.inputs[3])[1] as u64 / num_experts * top_k * ACTIVATION;
                self.product_rows(node, extents) * (num_experts * SOFTMAX + between) + 2 * top_k * out
            }
            Op::LinearMaxPool => {
                let columns = self.value(node.output).shape.last_fixed().unwrap_or(0) as u64;
                self.product_rows(node, extents) * columns + out * given(2)
            }
            Op::AddBias
            | Op::Add
            | Op::Mul
            | Op::Scale { .. }
            | Op::WeighExperts(_)
            | Op::AddRelativeBias(_) => out,
            Op::Activate(_) => out * ACTIVATION,
            Op::Gate(_) => out * (ACTIVATION + 1),
            Op::LayerNorm { .. } => out * NORM,
            Op::RmsNorm { .. } | Op::HeadRmsNorm { .. } => out * RMS_NORM,
            Op::ResidualLayerNorm { .. } => out * (NORM + 1),
            Op::BiasResidualLayerNorm { .. } => out * (NORM + 2),
            Op::EmbedSumLayerNorm { lookups, .. } => out * (NORM + lookups as u64 - 1),
            Op::Rotary(_) => out * ROTARY,
            Op::Softmax => out * SOFTMAX,
            Op::ScaleMaskSoftmax { .. } => out * (SOFTMAX + 1 + given(1)),
            Op::Attention { queries, q, mask, .. } => {
                q.num_heads as u64 * self.score_count(node, queries, mask, extents) * (SOFTMAX + 1 + given(3))
            }
            Op::Pool(_) => self.elements(node.inputs[0], extents),
        }
    }

    /// Rows that a product with a constant matrix multiplies.
    fn product_rows(&self, node: &Node, extents: &Extents) -> u64 {
        let columns = self.value(node.inputs[0]).shape.last_fixed().unwrap_or(1).max(1);
        self.elements(node.inputs[0], extents) / columns as u64
    }

    /// Bytes of an input that the operator must read; a value that is read whole as several inputs counts at the first.
    fn bytes_read(&self, node: &Node, input: usize, extents: &Extents) -> u64 {
        let value = node.inputs[input];
        if node.op.columns_read(input).is_none() && node.inputs[..input].contains(&value) {
            return 0;
        }
        let dtype = match node.op.factors().contains(&input) {
            true => self.matrix_dtype(value),
            false => DType::F32,
        };
        self.values_read(node, input, extents) * dtype.bytes() as u64
    }

    /// Values of an input that the operator must read: of a table, or of a tensor that rows are picked from, as many as
    /// the result has.
    fn values_read(&self, node: &Node, input: usize, extents: &Extents) -> u64 {
        let out = self.elements(node.output, extents);
        let shape = &self.value(node.inputs[input]).shape;
        if let Some(heads) = node.op.columns_read(input) {
            let width = shape.last_fixed().unwrap_or(0).max(1);
            return (shape.elements(extents) / width * heads.width()) as u64;
        }
        match (node.op, input) {
            (Op::Embed | Op::Select | Op::Pool(Pooling::Cls | Pooling::LastToken), 0) => out,
            (Op::EmbedSumLayerNorm { lookups, .. }, table)
                if table < 2 * lookups && table.is_multiple_of(2) =>
            {
                out
            }
            // as many experts as the rows can use
            (Op::Experts { routing: Routing { num_experts, top_k }, .. }, 2 | 3) => {
                let had = num_experts.min(self.product_rows(node, extents) as usize * top_k);
                (shape.elements(extents) / num_experts * had) as u64
            }
            (Op::Rotary(heads), 1) => (extents.padded_len * heads.head_dim) as u64,
            _ => shape.elements(extents) as u64,
        }
    }

    /// The cost of all nodes for a batch.
    pub fn total_cost(&self, extents: &Extents) -> Cost {
        self.nodes().iter().map(|node| self.cost(node, extents)).sum()
    }

    fn summed(&self, node: &Node, a: Heads, extents: &Extents) -> u64 {
        let summed = match a {
            Heads::Within(columns) => columns.head_dim,
            Heads::Apart => self.value(node.inputs[0]).shape.0.last().map_or(0, |dim| dim.size(extents)),
        };
        summed as u64
    }

    /// Scores of one head over the batch, without those that are masked, but with padding.
    fn score_count(&self, node: &Node, queries: Queries, mask: AttentionMask, extents: &Extents) -> u64 {
        let padded = self.value(node.inputs[1]).shape.0.contains(&Dim::PaddedLen);
        let (rows, squares) = if padded {
            (extents.batch_size * extents.padded_len, extents.batch_size * extents.padded_len.pow(2))
        } else {
            (extents.total_tokens, extents.sum_len_sq)
        };
        let len = match queries {
            Queries::All => squares as f64 / (rows as f64).max(1.0),
            Queries::First | Queries::Last => rows as f64 / (extents.batch_size as f64).max(1.0),
        };
        let reach = |reach: usize| (reach as f64).min(len - 1.0).max(0.0);
        let seen = match (queries, mask) {
            (Queries::All, AttentionMask::Full) => return squares as u64,
            (Queries::All, AttentionMask::Causal) => return (squares + rows) as u64 / 2,
            (Queries::All, AttentionMask::Window { reach: r }) => {
                // of 2 · reach + 1 keys per query, each end of a sequence lacks reach · (reach + 1) / 2 in total
                rows as f64 * (2.0 * reach(r) + 1.0 - reach(r) * (reach(r) + 1.0) / len.max(1.0))
            }
            (Queries::First, AttentionMask::Causal) => extents.batch_size as f64,
            (_, AttentionMask::Full | AttentionMask::Causal) => rows as f64,
            (_, AttentionMask::Window { reach: r }) => extents.batch_size as f64 * (reach(r) + 1.0),
        };
        seen.round() as u64
    }
}

/// Steps per value: mean, deviation, square, sum, scale, offset.
const NORM: u64 = 7;
/// Steps per value: square, sum, scale, gain.
const RMS_NORM: u64 = 4;
/// Steps per value: two products and their sum.
const ROTARY: u64 = 3;
/// Steps per value: maximum, difference, exponential, sum, quotient.
const SOFTMAX: u64 = 5;
/// Steps per value of an activation, counted as one evaluation of a short polynomial.
const ACTIVATION: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AttentionMask, GraphBuilder, Input, LayoutKind, Program, Rhs, dim::Extents, passes};

    fn attention() -> Graph {
        masked_attention(AttentionMask::Full, 3)
    }

    /// `softmax(mask(scale · q·kᵀ)) · v` of three projections, from 24 columns in 3 heads, keys and values in fewer.
    fn masked_attention(mask: AttentionMask, kv_heads: usize) -> Graph {
        attention_then(mask, kv_heads, |_, context| context)
    }

    /// What `then` makes of the contexts.
    fn attention_then(
        mask: AttentionMask,
        kv_heads: usize,
        then: impl Fn(&mut GraphBuilder, ValueId) -> ValueId,
    ) -> Graph {
        let mut g = GraphBuilder::new("attention");
        let (table, ids) = (g.weight("table", &[10, 24]), g.input(Input::InputIds));
        let x = g.embed(table, ids).unwrap();
        let [q, k, v] = [("q", 3), ("k", kv_heads), ("v", kv_heads)].map(|(name, heads)| {
            let columns = 8 * heads;
            let (weight, bias) =
                (g.weight(name, &[columns, 24]), g.weight(&format!("{name}.bias"), &[columns]));
            let product = g.matmul(x, weight).unwrap();
            let projected = g.add_bias(product, bias).unwrap();
            g.split_heads(projected, heads).unwrap()
        });
        let scores = g.batched_matmul(q, k, Rhs::Transposed).unwrap();
        let scores = g.scale(scores, 0.5).unwrap();
        let scores = g.mask(scores, mask).unwrap();
        let probabilities = g.softmax(scores).unwrap();
        let context = g.batched_matmul(probabilities, v, Rhs::Normal).unwrap();
        let context = g.merge_heads(context).unwrap();
        let context = then(&mut g, context);
        g.output("context", context);
        g.finish().unwrap()
    }

    fn costs_of(graph: &Graph, op: &str, extents: &Extents) -> Vec<Cost> {
        let nodes = graph.nodes().iter().filter(|node| node.op.name() == op);
        nodes.map(|node| graph.cost(node, extents)).collect()
    }

    #[test]
    fn sums_stay_at_the_most() {
        let most = Cost { flops: u64::MAX, bf16_flops: 1, int8_ops: u64::MAX, bytes: 2 };
        let twice = Cost { bf16_flops: 2, bytes: 4, ..most };
        assert_eq!([most, most].into_iter().sum::<Cost>(), twice);
    }

    #[test]
    fn attention_costs_what_the_layout_makes_it_compute() {
        let extents = Extents::of(&[5, 3]); // padded: 10 rows and 2 · 25 scores a head; packed: 8 rows and 34 scores
        for (layout, rows, scores) in [(LayoutKind::Padded, 10, 3 * 50), (LayoutKind::Packed, 8, 3 * 34)] {
            let program = Program::compile(&attention(), layout, passes::ALL).unwrap();
            let expected =
                Cost { flops: scores * (4 * 8 + 6), bytes: 4 * rows * (72 + 24), ..Cost::default() };
            assert_eq!(costs_of(program.graph(), "attention", &extents), [expected], "{layout:?}");
        }
    }

    /// Scores of one head by counting what each query sees, against the closed forms.
    #[test]
    fn what_a_mask_hides_costs_nothing() {
        let counted = |mask: AttentionMask, len: usize| -> u64 {
            (0..len).map(|query| mask.visible(query, len).len() as u64).sum()
        };
        let flops = |program: &Program, lens: &[usize]| {
            costs_of(program.graph(), "attention", &Extents::of(lens))[0].flops
        };
        let masks = [0, 1, 3, 64, 1000].map(|reach| AttentionMask::Window { reach });
        for mask in masks.into_iter().chain([AttentionMask::Full, AttentionMask::Causal]) {
            let compile = |layout| Program::compile(&masked_attention(mask, 3), layout, passes::ALL).unwrap();
            let (packed, padded) = (compile(LayoutKind::Packed), compile(LayoutKind::Padded));
            for len in [1, 2, 3, 4, 5, 64, 65, 300, 8192] {
                let expected = 3 * (4 * 8 + 6) * counted(mask, len);
                assert_eq!(flops(&packed, &[len]), expected, "{mask:?}, {len}");
                assert_eq!(flops(&packed, &[len; 3]), 3 * expected, "{mask:?}, three of {len}");
                assert_eq!(flops(&padded, &[len, 1]), 2 * expected, "{mask:?}, {len} and padding");
            }
            // of two lengths: exact but for windows, which cut only the longer one
            let (got, exact) = (flops(&packed, &[300, 20]), counted(mask, 300) + counted(mask, 20));
            let ratio = got as f64 / (3 * (4 * 8 + 6) * exact) as f64;
            let bound = if let AttentionMask::Window { .. } = mask { 0.05 } else { 0.0 };
            assert!((ratio - 1.0).abs() <= bound, "{mask:?}: {ratio}");
        }
    }

    /// If only one context of a sequence is picked, one query counts, with the keys that it sees.
    #[test]
    fn one_query_costs_what_it_sees() {
        let masks = [0, 3, 1000].map(|reach| AttentionMask::Window { reach });
        for mask in masks.into_iter().chain([AttentionMask::Full, AttentionMask::Causal]) {
            for (pooling, last) in [(Pooling::Cls, false), (Pooling::LastToken, true)] {
                let graph = attention_then(mask, 3, |g, context| g.pool(context, pooling).unwrap());
                let program = Program::compile(&graph, LayoutKind::Packed, passes::ALL).unwrap();
                for len in [1, 2, 5, 300] {
                    let seen = mask.visible(if last { len - 1 } else { 0 }, len).len() as u64;
                    let cost = costs_of(program.graph(), "attention", &Extents::of(&[len; 2]))[0];
                    assert_eq!(cost.flops, 2 * 3 * (4 * 8 + 6) * seen, "{mask:?} {pooling:?} {len}");
                    // a query, keys and values of all tokens, a context
                    assert_eq!(cost.bytes, 4 * (2 * 24 + 2 * len as u64 * 48 + 2 * 24), "{mask:?} {len}");
                }
            }
        }
    }

    /// Keys and values in one head instead of three: as many operations, fewer bytes.
    #[test]
    fn grouped_queries_save_bytes_alone() {
        let cost = |kv_heads| {
            let graph = masked_attention(AttentionMask::Causal, kv_heads);
            let program = Program::compile(&graph, LayoutKind::Packed, passes::ALL).unwrap();
            costs_of(program.graph(), "attention", &Extents::of(&[10]))[0]
        };
        let (all, grouped) = (cost(3), cost(1));
        assert_eq!(all.flops, grouped.flops);
        assert_eq!((all.bytes, grouped.bytes), (4 * 10 * (24 + 72), 4 * 10 * (24 + 24 + 16)));
    }

    /// A product costs the same whether its heads lie apart or in the columns of a wider tensor.
    #[test]
    fn where_heads_lie_costs_nothing() {
        let extents = Extents::of(&[5, 3]);
        let (drawn, paper) =
            (attention(), Program::compile(&attention(), LayoutKind::Padded, &passes::paper()).unwrap());
        let expected = Cost { flops: 2 * 150 * 8, bytes: 4 * (10 * 24 + 10 * 24 + 150), ..Cost::default() };
        for graph in [&drawn, paper.graph()] {
            assert_eq!(costs_of(graph, "batched_matmul", &extents), [expected; 2], "{graph}");
        }
    }

    /// Logits are compared as they are computed, and the bias is added only to the greatest.
    #[test]
    fn a_maximum_adds_its_bias_once_per_sequence() {
        let mut g = GraphBuilder::new("maximum");
        let (table, ids) = (g.weight("table", &[10, 8]), g.input(Input::InputIds));
        let (weight, bias) = (g.weight("w", &[30, 8]), g.weight("b", &[30]));
        let x = g.embed(table, ids).unwrap();
        let logits = g.matmul(x, weight).unwrap();
        let logits = g.add_bias(logits, bias).unwrap();
        let most = g.pool(logits, Pooling::Max).unwrap();
        g.output("most", most);
        let program = Program::compile(&g.finish().unwrap(), LayoutKind::Packed, passes::ALL).unwrap();
        let expected = Cost {
            flops: 5 * 30 * (2 * 8 + 1) + 2 * 30,
            bytes: 4 * (5 * 8 + 30 * 8 + 30 + 2 * 30),
            ..Cost::default()
        };
        assert_eq!(costs_of(program.graph(), "linear_max_pool", &Extents::of(&[3, 2])), [expected]);
    }

    /// A row uses two of four experts; one row reads the matrices of two, five rows may use all of them.
    #[test]
    fn experts_cost_what_a_row_has_of_them() {
        let mut g = GraphBuilder::new("experts");
        let (table, ids) = (g.weight("table", &[10, 8]), g.input(Input::InputIds));
        let [router, up, down] = [("router", [4, 8]), ("up", [4 * 6, 8]), ("down", [5, 4 * 6])]
            .map(|(name, shape)| g.weight(name, &shape));
        let x = g.embed(table, ids).unwrap();
        let logits = g.matmul(x, router).unwrap();
        let wide = g.matmul(x, up).unwrap();
        let wide = g.activate(wide, crate::Activation::GeluErf).unwrap();
        let wide = g.weigh_experts(wide, logits, Routing { num_experts: 4, top_k: 2 }).unwrap();
        let narrow = g.matmul(wide, down).unwrap();
        g.output("rows", narrow);
        let program = Program::compile(&g.finish().unwrap(), LayoutKind::Packed, passes::ALL).unwrap();
        for (lens, experts_read) in [(&[1][..], 2), (&[3, 2], 4)] {
            let rows: u64 = lens.iter().sum();
            let lens: Vec<usize> = lens.iter().map(|len| *len as usize).collect();
            let of_each = 6 * 8 + 5 * 6;
            let expected = Cost {
                flops: rows * (4 * SOFTMAX + 2 * (2 * of_each + 6 * ACTIVATION + 2 * 5)),
                bytes: 4 * (rows * (8 + 4 + 5) + experts_read * of_each),
                ..Cost::default()
            };
            assert_eq!(costs_of(program.graph(), "experts", &Extents::of(&lens)), [expected], "{lens:?}");
        }
    }

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
        assert_eq!(
            graph.cost(&graph.nodes()[0], &extents),
            Cost { flops: 0, bytes: 4 * (48 + 48 + 6), ..Cost::default() }
        );
        assert_eq!(
            graph.cost(&graph.nodes()[1], &extents),
            Cost { flops: 2 * 6 * 8 * 4, bytes: 4 * (6 * 8 + 32 + 6 * 4), ..Cost::default() }
        );
    }
}
