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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, GraphError, Input};

    /// `scale(embed(table, ids))`, to be broken by a test.
    fn graph() -> Graph {
        let mut g = GraphBuilder::new("two nodes");
        let (table, ids) = (g.weight("table", &[10, 8]), g.input(Input::InputIds));
        let x = g.embed(table, ids).unwrap();
        let y = g.scale(x, 2.0).unwrap();
        g.output("y", y);
        g.finish().unwrap()
    }

    fn broken(change: impl Fn(&mut Graph)) -> String {
        let mut graph = graph();
        change(&mut graph);
        verify(&graph, "test").unwrap_err().to_string()
    }

    #[test]
    fn each_rule_is_checked() {
        let cases: [(&str, String); 6] = [
            (
                "after test: node 0 (scale): reads %2 before it is computed",
                broken(|graph| graph.nodes.swap(0, 1)),
            ),
            (
                "after test: node 2 (scale): computes %3 again",
                broken(|graph| graph.nodes.push(graph.nodes[1].clone())),
            ),
            (
                "after test: node 1 (scale): input 0 is a weight, expected a computed value",
                broken(|graph| graph.nodes[1].inputs[0] = graph.nodes[0].inputs[0]),
            ),
            (
                "after test: node 1 (scale): has shape [3], its rule says [batch_size, padded_len, 8]",
                broken(|graph| {
                    let output = graph.nodes[1].output.index();
                    graph.values[output].shape = Shape::fixed(&[3]);
                }),
            ),
            (
                "after test: node 1 (scale): layer Some(0) after layer Some(1)",
                broken(|graph| (graph.nodes[0].layer, graph.nodes[1].layer) = (Some(1), Some(0))),
            ),
            ("the graph \"two nodes\" has no output", broken(|graph| drop(graph.nodes.pop()))),
        ];
        for (expected, got) in cases {
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn shape_mistakes_are_met_at_the_operator() {
        let mut g = GraphBuilder::new("wrong");
        let (table, ids) = (g.weight("table", &[10, 8]), g.input(Input::InputIds));
        let x = g.embed(table, ids).unwrap();
        let (narrow, vector) = (g.weight("narrow", &[4, 7]), g.weight("vector", &[7]));
        let message = |result: Result<_, GraphError>| result.map(|_| ()).unwrap_err().to_string();
        assert_eq!(message(g.matmul(x, narrow)), "matmul: input 1 has shape [4, 7], expected [out, 8]");
        assert_eq!(message(g.add_bias(x, vector)), "add_bias: input 1 has shape [7], expected [8]");
        assert_eq!(
            message(g.split_heads(x, 3)),
            "split_heads: input 0 has shape [batch_size, padded_len, 8], expected [batch_size, padded_len, a multiple \
             of 3]"
        );
        assert_eq!(
            message(g.softmax(x)),
            "softmax: input 0 has shape [batch_size, padded_len, 8], expected [batch_size, num_heads, rows, columns]"
        );
    }
}
