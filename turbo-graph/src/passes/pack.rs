//! Padding away: `[batch_size, padded_len, ..]` becomes `[total_tokens, ..]`.
//!
//! Not a rewriting of nodes but of shapes, so it stands apart from the list: it is what choosing the packed layout
//! means, and it is legal once no operator needs one block of rows per sequence.

use crate::{
    GraphError,
    dim::{Dim, Shape},
    graph::Graph,
};

/// Rewrites the shapes of `graph` to the packed layout; returns how many changed.
///
/// # Errors
/// [`GraphError::NotPackable`].
pub(crate) fn pack(graph: &mut Graph) -> Result<usize, GraphError> {
    if let Some(node) = graph.nodes.iter().find(|node| node.op.needs_padding()) {
        return Err(GraphError::NotPackable { op: node.op.name() });
    }
    let mut changed = 0;
    for value in &mut graph.values {
        if let [Dim::BatchSize, Dim::PaddedLen, rest @ ..] = &value.shape.0[..] {
            value.shape = Shape([&[Dim::TotalTokens], rest].concat());
            changed += 1;
        }
    }
    Ok(changed)
}
