//! `layer_norm(x + bias + residual)` becomes one operator: one pass over memory instead of three. So does a sum without
//! bias.

use super::Fusion;
use crate::{graph::Graph, op::Op};

pub(super) fn pattern(graph: &Graph, last: usize) -> Option<Fusion> {
    let norm = &graph.nodes[last];
    let Op::LayerNorm { epsilon } = norm.op else { return None };
    // a sum at the end of a layer stays there: a norm after the last layer must not make that layer differ from the
    // others
    let is_sum = |add: &usize| graph.nodes[*add].op == Op::Add && graph.nodes[*add].layer == norm.layer;
    let add = graph.private_producer(norm.inputs[0]).filter(is_sum)?;
    let [a, b] = graph.nodes[add].inputs[..] else { return None };
    let biased = [(a, b), (b, a)].into_iter().find_map(|(biased, residual)| {
        let add_bias = graph.private_producer(biased).filter(|&node| graph.nodes[node].op == Op::AddBias)?;
        Some((add_bias, residual))
    });
    let (op, mut inputs, others) = match biased {
        Some((add_bias, residual)) => {
            let mut inputs = graph.nodes[add_bias].inputs.clone();
            inputs.push(residual);
            (Op::BiasResidualLayerNorm { epsilon }, inputs, vec![add, add_bias])
        }
        None => (Op::ResidualLayerNorm { epsilon }, vec![a, b], vec![add]),
    };
    inputs.extend_from_slice(&norm.inputs[1..]);
    Some(Fusion { op, inputs, last, others })
}
