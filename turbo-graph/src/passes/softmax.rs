//! Scale, mask and softmax of the scores become one operator.

use super::Fusion;
use crate::{graph::Graph, op::Op};

pub(super) fn pattern(graph: &Graph, last: usize) -> Option<Fusion> {
    let softmax = &graph.nodes[last];
    if softmax.op != Op::Softmax {
        return None;
    }
    let mask = graph.private_producer(softmax.inputs[0]).filter(|&node| graph.nodes[node].op == Op::Mask)?;
    let scores = graph.nodes[mask].inputs[0];
    let scaled = graph.private_producer(scores).and_then(|node| match graph.nodes[node].op {
        Op::Scale { factor } => Some((node, factor)),
        _ => None,
    });
    let (scores, scale, others) = match scaled {
        Some((node, factor)) => (graph.nodes[node].inputs[0], factor, vec![mask, node]),
        None => (scores, 1.0, vec![mask]),
    };
    Some(Fusion { op: Op::ScaleMaskSoftmax { scale }, inputs: vec![scores], last, others })
}
