//! A product and the residual that is added to it in its layer become one operator: the stream of a pre-norm model, whose
//! sums are read by the next norm and by the next sum, so that norms cannot take them in.

use super::Fusion;
use crate::{
    graph::{Graph, ValueId},
    op::Op,
};

pub(super) fn pattern(graph: &Graph, last: usize) -> Option<Fusion> {
    let add = &graph.nodes[last];
    let (Op::Add, [a, b]) = (add.op, &add.inputs[..]) else { return None };
    [(*a, *b), (*b, *a)].into_iter().find_map(|(product, residual)| of(graph, last, product, residual))
}

fn of(graph: &Graph, last: usize, product: ValueId, residual: ValueId) -> Option<Fusion> {
    let producer = graph.private_producer(product)?;
    let node = &graph.nodes[producer];
    // a layer's products have a dtype of their own
    if node.layer != graph.nodes[last].layer {
        return None;
    }
    let adds = node.op.adds(node.inputs.len()).filter(|adds| !adds.residual)?;
    let inputs = node.inputs.iter().copied().chain([residual]).collect();
    Some(Fusion { op: Op::ResidualLinear { bias: adds.bias }, inputs, last, others: vec![producer] })
}
