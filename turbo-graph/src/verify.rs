//! The rules that every graph keeps, checked when it is built and after each pass.

use crate::{
    GraphError,
    dim::Shape,
    graph::{Graph, Node, Storage},
    op::Op,
    shape,
};

/// Checks `graph` against the rules; `stage` names the pass that made it.
///
/// * Every value is defined before it is read, and defined once.
/// * Weights stand where weights are expected, and only there.
/// * Every shape is what the operator's rule says.
/// * Nodes of one layer stand together, layers in order.
/// * There is an output, and a node computes it.
///
/// # Errors
/// [`GraphError::Malformed`] names the first node that breaks a rule; [`GraphError::NoOutput`].
pub(crate) fn verify(graph: &Graph, stage: &'static str) -> Result<(), GraphError> {
    let mut defined: Vec<bool> = graph
        .values
        .iter()
        .map(|value| matches!(value.storage, Storage::Weight(_) | Storage::Input(_)))
        .collect();
    let mut layer = None;
    for (index, node) in graph.nodes.iter().enumerate() {
        let check = || -> Result<(), String> {
            if let Some(input) = node.inputs.iter().find(|input| !defined[input.index()]) {
                return Err(format!("reads %{} before it is computed", input.0));
            }
            if defined[node.output.index()] {
                return Err(format!("computes %{} again", node.output.0));
            }
            if node.layer < layer && node.layer.is_some() {
                return Err(format!("layer {:?} after layer {layer:?}", node.layer));
            }
            check_storage(graph, node)?;
            check_shape(graph, node)
        };
        check().map_err(|why| GraphError::Malformed { stage, node: index, op: node.op.name(), why })?;
        defined[node.output.index()] = true;
        layer = layer.max(node.layer);
    }
    let mut outputs = graph.outputs().peekable();
    if outputs.peek().is_none() || outputs.any(|(value, _)| !defined[value.index()]) {
        return Err(GraphError::NoOutput(graph.name().to_owned()));
    }
    Ok(())
}

/// Whether input `index` of `op` is a tensor of the checkpoint.
pub(crate) fn takes_weight(op: &Op, index: usize) -> bool {
    match op {
        Op::Embed => index == 0,
        Op::MatMul | Op::AddBias | Op::LayerNorm { .. } | Op::Linear { .. } => index > 0,
        Op::BiasResidualLayerNorm { .. } => index == 1 || index > 2,
        Op::EmbedSumLayerNorm { .. } => matches!(index, 0 | 2 | 4 | 6 | 7),
        Op::Add
        | Op::Scale { .. }
        | Op::Activate(_)
        | Op::SplitHeads(_)
        | Op::MergeHeads
        | Op::BatchedMatMul { .. }
        | Op::Mask
        | Op::Softmax
        | Op::Pool(_)
        | Op::ScaleMaskSoftmax { .. }
        | Op::Attention { .. } => false,
    }
}

/// Whether input `index` of `op` holds ids rather than floats.
fn takes_ids(op: &Op, index: usize) -> bool {
    match op {
        Op::Embed => index == 1,
        Op::EmbedSumLayerNorm { .. } => matches!(index, 1 | 3 | 5),
        _ => false,
    }
}

fn check_storage(graph: &Graph, node: &Node) -> Result<(), String> {
    for (index, &input) in node.inputs.iter().enumerate() {
        let expected = match (takes_weight(&node.op, index), takes_ids(&node.op, index)) {
            (true, _) => "a weight",
            (_, true) => "ids of the batch",
            _ => "a computed value",
        };
        let got = match graph.value(input).storage {
            Storage::Weight(_) => "a weight",
            Storage::Input(_) => "ids of the batch",
            Storage::Activation | Storage::Output(_) => "a computed value",
        };
        if got != expected {
            return Err(format!("input {index} is {got}, expected {expected}"));
        }
    }
    match graph.value(node.output).storage {
        Storage::Activation | Storage::Output(_) => Ok(()),
        Storage::Weight(_) | Storage::Input(_) => Err("computes a constant".to_owned()),
    }
}

fn check_shape(graph: &Graph, node: &Node) -> Result<(), String> {
    let shapes: Vec<&Shape> = node.inputs.iter().map(|&input| &graph.value(input).shape).collect();
    let expected = shape::infer(&node.op, &shapes).map_err(|error| error.to_string())?;
    let got = &graph.value(node.output).shape;
    if *got == expected { Ok(()) } else { Err(format!("has shape {got}, its rule says {expected}")) }
}
