//! `layer_norm((a[i] + b[j]) + c[k])` becomes one operator that reads each row once.

use super::Fusion;
use crate::{
    graph::{Graph, ValueId},
    op::Op,
};

pub(super) fn pattern(graph: &Graph, last: usize) -> Option<Fusion> {
    let norm = &graph.nodes[last];
    let Op::LayerNorm { epsilon } = norm.op else { return None };
    let outer = inner(graph, norm.inputs[0], Op::Add)?;
    let sum = inner(graph, graph.nodes[outer].inputs[0], Op::Add)?;
    let lookups = [
        inner(graph, graph.nodes[sum].inputs[0], Op::Embed)?,
        inner(graph, graph.nodes[sum].inputs[1], Op::Embed)?,
        inner(graph, graph.nodes[outer].inputs[1], Op::Embed)?,
    ];
    let mut inputs: Vec<ValueId> =
        lookups.iter().flat_map(|&lookup| graph.nodes[lookup].inputs.clone()).collect();
    inputs.extend_from_slice(&norm.inputs[1..]);
    let others = vec![outer, sum, lookups[0], lookups[1], lookups[2]];
    Some(Fusion { op: Op::EmbedSumLayerNorm { epsilon }, inputs, last, others })
}

/// The node that computes `value` for one reader alone, when it is an `op`.
fn inner(graph: &Graph, value: ValueId, op: Op) -> Option<usize> {
    graph.private_producer(value).filter(|&node| graph.nodes[node].op == op)
}
