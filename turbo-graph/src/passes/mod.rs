//! What fusion does to a textbook graph: a list of passes, to be read.
//!
//! A pass replaces every match of its pattern. The verifier runs after each pass, and the graph must still obey all its
//! rules. A pass never changes what is computed, only in how many steps; the tests run every prefix of the list.

mod attention;
mod bias_act;
mod dead_values;
mod embeddings;
mod experts;
mod feed_forward;
mod head_transposes;
mod linear_norm;
mod max_pool;
mod merge_gate;
mod merge_projections;
mod merge_rotations;
mod pack;
mod part_rows;
mod pick_early;
mod projection;
mod residual;
mod residual_norm;
mod softmax;
mod split_queries;

use crate::{
    graph::{Graph, Node, ValueId},
    op::Op,
};

pub(crate) use pack::pack;

/// A rewriting step.
#[derive(Clone, Copy)]
pub struct Pass {
    /// What it does, in the words of the printed trace.
    pub name: &'static str,
    rule: Rule,
}

#[derive(Clone, Copy)]
enum Rule {
    /// Returns the nodes to fuse when a pattern ends (or begins) at this node.
    Fuse(fn(&Graph, usize) -> Option<Fusion>),
    /// Rewrites the first match of the pattern; returns whether there was one.
    Rewrite(fn(&mut Graph) -> bool),
}

/// Nodes that become one.
struct Fusion {
    /// What the new node computes.
    op: Op,
    /// Its inputs.
    inputs: Vec<ValueId>,
    /// The node whose position, layer and result the new node takes: the last of the pattern, so that all inputs are
    /// computed before it.
    last: usize,
    /// The nodes that are removed.
    others: Vec<usize>,
}

impl Pass {
    /// Rewrites every match of the pattern; returns how many there were.
    pub(crate) fn run(&self, graph: &mut Graph) -> usize {
        let mut rewrites = 0;
        while self.rewrite_one(graph) {
            rewrites += 1;
        }
        rewrites
    }

    fn rewrite_one(&self, graph: &mut Graph) -> bool {
        let pattern = match self.rule {
            Rule::Rewrite(rewrite) => return rewrite(graph),
            Rule::Fuse(pattern) => pattern,
        };
        let Some(fusion) = (0..graph.nodes.len()).find_map(|node| pattern(graph, node)) else { return false };
        let Node { output, layer, .. } = graph.nodes[fusion.last];
        graph.nodes[fusion.last] = Node { op: fusion.op, inputs: fusion.inputs, output, layer };
        remove(graph, &fusion.others);
        true
    }
}

/// Every pass, in order: later ones match what earlier ones make.
pub const ALL: &[Pass] = &[
    Pass { name: "fuse embeddings", rule: Rule::Fuse(embeddings::pattern) },
    Pass { name: "merge projections", rule: Rule::Rewrite(merge_projections::rewrite_one) },
    Pass { name: "merge rotations", rule: Rule::Rewrite(merge_rotations::rewrite_one) },
    Pass { name: "merge gate", rule: Rule::Rewrite(merge_gate::rewrite_one) },
    Pass { name: "fuse experts", rule: Rule::Fuse(experts::pattern) },
    Pass { name: "fuse bias, residual, norm", rule: Rule::Fuse(residual_norm::pattern) },
    Pass { name: "fuse bias, activation", rule: Rule::Fuse(bias_act::pattern) },
    Pass { name: "fuse product, residual", rule: Rule::Fuse(residual::pattern) },
    Pass { name: "fuse product, maximum", rule: Rule::Rewrite(max_pool::rewrite_one) },
    Pass { name: "fuse scale, bias, mask, softmax", rule: Rule::Fuse(softmax::pattern) },
    Pass { name: "head transposes away", rule: Rule::Rewrite(head_transposes::rewrite_one) },
    Pass { name: "fuse attention", rule: Rule::Fuse(attention::pattern) },
    Pass { name: "fuse product, norm", rule: Rule::Fuse(linear_norm::pattern) },
    Pass { name: "fuse feed forward", rule: Rule::Fuse(feed_forward::pattern) },
    Pass { name: "part picked rows", rule: Rule::Rewrite(part_rows::rewrite_one) },
    Pass { name: "pick rows early", rule: Rule::Rewrite(pick_early::rewrite_one) },
    Pass { name: "dead values", rule: Rule::Rewrite(dead_values::rewrite_one) },
];

/// The passes that fuse what the paper leaves apart: products and what stands between them.
const BEYOND_THE_PAPER: [&str; 4] =
    ["fuse experts", "fuse attention", "fuse product, norm", "fuse feed forward"];

/// The passes of the paper (PPoPP'21, §4.1): all but those that fuse experts, fuse attention (in the paper scores are a
/// tensor), or fuse a product with a norm or with another product. Padded layout only.
pub fn paper() -> Vec<Pass> {
    ALL.iter().filter(|pass| !BEYOND_THE_PAPER.contains(&pass.name)).copied().collect()
}

fn remove(graph: &mut Graph, nodes: &[usize]) {
    let mut index = 0;
    graph.nodes.retain(|_| {
        index += 1;
        !nodes.contains(&(index - 1))
    });
}
