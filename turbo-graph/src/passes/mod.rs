//! What fusion does to a textbook graph, as a list to be read.
//!
//! A pass finds its pattern, replaces it, and leaves the graph obeying every rule of the verifier, which runs after
//! each. A pass never changes what is computed, only in how many steps; the tests run every prefix of the list.

mod attention;
mod bias_act;
mod bias_residual_norm;
mod dead_values;
mod embeddings;
mod head_transposes;
mod merge_qkv;
mod pack;
mod softmax;

use crate::graph::{Graph, Node};

pub(crate) use pack::pack;

/// A rewriting step.
#[derive(Clone, Copy)]
pub struct Pass {
    /// What it does, in the words of the printed trace.
    pub name: &'static str,
    /// Rewrites the first place where its pattern stands, or says that there is none.
    rewrite_one: fn(&mut Graph) -> bool,
}

impl Pass {
    /// Rewrites every place where the pattern stands; returns how many there were.
    pub(crate) fn run(&self, graph: &mut Graph) -> usize {
        let mut rewrites = 0;
        while (self.rewrite_one)(graph) {
            rewrites += 1;
        }
        rewrites
    }
}

/// Every pass, in the order in which they feed each other.
pub const ALL: &[Pass] = &[
    Pass { name: "fuse embeddings", rewrite_one: embeddings::rewrite_one },
    Pass { name: "merge qkv", rewrite_one: merge_qkv::rewrite_one },
    Pass { name: "fuse bias, residual, norm", rewrite_one: bias_residual_norm::rewrite_one },
    Pass { name: "fuse bias, activation", rewrite_one: bias_act::rewrite_one },
    Pass { name: "fuse scale, mask, softmax", rewrite_one: softmax::rewrite_one },
    Pass { name: "head transposes away", rewrite_one: head_transposes::rewrite_one },
    Pass { name: "fuse attention", rewrite_one: attention::rewrite_one },
    Pass { name: "dead values", rewrite_one: dead_values::rewrite_one },
];

/// The passes of the paper (PPoPP'21, §4.1): all but fused attention, so that scores are a tensor. Padded layout only.
pub fn paper() -> Vec<Pass> {
    ALL.iter().filter(|pass| pass.name != "fuse attention").copied().collect()
}

/// Replaces the nodes of a pattern by one: `last` becomes `node`, `others` vanish.
fn replace(graph: &mut Graph, last: usize, node: Node, others: &[usize]) {
    graph.nodes[last] = node;
    remove(graph, others);
}

fn remove(graph: &mut Graph, nodes: &[usize]) {
    let mut index = 0;
    graph.nodes.retain(|_| {
        index += 1;
        !nodes.contains(&(index - 1))
    });
}
