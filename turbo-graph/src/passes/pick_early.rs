//! Rows are picked before what is computed row by row: behind the last attention, a classifier needs its first token
//! alone, and vocabulary logits the selected tokens alone.
//!
//! `pick(f(x, residual))` becomes `f(pick(x), pick(residual))`, as long as nobody else reads the rows.

use turbo_kernels::Pooling;

use crate::{
    dim::Shape,
    graph::{Graph, Node, Storage, ValueId},
    op::Op,
    verify::takes_constant,
};

pub(super) fn rewrite_one(graph: &mut Graph) -> bool {
    let found = (0..graph.nodes.len()).find_map(|pick| {
        let picks = is_pick(&graph.nodes[pick].op);
        let rows = picks.then(|| graph.private_producer(graph.nodes[pick].inputs[0]))??;
        is_row_by_row(&graph.nodes[rows].op).then_some((pick, rows))
    });
    let Some((pick, rows)) = found else { return false };
    let Node { op, output, .. } = graph.nodes[pick];
    graph.nodes[rows].output = output;
    super::remove(graph, &[pick]);
    let (mut at, inputs) = (rows, graph.nodes[rows].inputs.clone());
    for (index, input) in inputs.into_iter().enumerate() {
        if !takes_constant(&graph.nodes[at].op, index) {
            let picked = pick_before(graph, &mut at, op, input, output);
            graph.nodes[at].inputs[index] = picked;
        }
    }
    true
}

/// The picked rows of `input`, computed before node `at`, which moves where they were not yet; `like` is a value of such
/// rows. One pick serves all readers, else two of them would keep each other from moving on.
fn pick_before(graph: &mut Graph, at: &mut usize, op: Op, input: ValueId, like: ValueId) -> ValueId {
    let known = graph.nodes.iter().position(|node| node.op == op && node.inputs == [input]);
    let output = match known {
        Some(before) if before < *at => return graph.nodes[before].output,
        Some(after) => graph.nodes.remove(after).output,
        None => {
            let [rows, columns] = [like, input].map(|value| &graph.value(value).shape.0);
            let shape = Shape([&rows[..rows.len() - 1], &columns[columns.len() - 1..]].concat());
            graph.add_value(shape, Storage::Activation)
        }
    };
    let layer = graph.nodes[*at].layer;
    graph.nodes.insert(*at, Node { op, inputs: vec![input], output, layer });
    *at += 1;
    output
}

/// Whether the result consists of rows of the input, unchanged.
fn is_pick(op: &Op) -> bool {
    matches!(op, Op::Pool(Pooling::Cls | Pooling::LastToken) | Op::Select)
}

/// Whether a row of the result depends on the same row of the computed inputs alone.
fn is_row_by_row(op: &Op) -> bool {
    match op {
        Op::MatMul
        | Op::AddBias
        | Op::Add
        | Op::Mul
        | Op::Scale { .. }
        | Op::Activate(_)
        | Op::Gate(_)
        | Op::LayerNorm { .. }
        | Op::RmsNorm { .. }
        | Op::Linear { .. }
        | Op::ResidualLinear
        | Op::LinearLayerNorm { .. }
        | Op::FeedForward(_)
        | Op::ResidualLayerNorm { .. }
        | Op::BiasResidualLayerNorm { .. } => true,
        // lookups read ids of all tokens; heads are of rows that know their sequence
        Op::Embed
        | Op::EmbedSumLayerNorm { .. }
        | Op::HeadRmsNorm { .. }
        | Op::Rotary(_)
        | Op::SplitHeads(_)
        | Op::MergeHeads
        | Op::BatchedMatMul { .. }
        | Op::AddRelativeBias(_)
        | Op::Mask(_)
        | Op::Softmax
        | Op::ScaleMaskSoftmax { .. }
        | Op::Attention { .. }
        | Op::Pool(_)
        | Op::Select
        | Op::LinearMaxPool => false,
    }
}
