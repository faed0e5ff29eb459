//! A product, its bias and its activation become one operator: bias and activation ride in the product's epilogue.

use super::Fusion;
use crate::{
    graph::{Graph, ValueId},
    op::Op,
};

pub(super) fn pattern(graph: &Graph, matmul: usize) -> Option<Fusion> {
    let product = &graph.nodes[matmul];
    if product.op != Op::MatMul {
        return None;
    }
    let (mut nodes, mut inputs) = (vec![matmul], product.inputs.clone());
    if let Some(add_bias) = reader(graph, product.output, |op| *op == Op::AddBias) {
        nodes.push(add_bias);
        inputs.push(graph.nodes[add_bias].inputs[1]);
    }
    if nodes.len() == 1 {
        return None;
    }
    let result = graph.nodes[nodes[nodes.len() - 1]].output;
    let mut activation = None;
    if let Some(activate) = reader(graph, result, |op| matches!(op, Op::Activate(_))) {
        if let Op::Activate(function) = graph.nodes[activate].op {
            activation = Some(function);
        }
        nodes.push(activate);
    }
    let last = nodes.pop().filter(|_| !nodes.is_empty())?;
    Some(Fusion { op: Op::Linear { activation }, inputs, last, others: nodes })
}

/// The only reader of `value`, when it is such an operator.
fn reader(graph: &Graph, value: ValueId, wanted: impl Fn(&Op) -> bool) -> Option<usize> {
    graph.only_reader(value).filter(|&reader| wanted(&graph.nodes[reader].op))
}
