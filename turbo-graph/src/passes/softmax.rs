//! Scale, mask and softmax of the scores become one operator.

use crate::{
    graph::{Graph, Node, ValueId},
    op::Op,
};

pub(super) fn rewrite_one(graph: &mut Graph) -> bool {
    let found = (0..graph.nodes.len()).find_map(|last| pattern(graph, last));
    let Some((last, node, others)) = found else { return false };
    super::replace(graph, last, node, &others);
    true
}

fn pattern(graph: &Graph, last: usize) -> Option<(usize, Node, Vec<usize>)> {
    let softmax = &graph.nodes[last];
    if softmax.op != Op::Softmax {
        return None;
    }
    let sole = |value: ValueId| graph.only_reader(value).and_then(|_| graph.producer(value));
    let mask = sole(softmax.inputs[0]).filter(|&node| graph.nodes[node].op == Op::Mask)?;
    let scores = graph.nodes[mask].inputs[0];
    let scaled = sole(scores).and_then(|node| match graph.nodes[node].op {
        Op::Scale { factor } => Some((node, factor)),
        _ => None,
    });
    let (scores, scale, others) = match scaled {
        Some((node, factor)) => (graph.nodes[node].inputs[0], factor, vec![mask, node]),
        None => (scores, 1.0, vec![mask]),
    };
    let (output, layer) = (softmax.output, softmax.layer);
    Some((last, Node { op: Op::ScaleMaskSoftmax { scale }, inputs: vec![scores], output, layer }, others))
}
