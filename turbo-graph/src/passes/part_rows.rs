//! Separates the rows that are picked for one output from the rows that another output reads whole.
//!
//! An embedding model gives a vector per sequence and the hidden state of every token. Which of them a batch needs is
//! known only when it runs ([`Executor::run_for`](crate::Executor::run_for)), and a request for the vector of one token
//! need not wait for those of all. So the nodes from the last attention to the pick are duplicated: the originals serve
//! the output that has all rows, the copies serve the pick alone, which then [picks its rows early](super::pick_early).
//! Weights are shared, and nodes that the batch's outputs do not need are not launched.

use crate::{
    graph::{Graph, Storage, ValueId},
    op::Op,
};
use turbo_kernels::Pooling;

pub(super) fn rewrite_one(graph: &mut Graph) -> bool {
    let found = (0..graph.nodes.len()).find_map(|pick| {
        let one_row = matches!(graph.nodes[pick].op, Op::Pool(Pooling::Cls | Pooling::LastToken));
        let read = *graph.nodes[pick].inputs.first()?;
        let is_shared = one_row && graph.only_reader(read).is_none();
        Some((pick, is_shared.then(|| behind_last_attention(graph, read))??))
    });
    let Some((mut pick, path)) = found else { return false };
    let mut twins: Vec<(ValueId, ValueId)> = Vec::new();
    for (copies, position) in path.into_iter().enumerate() {
        let original = position + copies;
        let mut node = graph.nodes[original].clone();
        for input in &mut node.inputs {
            *input = twin(&twins, *input);
        }
        let shape = graph.value(node.output).shape.clone();
        let copy = graph.add_value(shape, Storage::Activation);
        twins.push((node.output, copy));
        node.output = copy;
        graph.nodes.insert(original + 1, node);
        pick += 1;
    }
    let read = &mut graph.nodes[pick].inputs[0];
    *read = twin(&twins, *read);
    true
}

/// The copy of `value`, or `value` itself if it has none.
fn twin(twins: &[(ValueId, ValueId)], value: ValueId) -> ValueId {
    twins.iter().find(|(original, _)| *original == value).map_or(value, |(_, copy)| *copy)
}

/// The nodes on the path from the last attention to `value`, both ends included, in order, if all but the first compute
/// row by row.
fn behind_last_attention(graph: &Graph, value: ValueId) -> Option<Vec<usize>> {
    let end = graph.producer(value)?;
    let mut reached = vec![false; end + 1];
    reached[end] = true;
    let mut last_attention = None;
    for position in (0..=end).rev() {
        let node = &graph.nodes[position];
        if !reached[position] {
            continue;
        }
        if matches!(node.op, Op::Attention { .. }) {
            last_attention = last_attention.or(Some(position));
        } else if node.op.is_row_by_row() {
            let producers = node.inputs.iter().filter_map(|&input| graph.producer(input));
            producers.for_each(|producer| reached[producer] = true);
        }
    }
    let mut path = vec![last_attention?];
    for (position, node) in graph.nodes.iter().enumerate().take(end + 1).skip(path[0] + 1) {
        let follows = |input| path.iter().any(|&before| graph.nodes[before].output == input);
        if reached[position] && node.inputs.iter().any(|&input| follows(input)) {
            path.push(position);
        }
    }
    (path.last() == Some(&end)).then_some(path)
}
