//! A product and the maximum over each sequence become one operator, so that the vocabulary logits of every token are
//! never stored (SPLADE). An activation that never falls is applied after the maximum, to one row per sequence.

use turbo_kernels::{Activation, Pooling};

use crate::{
    graph::{Graph, Node, Storage, ValueId},
    op::Op,
};

pub(super) fn rewrite_one(graph: &mut Graph) -> bool {
    (0..graph.nodes.len()).any(|pool| {
        let Some(producer) = pooled(graph, pool) else { return false };
        let Node { op, inputs, .. } = graph.nodes[producer].clone();
        match op {
            Op::Activate(activation) if never_falls(activation) => {
                graph.nodes[pool].inputs = inputs;
                activate_after(graph, pool, activation);
            }
            Op::MatMul | Op::Linear { activation: None } => {
                (graph.nodes[pool].op, graph.nodes[pool].inputs) = (Op::LinearMaxPool, inputs);
            }
            Op::Linear { activation: Some(activation) } if never_falls(activation) => {
                (graph.nodes[pool].op, graph.nodes[pool].inputs) = (Op::LinearMaxPool, inputs);
                activate_after(graph, pool, activation);
            }
            _ => return false,
        }
        super::remove(graph, &[producer]);
        true
    })
}

/// The node that computes the rows of which `pool` takes the maximum, if only `pool` reads them and both are in one
/// layer: fused into another layer, a product would change its dtype.
fn pooled(graph: &Graph, pool: usize) -> Option<usize> {
    let node = graph.nodes.get(pool).filter(|node| node.op == Op::Pool(Pooling::Max))?;
    let producer = graph.private_producer(node.inputs[0])?;
    (graph.nodes[producer].layer == node.layer).then_some(producer)
}

/// Applies `activation` to the result of `node`.
fn activate_after(graph: &mut Graph, node: usize, activation: Activation) {
    let (output, layer): (ValueId, _) = (graph.nodes[node].output, graph.nodes[node].layer);
    let plain = graph.add_value(graph.value(output).shape.clone(), Storage::Activation);
    graph.nodes[node].output = plain;
    graph.nodes.insert(node + 1, Node { op: Op::Activate(activation), inputs: vec![plain], output, layer });
}

/// Whether the maximum of activated values is the activated maximum.
fn never_falls(activation: Activation) -> bool {
    match activation {
        Activation::Relu | Activation::Tanh | Activation::Sigmoid | Activation::Log1pRelu => true,
        Activation::GeluErf | Activation::GeluTanh | Activation::Silu => false,
    }
}
