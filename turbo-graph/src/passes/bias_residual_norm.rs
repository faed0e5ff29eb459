//! `layer_norm(x + bias + residual)` becomes one operator: three passes over memory become one.

use super::Fusion;
use crate::{graph::Graph, op::Op};

pub(super) fn pattern(graph: &Graph, last: usize) -> Option<Fusion> {
    let norm = &graph.nodes[last];
    let Op::LayerNorm { epsilon } = norm.op else { return None };
    let add = graph.private_producer(norm.inputs[0]).filter(|&add| graph.nodes[add].op == Op::Add)?;
    let [a, b] = graph.nodes[add].inputs[..] else { return None };
    if a == b {
        return None; // x + bias is needed on both sides of the sum
    }
    let (add_bias, residual) = [(a, b), (b, a)].into_iter().find_map(|(biased, residual)| {
        let add_bias = graph.private_producer(biased).filter(|&node| graph.nodes[node].op == Op::AddBias)?;
        Some((add_bias, residual))
    })?;
    let [x, bias] = graph.nodes[add_bias].inputs[..] else { return None };
    let inputs = vec![x, bias, residual, norm.inputs[1], norm.inputs[2]];
    Some(Fusion { op: Op::BiasResidualLayerNorm { epsilon }, inputs, last, others: vec![add, add_bias] })
}
