//! `layer_norm((a[i] + b[j]) + c[k])` becomes one operator that reads each row once. So does a sum of two lookups, or a
//! single lookup.

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

/// The nodes that add lookups, and the lookups, from left to right.
struct Sum {
    adds: Vec<usize>,
    lookups: Vec<usize>,
}

/// The lookups that `value` is the sum of, if one operator can take that many.
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

/// The node that computes `value`, if it is an `op` and its result is read once.
fn inner(graph: &Graph, value: ValueId, op: Op) -> Option<usize> {
    graph.private_producer(value).filter(|&node| graph.nodes[node].op == op)
}
