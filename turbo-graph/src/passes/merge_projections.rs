//! Products of one input with several matrices become one product if every reader can find its columns in the wider
//! result, that is, if the readers split, rotate, normalise or score heads. These are the queries, keys and values of
//! every model, whatever reads them.

use super::projection::{Projection, is_read_by_columns, read_within, side_by_side};
use crate::graph::Graph;

pub(super) fn rewrite_one(graph: &mut Graph) -> bool {
    let projections: Vec<Projection> = (0..graph.nodes.len())
        .filter_map(|node| Projection::of_product(graph, node))
        .filter(|projection| is_read_by_columns(graph, projection.value))
        .collect();
    let group = projections.iter().enumerate().find_map(|(index, first)| {
        let mut group = vec![*first];
        group.extend(projections[index + 1..].iter().filter(|other| first.is_beside(other, graph)));
        (group.len() > 1).then_some(group)
    });
    let Some(group) = group else { return false };
    let merged = side_by_side(graph, &group);
    let mut column = 0;
    for projection in group {
        read_within(graph, projection.value, merged, column);
        column += projection.width;
    }
    true
}
