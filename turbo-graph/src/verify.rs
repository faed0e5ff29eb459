//! The rules that every graph obeys, checked when it is built and after each pass.

use crate::{
    GraphError,
    dim::Shape,
    graph::{Graph, Node, Storage},
    shape,
};

/// Checks `graph` against the rules; `stage` names the pass that made it.
///
/// * Every value is defined before it is read, and defined once.
/// * Weights and other constants stand where they are expected, and only there.
/// * Every shape follows from the operator's rule.
/// * The nodes of a layer are contiguous, and layers are in ascending order.
/// * There is an output, and a node computes it.
///
/// # Errors
/// [`GraphError::Malformed`] names the first node that breaks a rule; [`GraphError::NoOutput`].
pub(crate) fn verify(graph: &Graph, stage: &'static str) -> Result<(), GraphError> {
    let mut defined: Vec<bool> = graph.values.iter().map(|value| !is_computed(&value.storage)).collect();
    let (mut layer, mut highest) = (None, None);
    for (index, node) in graph.nodes.iter().enumerate() {
        let check = || -> Result<(), String> {
            if let Some(input) = node.inputs.iter().find(|input| !defined[input.index()]) {
                return Err(format!("reads %{} before it is computed", input.0));
            }
            if defined[node.output.index()] {
                return Err(format!("computes %{} again", node.output.0));
            }
            check_layer(node.layer, layer, highest)?;
            check_storage(graph, node)?;
            check_shape(graph, node)
        };
        check().map_err(|why| GraphError::Malformed { stage, node: index, op: node.op.name(), why })?;
        defined[node.output.index()] = true;
        (layer, highest) = (node.layer, highest.max(node.layer));
    }
    let mut outputs = graph.outputs().peekable();
    if outputs.peek().is_none() || outputs.any(|(value, _)| !defined[value.index()]) {
        return Err(GraphError::NoOutput(graph.name().to_owned()));
    }
    Ok(())
}

/// Whether a value with this storage must be computed by an operator.
fn is_computed(storage: &Storage) -> bool {
    matches!(storage, Storage::Activation | Storage::Output(_))
}

/// Checks the layer of a node against that of the node before it and the highest layer so far.
fn check_layer(layer: Option<u32>, last: Option<u32>, highest: Option<u32>) -> Result<(), String> {
    match (layer, highest) {
        (Some(layer), Some(highest)) if layer < highest => {
            Err(format!("belongs to layer {layer}, after layer {highest}"))
        }
        (Some(layer), Some(highest)) if layer == highest && last != Some(layer) => {
            Err(format!("belongs to layer {layer}, which had ended"))
        }
        _ => Ok(()),
    }
}

fn check_storage(graph: &Graph, node: &Node) -> Result<(), String> {
    for (index, &input) in node.inputs.iter().enumerate() {
        let expected = match (node.op.takes_constant(index), node.op.takes_ids(index)) {
            (true, _) => "a weight",
            (_, true) => "ids of the batch",
            _ => "a computed value",
        };
        let got = match graph.value(input).storage {
            Storage::Weight(_) | Storage::Computed(_) => "a weight",
            Storage::Input(_) => "ids of the batch",
            Storage::Activation | Storage::Output(_) => "a computed value",
        };
        if got != expected {
            return Err(format!("input {index} is {got}, expected {expected}"));
        }
    }
    match is_computed(&graph.value(node.output).storage) {
        true => Ok(()),
        false => Err("computes a constant".to_owned()),
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
    use crate::{
        Activation, AttentionMask, GraphBuilder, GraphError, HeadColumns, Input, Pooling, PositionBuckets,
        Rhs, Routing, ValueId,
    };

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
        let cases: [(&str, String); 7] = [
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
                "after test: node 1 (scale): belongs to layer 0, after layer 1",
                broken(|graph| (graph.nodes[0].layer, graph.nodes[1].layer) = (Some(1), Some(0))),
            ),
            (
                "after test: node 2 (scale): belongs to layer 0, which had ended",
                broken(|graph| {
                    let (x, shape) =
                        (graph.nodes[1].output, graph.value(graph.nodes[1].output).shape.clone());
                    let output = graph.add_value(shape, Storage::Activation);
                    graph.nodes.push(Node { inputs: vec![x], output, ..graph.nodes[1].clone() });
                    (graph.nodes[0].layer, graph.nodes[2].layer) = (Some(0), Some(0));
                }),
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
        let heads = g.split_heads(x, 2).unwrap();
        assert_eq!(
            message(g.mask(heads, AttentionMask::Full)),
            "mask: input 0 has shape [batch_size, 2, padded_len, 4], expected [batch_size, num_heads, rows, padded_len]"
        );
        let scores = g.batched_matmul(heads, heads, Rhs::Transposed).unwrap();
        assert_eq!(
            message(g.merge_heads(scores)),
            "merge_heads: input 0 has shape [batch_size, 2, padded_len, padded_len], expected [batch_size, num_heads, \
             rows, head_dim]"
        );
        assert_eq!(
            message(g.batched_matmul(heads, heads, Rhs::Normal)),
            "batched_matmul: input 1 has shape [batch_size, 2, padded_len, 4], expected heads that fit \
             [batch_size, 2, padded_len, 4]"
        );
        let pooled = g.pool(x, Pooling::Mean).unwrap();
        for (got, wrong) in [(pooled, "[batch_size, 8]"), (heads, "[batch_size, 2, padded_len, 4]")] {
            let expected =
                format!("pool: input 0 has shape {wrong}, expected a row of hidden_size values per token");
            assert_eq!(message(g.pool(got, Pooling::Mean)), expected);
        }
        assert_eq!(
            message(g.add(x, pooled)),
            "add: input 1 has shape [batch_size, 8], expected [batch_size, padded_len, 8]"
        );
        assert_eq!(
            message(g.layer_norm(x, vector, Some(vector), 1e-12)),
            "layer_norm: input 1 has shape [7], expected [8]"
        );
        assert_eq!(message(g.embed(vector, x)), "embed: input 0 has shape [7], expected [rows, hidden_size]");
    }

    #[test]
    fn what_today_s_encoders_add_has_shapes_too() {
        let mut g = GraphBuilder::new("wrong");
        let (table, ids) = (g.weight("table", &[10, 9]), g.input(Input::InputIds));
        let x = g.embed(table, ids).unwrap();
        let (gain, heads) = (g.weight("gain", &[3]), HeadColumns { first: 0, num_heads: 2, head_dim: 4 });
        let turns = g.rotary_table(&[1.0, 0.5], 16);
        assert_eq!(turns, g.rotary_table(&[1.0, 0.5], 16), "asked for again it is the same value");
        let (buckets, mask) = (g.weight("buckets", &[8, 2]), AttentionMask::Causal);
        let (split, one) = (g.split_heads_at(x, heads).unwrap(), g.split_heads(x, 1).unwrap());
        let scores = g.batched_matmul(split, split, Rhs::Transposed).unwrap();
        let context = g.batched_matmul(scores, one, Rhs::Normal).unwrap();
        let pooled = g.pool(x, Pooling::Max).unwrap();
        let (positions, none) = (
            PositionBuckets { span: 3, max_distance: None },
            PositionBuckets { span: 0, max_distance: None },
        );
        let table = g.weight("positions", &[6, 8]);
        let met = g.position_scores(x, heads, table, positions).unwrap();
        let row = "[batch_size, padded_len, 9]";
        let cases = [
            (g.gate(x, Activation::Silu), format!("gate: input 0 has shape {row}, expected rows of two halves")),
            (
                g.weigh_experts(x, x, Routing { num_experts: 4, top_k: 1 }),
                format!("weigh_experts: input 0 has shape {row}, expected rows of 4 experts"),
            ),
            (
                g.weigh_experts(x, pooled, Routing { num_experts: 3, top_k: 1 }),
                "weigh_experts: input 1 has shape [batch_size, 9], expected [batch_size, padded_len, 3]".to_owned(),
            ),
            (g.mul(x, pooled), format!("mul: input 1 has shape [batch_size, 9], expected {row}")),
            (g.rms_norm(x, gain, 1e-6), "rms_norm: input 1 has shape [3], expected [9]".to_owned()),
            (
                g.head_rms_norm(x, heads, gain, 1e-6),
                "head_rms_norm: input 1 has shape [3], expected [4]".to_owned(),
            ),
            (
                g.rotary(x, HeadColumns { first: 2, ..heads }, turns),
                format!("rotary: input 0 has shape {row}, expected a row per token that holds heads 2×4@2"),
            ),
            (
                g.rotary(x, HeadColumns { first: usize::MAX, ..heads }, turns),
                format!(
                    "rotary: input 0 has shape {row}, expected a row per token that holds heads 2×4@{}",
                    usize::MAX
                ),
            ),
            (
                g.split_heads_at(x, HeadColumns { num_heads: usize::MAX, ..heads }),
                format!(
                    "split_heads: input 0 has shape {row}, expected [batch_size, padded_len, columns] that hold heads \
                     {}×4",
                    usize::MAX
                ),
            ),
            (
                g.rotary(x, HeadColumns { head_dim: 3, ..heads }, turns),
                "rotary: input 1 has shape [16, 4], expected [positions, 3], an even number of columns".to_owned(),
            ),
            (
                g.mask(context, mask),
                "mask: input 0 has shape [batch_size, 2, padded_len, 9], expected \
                 [batch_size, num_heads, padded_len, padded_len]"
                    .to_owned(),
            ),
            (
                g.add_relative_bias(scores, buckets, 16, 20),
                "add_relative_bias: input 1 has shape [8, 2], expected [16, 2]".to_owned(),
            ),
            (
                g.add_relative_bias(scores, buckets, 8, 2),
                "add_relative_bias: input 1 has shape [8, 2], expected at least 4 buckets, a quarter of them below \
                 distance 2"
                    .to_owned(),
            ),
            (
                g.position_scores(x, heads, buckets, positions),
                "position_scores: input 1 has shape [8, 2], expected [6, 8]".to_owned(),
            ),
            (
                g.position_scores(x, HeadColumns { first: 2, ..heads }, table, positions),
                format!("position_scores: input 0 has shape {row}, expected a row per token that holds heads 2×4@2"),
            ),
            (
                g.position_scores(x, heads, table, none),
                "position_scores: span is 0, expected from 1 to 8388608".to_owned(),
            ),
            (
                g.add_disentangled(scores, [met, x], positions),
                format!(
                    "add_relative_bias: input 2 has shape {row}, expected scores with 6 positions, [batch_size, \
                     padded_len, 12]"
                ),
            ),
            (
                g.select(pooled),
                "select: input 0 has shape [batch_size, 9], expected a row of hidden_size values per token".to_owned(),
            ),
        ];
        for (got, expected) in cases {
            assert_eq!(got.unwrap_err().to_string(), expected);
        }
        let few = g.split_heads_at(x, HeadColumns { num_heads: 3, head_dim: 3, first: 0 }).unwrap();
        let refused = g.batched_matmul(few, split, Rhs::Normal).unwrap_err().to_string();
        assert!(refused.ends_with("expected heads that fit [batch_size, 3, padded_len, 3]"), "{refused}");
    }

    #[test]
    fn outputs_are_computed_values_with_one_name_each() {
        let named = |name: fn(&mut GraphBuilder, ValueId, ValueId)| {
            let mut g = GraphBuilder::new("outputs");
            let (table, ids) = (g.weight("table", &[10, 8]), g.input(Input::InputIds));
            let x = g.embed(table, ids).unwrap();
            let y = g.scale(x, 2.0).unwrap();
            g.output("x", x);
            name(&mut g, table, y);
            g.finish().map(|_| ()).unwrap_err().to_string()
        };
        assert_eq!(named(|g, table, _| g.output("w", table)), "output \"w\": %0 is not a computed value");
        assert_eq!(named(|g, _, y| g.output("x", y)), "output \"x\": %2 has this name already");
        let twice = |g: &mut GraphBuilder, _: ValueId, y| {
            g.output("y", y);
            g.output("z", y);
        };
        assert_eq!(named(twice), "output \"z\": %3 is the output \"y\" already");
    }
}
