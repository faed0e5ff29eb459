//! A product and the residual that is added to it become one operator, if both are in one layer. This serves the
//! residual stream of pre-norm models: the next norm and the next sum both read each sum, so that no norm can absorb
//! it.

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
    // products of different layers may differ in dtype
    if node.layer != graph.nodes[last].layer {
        return None;
    }
    let adds = node.op.adds(node.inputs.len()).filter(|adds| !adds.residual)?;
    let inputs = node.inputs.iter().copied().chain([residual]).collect();
    Some(Fusion { op: Op::ResidualLinear { bias: adds.bias }, inputs, last, others: vec![producer] })
}
