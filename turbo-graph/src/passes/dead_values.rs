//! Nodes whose result nothing reads are removed.

use crate::graph::{Graph, Storage};

pub(super) fn rewrite_one(graph: &mut Graph) -> bool {
    let dead = (0..graph.nodes.len()).find(|&node| {
        let output = graph.nodes[node].output;
        graph.value(output).storage == Storage::Activation
            && !graph.nodes.iter().any(|reader| reader.inputs.contains(&output))
    });
    let Some(dead) = dead else { return false };
    super::remove(graph, &[dead]);
    true
}
