//! Queries and keys that lie side by side are rotated by one node.

use super::projection::{is_read_by_columns, read_within};
use crate::{
    graph::{Graph, Node, Storage},
    op::{HeadColumns, Op},
};

pub(super) fn rewrite_one(graph: &mut Graph) -> bool {
    let turned: Vec<(usize, HeadColumns)> = (0..graph.nodes.len())
        .filter_map(|node| match graph.nodes[node].op {
            Op::Rotary(heads) if is_read_by_columns(graph, graph.nodes[node].output) => Some((node, heads)),
            _ => None,
        })
        .collect();
    let pair = turned.iter().find_map(|&left| {
        turned.iter().find(|&&right| are_neighbours(graph, left, right)).map(|&right| (left, right))
    });
    let Some(((left, heads), (right, others))) = pair else { return false };
    let both = HeadColumns { num_heads: heads.num_heads + others.num_heads, ..heads };
    let (first, second) = (graph.nodes[left].output, graph.nodes[right].output);
    let Node { inputs, layer, .. } = graph.nodes[left].clone();
    let shape = graph.value(first).shape.with_columns(both.width());
    let output = graph.add_value(shape, Storage::Activation);
    // the earlier of the two positions: both read the same values
    graph.nodes[left.min(right)] = Node { op: Op::Rotary(both), inputs, output, layer };
    super::remove(graph, &[left.max(right)]);
    read_within(graph, first, output, 0);
    read_within(graph, second, output, heads.width());
    true
}

/// Whether both nodes rotate heads of one tensor by one table, and the heads of `right` begin where those of `left`
/// end.
fn are_neighbours(graph: &Graph, left: (usize, HeadColumns), right: (usize, HeadColumns)) -> bool {
    let (a, b) = (&graph.nodes[left.0], &graph.nodes[right.0]);
    a.inputs == b.inputs
        && a.layer == b.layer
        && left.1.end() == right.1.first
        && left.1.head_dim == right.1.head_dim
}
