//! Scale, relative bias, mask and softmax of the scores become one operator.

use super::Fusion;
use crate::{
    graph::{Graph, ValueId},
    op::Op,
};

/// `softmax(mask(scale · scores + relative bias))`; the scale and the bias are optional.
pub(super) fn pattern(graph: &Graph, last: usize) -> Option<Fusion> {
    let softmax = &graph.nodes[last];
    if softmax.op != Op::Softmax {
        return None;
    }
    let masked = graph.private_producer(softmax.inputs[0])?;
    let Op::Mask(mask) = graph.nodes[masked].op else { return None };
    let (mut scores, mut others) = (graph.nodes[masked].inputs[0], vec![masked]);
    let (mut scale, mut bias, mut of_bias) = (1.0, None, Vec::new());
    if let Some((node, Op::AddRelativeBias(added))) = producer(graph, scores) {
        let inputs = &graph.nodes[node].inputs;
        (scores, bias, of_bias) = (inputs[0], Some(added), inputs[1..].to_vec());
        others.push(node);
    }
    if let Some((node, Op::Scale { factor })) = producer(graph, scores) {
        (scores, scale) = (graph.nodes[node].inputs[0], factor);
        others.push(node);
    }
    let inputs = [scores].into_iter().chain(of_bias).collect();
    Some(Fusion { op: Op::ScaleMaskSoftmax { scale, mask, bias }, inputs, last, others })
}

fn producer(graph: &Graph, value: ValueId) -> Option<(usize, Op)> {
    graph.private_producer(value).map(|node| (node, graph.nodes[node].op))
}
