//! Picks rows before the nodes that compute row by row: behind the last attention, a classifier needs only its first
//! token, and vocabulary logits only the selected tokens.
//!
//! `pick(f(x, residual))` becomes `f(pick(x), pick(residual))`, as long as nothing else reads the rows. If the first or
//! last rows of an attention are picked, only these tokens have queries: `pick(attention(q, k, v))` becomes
//! `attention of the first(pick(q), k, v)`. Keys and values are still computed for all tokens.

use turbo_kernels::{Pooling, Queries};

use super::split_queries;
use crate::{
    graph::{Graph, Node, Storage, ValueId},
    op::{DistanceBias, Op},
};

pub(super) fn rewrite_one(graph: &mut Graph) -> bool {
    pick_inputs(graph) || pick_queries(graph) || split_queries::rewrite_one(graph)
}

/// Reduces an attention to one query per sequence, if the contexts of the other tokens are not read.
fn pick_queries(graph: &mut Graph) -> bool {
    let found = (0..graph.nodes.len()).find_map(|pick| {
        let queries = match graph.nodes[pick].op {
            Op::Pool(Pooling::Cls) => Queries::First,
            Op::Pool(Pooling::LastToken) => Queries::Last,
            _ => return None,
        };
        let attention = graph.private_producer(graph.nodes[pick].inputs[0])?;
        matches!(graph.nodes[attention].op, Op::Attention { .. }).then_some((pick, attention, queries))
    });
    let Some((pick, mut attention, kept)) = found else { return false };
    let Node { op, output, .. } = graph.nodes[pick];
    let node = &mut graph.nodes[attention];
    node.output = output;
    if let Op::Attention { queries, .. } = &mut node.op {
        *queries = kept;
    }
    // the scores of queries with positions have a row per query
    let has_scores = matches!(node.op, Op::Attention { bias: Some(DistanceBias::Disentangled(_)), .. });
    super::remove(graph, &[pick]);
    for input in [0].into_iter().chain(has_scores.then_some(3)) {
        let all = graph.nodes[attention].inputs[input];
        let picked = pick_or_score(graph, &mut attention, op, all, output);
        graph.nodes[attention].inputs[input] = picked;
    }
    true
}

/// As [`pick_before`], but scores with positions are computed again from the picked rows, even if something else needs
/// those of all rows.
fn pick_or_score(graph: &mut Graph, at: &mut usize, op: Op, all: ValueId, like: ValueId) -> ValueId {
    let producer = graph.producer(all).map(|node| graph.nodes[node].clone());
    let Some(scores) = producer.filter(|node| matches!(node.op, Op::PositionScores { .. })) else {
        return pick_before(graph, at, op, all, like);
    };
    let picked = pick_before(graph, at, op, scores.inputs[0], like);
    let columns = graph.value(all).shape.last_fixed().expect("scores are rows of values");
    let output = graph.add_value(graph.value(like).shape.with_columns(columns), Storage::Activation);
    let inputs = vec![picked, scores.inputs[1]];
    graph.nodes.insert(*at, Node { inputs, output, ..scores });
    *at += 1;
    output
}

/// Moves a pick before the node that computes its rows, if that node computes row by row.
fn pick_inputs(graph: &mut Graph) -> bool {
    let found = (0..graph.nodes.len()).find_map(|pick| {
        let picks = graph.nodes[pick].op.is_pick();
        let rows = picks.then(|| graph.private_producer(graph.nodes[pick].inputs[0]))??;
        graph.nodes[rows].op.is_row_by_row().then_some((pick, rows))
    });
    let Some((pick, rows)) = found else { return false };
    let Node { op, output, .. } = graph.nodes[pick];
    graph.nodes[rows].output = output;
    super::remove(graph, &[pick]);
    let (mut at, inputs) = (rows, graph.nodes[rows].inputs.clone());
    for (index, input) in inputs.into_iter().enumerate() {
        if !graph.nodes[at].op.takes_constant(index) {
            let picked = pick_before(graph, &mut at, op, input, output);
            graph.nodes[at].inputs[index] = picked;
        }
    }
    true
}

/// The picked rows of `input`. If they are not yet computed before node `at`, they are inserted there, and `at` moves;
/// `like` is a value with as many rows. One pick serves all readers: two of them would keep each other from moving
/// further.
fn pick_before(graph: &mut Graph, at: &mut usize, op: Op, input: ValueId, like: ValueId) -> ValueId {
    let known = graph.nodes.iter().position(|node| node.op == op && node.inputs == [input]);
    let output = match known {
        Some(before) if before < *at => return graph.nodes[before].output,
        Some(after) => graph.nodes.remove(after).output,
        None => {
            let columns = graph.value(input).shape.last_fixed().expect("what is picked are rows of values");
            graph.add_value(graph.value(like).shape.with_columns(columns), Storage::Activation)
        }
    };
    let layer = graph.nodes[*at].layer;
    graph.nodes.insert(*at, Node { op, inputs: vec![input], output, layer });
    *at += 1;
    output
}
