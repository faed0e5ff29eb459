//! The two products of a feed-forward, what stands between them and what is added after them become one operator: it
//! works block by block, so that the wide rows between the products stay in cache.
//!
//! Only in repeated layers: in a head behind them, rows between two products are no wider than at their ends.

use turbo_kernels::Hidden;

use super::Fusion;
use crate::{
    graph::{Graph, ValueId},
    op::{FeedForwardParts, Op},
};

pub(super) fn pattern(graph: &Graph, last: usize) -> Option<Fusion> {
    let down = &graph.nodes[last];
    down.layer?;
    let [wide, weight, addends @ ..] = &down.inputs[..] else { return None };
    let (adds, norm) = match down.op {
        Op::LinearLayerNorm { adds, epsilon } => (adds, Some(epsilon)),
        op => (op.adds(down.inputs.len())?, None),
    };
    let Up { hidden, x, up, bias, nodes } = Up::of(graph, *wide)?;
    if nodes.iter().any(|&node| graph.nodes[node].layer != down.layer) {
        return None;
    }
    let parts = FeedForwardParts { hidden, up_bias: bias.is_some(), adds, norm };
    let inputs = [x, up, *weight].into_iter().chain(bias).chain(addends.iter().copied()).collect();
    Some(Fusion { op: Op::FeedForward(parts), inputs, last, others: nodes })
}

/// The first product and the activation or gate behind it.
struct Up {
    hidden: Hidden,
    x: ValueId,
    up: ValueId,
    bias: Option<ValueId>,
    nodes: Vec<usize>,
}

impl Up {
    /// The nodes that compute `wide`, if it is read once.
    fn of(graph: &Graph, wide: ValueId) -> Option<Self> {
        let activated = graph.private_producer(wide)?;
        let (hidden, product, nodes) = match graph.nodes[activated].op {
            Op::Linear { activation: Some(activation) } => {
                (Hidden::Activation(activation), activated, vec![activated])
            }
            Op::Gate(activation) => {
                let product = graph.private_producer(graph.nodes[activated].inputs[0])?;
                match graph.nodes[product].op {
                    Op::MatMul | Op::Linear { activation: None } => {
                        (Hidden::Gate(activation), product, vec![activated, product])
                    }
                    _ => return None,
                }
            }
            _ => return None,
        };
        let inputs = &graph.nodes[product].inputs;
        Some(Up { hidden, x: inputs[0], up: inputs[1], bias: inputs.get(2).copied(), nodes })
    }
}
