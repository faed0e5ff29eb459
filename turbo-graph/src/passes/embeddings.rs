//! `layer_norm((a[i] + b[j]) + c[k])` becomes one operator that reads each row once; and so does a sum of two, or one
//! lookup alone.

use super::Fusion;
use crate::{
    graph::{Graph, ValueId},
    op::{MAX_LOOKUPS, Op},
};

pub(super) fn pattern(graph: &Graph, last: usize) -> Option<Fusion> {
    let norm = &graph.nodes[last];
    let Op::LayerNorm { epsilon } = norm.op else { return None };
    let Sum { adds, lookups } = sum(graph, norm.inputs[0])?;
    let mut inputs: Vec<ValueId> =
        lookups.iter().flat_map(|&lookup| graph.nodes[lookup].inputs.clone()).collect();
    inputs.extend_from_slice(&norm.inputs[1..]);
    let op = Op::EmbedSumLayerNorm { lookups: lookups.len(), epsilon };
    Some(Fusion { op, inputs, last, others: [adds, lookups].concat() })
}

/// Nodes that add lookups, from the left, and the lookups in that order.
struct Sum {
    adds: Vec<usize>,
    lookups: Vec<usize>,
}

/// The lookups that `value` is the sum of, no more than one operator takes.
fn sum(graph: &Graph, mut value: ValueId) -> Option<Sum> {
    let (mut adds, mut lookups) = (Vec::new(), Vec::new());
    while let Some(add) = inner(graph, value, Op::Add) {
        lookups.push(inner(graph, graph.nodes[add].inputs[1], Op::Embed)?);
        adds.push(add);
        value = graph.nodes[add].inputs[0];
    }
    lookups.push(inner(graph, value, Op::Embed)?);
    lookups.reverse();
    (lookups.len() <= MAX_LOOKUPS).then_some(Sum { adds, lookups })
}

/// The node that computes `value` for one reader alone, when it is an `op`.
fn inner(graph: &Graph, value: ValueId, op: Op) -> Option<usize> {
    graph.private_producer(value).filter(|&node| graph.nodes[node].op == op)
}
