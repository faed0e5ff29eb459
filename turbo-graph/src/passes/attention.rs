//! Scores, softmax and context become one operator that keeps the scores to itself, so that padding can go.

use turbo_kernels::matmul::Rhs;

use super::Fusion;
use crate::{
    graph::Graph,
    op::{HeadColumns, Heads, Op},
};

/// `a·bᵀ` of queries and keys, its softmax, and the product with the values: all columns of one tensor, in that order.
pub(super) fn pattern(graph: &Graph, scores: usize) -> Option<Fusion> {
    let product = &graph.nodes[scores];
    let Op::BatchedMatMul {
        rhs: Rhs::Transposed,
        a: Heads::Within(q),
        b: Heads::Within(k),
        out: Heads::Apart,
    } = product.op
    else {
        return None;
    };
    let softmax = graph.only_reader(product.output)?;
    let Op::ScaleMaskSoftmax { scale } = graph.nodes[softmax].op else { return None };
    let context = graph.only_reader(graph.nodes[softmax].output)?;
    let Op::BatchedMatMul { rhs: Rhs::Normal, a: Heads::Apart, b: Heads::Within(v), out: Heads::Within(_) } =
        graph.nodes[context].op
    else {
        return None;
    };
    let qkv = product.inputs[0];
    if product.inputs[1] != qkv || graph.nodes[context].inputs[1] != qkv {
        return None;
    }
    let HeadColumns { num_heads, head_dim, .. } = q;
    let at = |first: usize| HeadColumns { first: first * num_heads * head_dim, num_heads, head_dim };
    if [q, k, v] != [at(0), at(1), at(2)] || graph.value(qkv).shape.last_fixed() != Some(v.end()) {
        return None;
    }
    let op = Op::Attention { num_heads, head_dim, scale };
    Some(Fusion { op, inputs: vec![qkv], last: context, others: vec![scores, softmax] })
}
