//! The three projections of attention read one input: they become one product, whose columns the heads are split from.

use turbo_kernels::matmul::Rhs;

use crate::{
    dim::Shape,
    graph::{Graph, NamedWeight, Node, Storage, ValueId},
    op::{HeadColumns, Op},
};

/// `split_heads(add_bias(matmul(x, weight), bias))`.
struct Projection {
    matmul: usize,
    add_bias: usize,
    split: usize,
}

pub(super) fn rewrite_one(graph: &mut Graph) -> bool {
    let found = (0..graph.nodes.len()).find_map(|scores| pattern(graph, scores));
    let Some(projections) = found else { return false };
    merge(graph, &projections);
    true
}

/// Queries, keys and values of the attention whose scores are computed by node `scores`, when they are three and share
/// their input.
fn pattern(graph: &Graph, scores: usize) -> Option<[Projection; 3]> {
    let node = &graph.nodes[scores];
    if !matches!(node.op, Op::BatchedMatMul { rhs: Rhs::Transposed, .. }) {
        return None;
    }
    let q = projection(graph, node.inputs[0])?;
    let k = projection(graph, node.inputs[1])?;
    let context = context_of(graph, node.output)?;
    let v = projection(graph, graph.nodes[context].inputs[1])?;
    let x = graph.nodes[q.matmul].inputs[0];
    let shared = [&k, &v].iter().all(|other| graph.nodes[other.matmul].inputs[0] == x);
    (shared && q.split != k.split).then_some([q, k, v])
}

/// The product that the probabilities of these scores enter as first factor.
fn context_of(graph: &Graph, scores: ValueId) -> Option<usize> {
    let mut value = scores;
    loop {
        let reader = graph.only_reader(value)?;
        match graph.nodes[reader].op {
            Op::Scale { .. } | Op::Mask | Op::Softmax | Op::ScaleMaskSoftmax { .. } => {
                value = graph.nodes[reader].output;
            }
            Op::BatchedMatMul { rhs: Rhs::Normal, .. } if graph.nodes[reader].inputs[0] == value => {
                return Some(reader);
            }
            _ => return None,
        }
    }
}

fn projection(graph: &Graph, heads: ValueId) -> Option<Projection> {
    let split = sole(graph, heads, |op| matches!(op, Op::SplitHeads(HeadColumns { first: 0, .. })))?;
    let add_bias = sole(graph, graph.nodes[split].inputs[0], |op| *op == Op::AddBias)?;
    let matmul = sole(graph, graph.nodes[add_bias].inputs[0], |op| *op == Op::MatMul)?;
    Some(Projection { matmul, add_bias, split })
}

fn sole(graph: &Graph, value: ValueId, wanted: impl Fn(&Op) -> bool) -> Option<usize> {
    graph.private_producer(value).filter(|&node| wanted(&graph.nodes[node].op))
}

fn merge(graph: &mut Graph, projections: &[Projection; 3]) {
    let first = projections.iter().map(|p| p.matmul).min().expect("there are three projections");
    let (x, layer) = (graph.nodes[first].inputs[0], graph.nodes[first].layer);
    let weight = stack(graph, projections.each_ref().map(|p| graph.nodes[p.matmul].inputs[1]));
    let bias = stack(graph, projections.each_ref().map(|p| graph.nodes[p.add_bias].inputs[1]));
    let columns = graph.value(bias).shape.last_fixed().expect("a bias has a fixed length");

    let mut dims = graph.value(x).shape.0.clone();
    dims.pop();
    dims.push(crate::dim::Dim::Fixed(columns));
    let product = graph.add_value(Shape(dims.clone()), Storage::Activation);
    let merged = graph.add_value(Shape(dims), Storage::Activation);

    let mut column = 0;
    for projection in projections {
        let split = &mut graph.nodes[projection.split];
        split.inputs = vec![merged];
        let Op::SplitHeads(heads) = &mut split.op else { unreachable!("the pattern ends in a split") };
        heads.first = column;
        column = heads.end();
    }
    let merged_nodes = [
        Node { op: Op::MatMul, inputs: vec![x, weight], output: product, layer },
        Node { op: Op::AddBias, inputs: vec![product, bias], output: merged, layer },
    ];
    let gone: Vec<usize> = projections.iter().flat_map(|p| [p.matmul, p.add_bias]).collect();
    super::remove(graph, &gone);
    // `first` was the first of the nodes removed, so what now stands there came after all it needs.
    graph.nodes.splice(first..first, merged_nodes);
}

/// One weight that holds the given ones below each other.
fn stack(graph: &mut Graph, parts: [ValueId; 3]) -> ValueId {
    let mut named: Vec<NamedWeight> = Vec::new();
    for part in parts {
        if let Storage::Weight(tensors) = &graph.value(part).storage {
            named.extend_from_slice(tensors);
        }
    }
    let mut shape = named[0].shape.clone();
    shape[0] = named.iter().map(|tensor| tensor.shape[0]).sum();
    graph.weight(Shape::fixed(&shape), named)
}
