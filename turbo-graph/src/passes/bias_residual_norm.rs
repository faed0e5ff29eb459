//! `layer_norm(x + bias + residual)` becomes one operator: three passes over memory become one.

use crate::{
    graph::{Graph, Node},
    op::Op,
};

pub(super) fn rewrite_one(graph: &mut Graph) -> bool {
    let found = (0..graph.nodes.len()).find_map(|last| pattern(graph, last));
    let Some((last, node, others)) = found else { return false };
    super::replace(graph, last, node, &others);
    true
}

fn pattern(graph: &Graph, last: usize) -> Option<(usize, Node, [usize; 2])> {
    let norm = &graph.nodes[last];
    let Op::LayerNorm { epsilon } = norm.op else { return None };
    graph.only_reader(norm.inputs[0])?;
    let add = graph.producer(norm.inputs[0]).filter(|&add| graph.nodes[add].op == Op::Add)?;
    let [a, b] = graph.nodes[add].inputs[..] else { return None };
    let (add_bias, residual) = [(a, b), (b, a)].into_iter().find_map(|(biased, residual)| {
        graph.only_reader(biased)?;
        let add_bias = graph.producer(biased).filter(|&node| graph.nodes[node].op == Op::AddBias)?;
        Some((add_bias, residual))
    })?;
    let [x, bias] = graph.nodes[add_bias].inputs[..] else { return None };
    let inputs = vec![x, bias, residual, norm.inputs[1], norm.inputs[2]];
    let node =
        Node { op: Op::BiasResidualLayerNorm { epsilon }, inputs, output: norm.output, layer: norm.layer };
    Some((last, node, [add, add_bias]))
}
