//! `activation(x · aᵀ) · (x · bᵀ)` becomes one product and a gate over its halves.

use super::projection::{Projection, side_by_side};
use crate::{
    graph::{Graph, Node, ValueId},
    op::Op,
};

/// The product that is activated, the other product, and the two nodes that combine them.
struct Gated {
    projections: [Projection; 2],
    activate: usize,
    mul: usize,
}

pub(super) fn rewrite_one(graph: &mut Graph) -> bool {
    let Some(Gated { projections, activate, mul }) =
        (0..graph.nodes.len()).find_map(|mul| pattern(graph, mul))
    else {
        return false;
    };
    let Op::Activate(activation) = graph.nodes[activate].op else {
        unreachable!("the pattern has an activation")
    };
    let Node { output, layer, .. } = graph.nodes[mul];
    let active = graph.nodes[activate].output;
    let merged = side_by_side(graph, &projections);
    let gate = Node { op: Op::Gate(activation), inputs: vec![merged], output, layer };
    let of_output = graph.producer(output).expect("the product of the two stands where it stood");
    graph.nodes[of_output] = gate;
    let of_active = graph.producer(active).expect("the activation stands where it stood");
    super::remove(graph, &[of_active]);
    true
}

fn pattern(graph: &Graph, mul: usize) -> Option<Gated> {
    let node = graph.nodes.get(mul).filter(|node| node.op == Op::Mul)?;
    let [a, b] = node.inputs[..] else { return None };
    [(a, b), (b, a)].into_iter().find_map(|(active, other)| gated(graph, mul, active, other))
}

fn gated(graph: &Graph, mul: usize, active: ValueId, other: ValueId) -> Option<Gated> {
    let activate = graph.private_producer(active)?;
    let Op::Activate(_) = graph.nodes[activate].op else { return None };
    let alone = |value: ValueId| {
        graph.only_reader(value)?;
        Projection::of_result(graph, value)
    };
    let projections = [alone(graph.nodes[activate].inputs[0])?, alone(other)?];
    projections[0].is_beside(&projections[1], graph).then_some(Gated { projections, activate, mul })
}
