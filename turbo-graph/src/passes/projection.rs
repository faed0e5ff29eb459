//! Finds products of one input and puts them side by side: shared by several passes.

use crate::{
    graph::{Graph, NamedWeight, Node, Storage, ValueId},
    op::Op,
};

/// `matmul(x, weight)` or `add_bias(matmul(x, weight), bias)`.
#[derive(Clone, Copy)]
pub(super) struct Projection {
    matmul: usize,
    add_bias: Option<usize>,
    /// The result.
    pub(super) value: ValueId,
    /// Columns of the result.
    pub(super) width: usize,
}

impl Projection {
    /// The projection that begins with the product at node `matmul`.
    pub(super) fn of_product(graph: &Graph, matmul: usize) -> Option<Self> {
        let node = graph.nodes.get(matmul).filter(|node| node.op == Op::MatMul)?;
        let is_published = |input: ValueId| matches!(graph.value(input).storage, Storage::Weight(_));
        let add_bias = graph.only_reader(node.output).filter(|&reader| {
            let reader = &graph.nodes[reader];
            reader.op == Op::AddBias && reader.layer == node.layer && is_published(reader.inputs[1])
        });
        let value = graph.nodes[add_bias.unwrap_or(matmul)].output;
        let width = graph.value(value).shape.last_fixed()?;
        is_published(node.inputs[1]).then_some(Projection { matmul, add_bias, value, width })
    }

    /// The projection whose result is `value`.
    pub(super) fn of_result(graph: &Graph, value: ValueId) -> Option<Self> {
        let producer = graph.producer(value)?;
        let matmul = match graph.nodes[producer].op {
            Op::AddBias => graph.private_producer(graph.nodes[producer].inputs[0])?,
            _ => producer,
        };
        Projection::of_product(graph, matmul).filter(|projection| projection.value == value)
    }

    /// Whether both read the same input, are in the same layer, and both or neither have a bias.
    pub(super) fn is_beside(&self, other: &Projection, graph: &Graph) -> bool {
        let (a, b) = (&graph.nodes[self.matmul], &graph.nodes[other.matmul]);
        self.matmul != other.matmul
            && (a.inputs[0], a.layer, self.add_bias.is_some())
                == (b.inputs[0], b.layer, other.add_bias.is_some())
    }
}

/// Replaces these projections, each beside the first, by one that has their columns in order; returns its result. The
/// caller must redirect the readers.
pub(super) fn side_by_side(graph: &mut Graph, projections: &[Projection]) -> ValueId {
    let first = projections.iter().map(|p| p.matmul).min().expect("there is a projection to replace");
    let Node { ref inputs, layer, .. } = graph.nodes[first];
    let x = inputs[0];
    let weights: Vec<_> = projections.iter().map(|p| graph.nodes[p.matmul].inputs[1]).collect();
    let biases: Vec<_> =
        projections.iter().filter_map(|p| p.add_bias).map(|node| graph.nodes[node].inputs[1]).collect();
    let shape = graph.value(x).shape.with_columns(projections.iter().map(|p| p.width).sum());

    let mut merged = graph.add_value(shape.clone(), Storage::Activation);
    let weight = stack(graph, &weights);
    let mut nodes = vec![Node { op: Op::MatMul, inputs: vec![x, weight], output: merged, layer }];
    if !biases.is_empty() {
        let inputs = vec![merged, stack(graph, &biases)];
        merged = graph.add_value(shape, Storage::Activation);
        nodes.push(Node { op: Op::AddBias, inputs, output: merged, layer });
    }
    let gone: Vec<usize> = projections.iter().flat_map(|p| [Some(p.matmul), p.add_bias]).flatten().collect();
    super::remove(graph, &gone);
    // `first` was the first node removed, so the node now at `first` comes after everything the new nodes need.
    graph.nodes.splice(first..first, nodes);
    merged
}

/// One weight that stacks the given ones.
fn stack(graph: &mut Graph, parts: &[ValueId]) -> ValueId {
    let mut named: Vec<NamedWeight> = Vec::new();
    for &part in parts {
        if let Storage::Weight(tensors) = &graph.value(part).storage {
            named.extend_from_slice(tensors);
        }
    }
    graph.stack(named)
}

/// Whether `value` has readers, and each could read its columns from a wider tensor.
pub(super) fn is_read_by_columns(graph: &Graph, value: ValueId) -> bool {
    let mut readers = graph.nodes.iter().filter(|node| node.inputs.contains(&value)).peekable();
    graph.value(value).storage == Storage::Activation
        && readers.peek().is_some()
        && readers.all(|node| node.op.head_columns().is_some())
}

/// Redirects the readers of `value` to its columns in `wider`, which begin at column `first`.
pub(super) fn read_within(graph: &mut Graph, value: ValueId, wider: ValueId, first: usize) {
    for node in graph.nodes.iter_mut().filter(|node| node.inputs.contains(&value)) {
        let columns = node.op.head_columns_mut().expect("every reader was asked before");
        columns.first += first;
        node.inputs[0] = wider;
    }
}
