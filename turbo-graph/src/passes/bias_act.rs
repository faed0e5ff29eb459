//! A product, its bias and its activation become one operator if all are in one layer: the product's epilogue adds the
//! bias and applies the activation.

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
    let mut result = product.output;
    if let Some((add_bias, Op::AddBias)) = reader(graph, matmul, result) {
        nodes.push(add_bias);
        inputs.push(graph.nodes[add_bias].inputs[1]);
        result = graph.nodes[add_bias].output;
    }
    let mut activation = None;
    if let Some((activate, Op::Activate(function))) = reader(graph, matmul, result) {
        nodes.push(activate);
        activation = Some(function);
    }
    let last = nodes.pop().filter(|_| !nodes.is_empty())?;
    Some(Fusion { op: Op::Linear { activation }, inputs, last, others: nodes })
}

/// The only reader of `value`, if it is in the product's layer: fused into another layer, the product would change its
/// dtype.
fn reader(graph: &Graph, product: usize, value: ValueId) -> Option<(usize, Op)> {
    let reader = graph.only_reader(value)?;
    let node = &graph.nodes[reader];
    (node.layer == graph.nodes[product].layer).then_some((reader, node.op))
}
