//! Scores, softmax and context become one operator that keeps the scores to itself, which makes the packed layout
//! possible.

use turbo_kernels::{Queries, matmul::Rhs};

use super::Fusion;
use crate::{
    graph::Graph,
    op::{Heads, Op},
};

/// `a·bᵀ` of queries and keys, its softmax, and the product with the values, each read from columns.
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
    let Op::ScaleMaskSoftmax { scale, mask, bias } = graph.nodes[softmax].op else { return None };
    let context = graph.only_reader(graph.nodes[softmax].output)?;
    let Op::BatchedMatMul { rhs: Rhs::Normal, a: Heads::Apart, b: Heads::Within(v), out: Heads::Within(_) } =
        graph.nodes[context].op
    else {
        return None;
    };
    if (v.num_heads, v.head_dim) != (k.num_heads, k.head_dim) {
        return None; // the kernel takes keys and values of one kind
    }
    let mut inputs = product.inputs.clone();
    inputs.push(graph.nodes[context].inputs[1]);
    inputs.extend_from_slice(&graph.nodes[softmax].inputs[1..]);
    let op = Op::Attention { queries: Queries::All, q, k, v, scale, mask, bias };
    Some(Fusion { op, inputs, last: context, others: vec![scores, softmax] })
}
