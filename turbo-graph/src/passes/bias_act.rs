//! A product, its bias and its activation become one operator: bias and activation ride in the product's epilogue.

use super::Fusion;
use crate::{graph::Graph, op::Op};

pub(super) fn pattern(graph: &Graph, add_bias: usize) -> Option<Fusion> {
    let biased = &graph.nodes[add_bias];
    if biased.op != Op::AddBias {
        return None;
    }
    let matmul =
        graph.private_producer(biased.inputs[0]).filter(|&node| graph.nodes[node].op == Op::MatMul)?;
    let inputs = vec![graph.nodes[matmul].inputs[0], graph.nodes[matmul].inputs[1], biased.inputs[1]];

    let activate = graph.only_reader(biased.output).and_then(|reader| match graph.nodes[reader].op {
        Op::Activate(activation) => Some((reader, activation)),
        _ => None,
    });
    let (last, activation, others) = match activate {
        Some((reader, activation)) => (reader, Some(activation), vec![matmul, add_bias]),
        None => (add_bias, None, vec![matmul]),
    };
    Some(Fusion { op: Op::Linear { activation }, inputs, last, others })
}
