//! Removes the padding: `[batch_size, padded_len, ..]` becomes `[total_tokens, ..]`.
//!
//! This rewrites shapes, not nodes, so it is not in the list of passes: it is how the packed layout is chosen. It is
//! legal once no operator needs one padded block of rows per sequence.

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
