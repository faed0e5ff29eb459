//! Splitting and merging heads is a matter of strides: the batched products read and write the columns themselves.

use crate::{
    dim::Dim,
    graph::{Graph, ValueId},
    op::{HeadColumns, Heads, Op},
};

pub(super) fn rewrite_one(graph: &mut Graph) -> bool {
    (0..graph.nodes.len()).any(|product| read_columns(graph, product) || write_columns(graph, product))
}

/// Makes `product` read an operand from the tensor that its heads would be split from; both operands, if they are the
/// same.
fn read_columns(graph: &mut Graph, product: usize) -> bool {
    let Op::BatchedMatMul { mut a, mut b, rhs, out } = graph.nodes[product].op else { return false };
    let operands = graph.nodes[product].inputs.clone();
    let Some((split, columns)) = operands.iter().find_map(|&operand| split_of(graph, operand)) else {
        return false;
    };
    let (heads, rows) = (graph.nodes[split].output, graph.nodes[split].inputs[0]);
    for (place, operand) in [&mut a, &mut b].into_iter().zip(&mut graph.nodes[product].inputs) {
        if *operand == heads {
            (*place, *operand) = (Heads::Within(columns), rows);
        }
    }
    graph.nodes[product].op = Op::BatchedMatMul { a, b, rhs, out };
    super::remove(graph, &[split]);
    true
}

fn split_of(graph: &Graph, operand: ValueId) -> Option<(usize, HeadColumns)> {
    graph.only_reader(operand)?; // it may read it on both sides
    let split = graph.producer(operand)?;
    match graph.nodes[split].op {
        Op::SplitHeads(columns) => Some((split, columns)),
        _ => None,
    }
}

/// Makes `product` write its result into the columns that its heads would be merged into.
fn write_columns(graph: &mut Graph, product: usize) -> bool {
    let node = &graph.nodes[product];
    let Op::BatchedMatMul { rhs, a, b, out: Heads::Apart } = node.op else { return false };
    let Some(merge) =
        graph.only_reader(node.output).filter(|&reader| graph.nodes[reader].op == Op::MergeHeads)
    else {
        return false;
    };
    let [_, Dim::Fixed(num_heads), _, Dim::Fixed(head_dim)] = graph.value(node.output).shape.0[..] else {
        return false;
    };
    let columns = HeadColumns { first: 0, num_heads, head_dim };
    graph.nodes[product].op = Op::BatchedMatMul { rhs, a, b, out: Heads::Within(columns) };
    graph.nodes[product].output = graph.nodes[merge].output;
    super::remove(graph, &[merge]);
    true
}
