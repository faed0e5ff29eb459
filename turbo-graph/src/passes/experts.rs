//! The products of all experts and the weighting between them become one operator, so that a device may compute only
//! the experts that a row uses.
//!
//! Nothing else may read the matrices, since a device may pack each expert separately.

use super::Fusion;
use crate::{
    graph::{Graph, ValueId},
    op::Op,
};

pub(super) fn pattern(graph: &Graph, last: usize) -> Option<Fusion> {
    let of = |node: usize| (graph.nodes[node].op, &graph.nodes[node].inputs[..]);
    let (Op::MatMul, &[weighted, down]) = of(last) else { return None };
    let weigh = graph.private_producer(weighted)?;
    let (Op::WeighExperts(routing), &[activated, logits]) = of(weigh) else { return None };
    let activate = graph.private_producer(activated)?;
    let (Op::Activate(activation), &[wide]) = of(activate) else { return None };
    let product = graph.private_producer(wide)?;
    let (Op::MatMul, &[x, up]) = of(product) else { return None };
    let others = vec![product, activate, weigh];
    // products of different layers may differ in dtype
    let alone = others.iter().all(|&node| graph.nodes[node].layer == graph.nodes[last].layer)
        && [up, down].into_iter().all(|matrix| readings(graph, matrix) == 1);
    let inputs = vec![x, logits, up, down];
    alone.then_some(Fusion { op: Op::Experts { routing, activation }, inputs, last, others })
}

/// How many inputs read a constant.
fn readings(graph: &Graph, constant: ValueId) -> usize {
    graph.nodes.iter().flat_map(|node| &node.inputs).filter(|input| **input == constant).count()
}
