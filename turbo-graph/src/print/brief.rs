//! A graph in a hundred columns: operators, shapes and what is read, without the names of weights.

use std::fmt;

use super::text::{Line, label, lines};
use crate::{
    fold::Repeated,
    graph::{Graph, Input, Node, Storage, ValueId},
};

const COLUMNS: usize = 100;
/// Between columns, and before the first.
const GAPS: usize = 8;
/// The width of `feed_forward GeluErf ε=1e-12 384→1536→384`.
const LONGEST_COMMON_OP: usize = 43;

/// `graph` in aligned columns, repeated layers once; of weights only the sizes of matrices are shown.
pub fn brief(graph: &Graph) -> impl fmt::Display + '_ {
    Brief(graph)
}

struct Brief<'a>(&'a Graph);

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let graph = self.0;
        let lines = lines(graph);
        let rows: Vec<Option<[String; 4]>> = lines
            .iter()
            .map(|line| match line {
                Line::Node(node) | Line::LayerNode(node) => Some(row(graph, node)),
                Line::Layers { .. } | Line::EndOfLayers => None,
            })
            .collect();
        let width =
            |column: usize| rows.iter().flatten().map(|row| row[column].chars().count()).max().unwrap_or(0);
        // If the columns do not all fit, the few longest operators and shapes overflow theirs.
        let (label, op) = (width(0), width(1).min(LONGEST_COMMON_OP));
        let shape = width(2).min(COLUMNS.saturating_sub(label + op + width(3) + GAPS));
        for (line, row) in lines.iter().zip(&rows) {
            let bar = if matches!(line, Line::LayerNode(_)) { "│" } else { " " };
            match (line, row) {
                (Line::Layers { count, layers: 1 }, _) => {
                    writeln!(f, "┌ {count} layers like this one{}", handed_on(graph))?
                }
                (Line::Layers { count, layers }, _) => {
                    writeln!(f, "┌ {count} times these {layers} layers{}", handed_on(graph))?
                }
                (_, Some([value, what, dims, of])) => writeln!(
                    f,
                    "{}",
                    format!("{bar} {value:<label$}  {what:<op$}  {dims:<shape$}  {of}").trim_end()
                )?,
                _ => writeln!(f, "└{}", named_in_last_layer(graph))?,
            }
        }
        Ok(())
    }
}

/// `: each next one reads %55 for %13`, when layers hand something on.
fn handed_on(graph: &Graph) -> String {
    let Some(Repeated { first, .. }) = Repeated::of(graph) else { return String::new() };
    let inputs =
        |start: usize| graph.nodes()[start..start + first.len()].iter().flat_map(|node| &node.inputs);
    let inside = |value| graph.producer(value).is_some_and(|producer| first.contains(&producer));
    let mut pairs = inputs(first.start).zip(inputs(first.end));
    let handed = pairs.find(|&(&first, &second)| inside(second) && !inside(first));
    handed.map_or_else(String::new, |(first, second)| {
        format!(": each next one reads {} for {}", label(*second), label(*first))
    })
}

/// ` out of the last: %265 → last_hidden_state`, for results that the first layer, which is shown, does not give.
fn named_in_last_layer(graph: &Graph) -> String {
    let Some(repeated) = Repeated::of(graph) else { return String::new() };
    let hidden = repeated.first.end..repeated.all().end;
    let given =
        graph.outputs().filter(|(value, _)| graph.producer(*value).is_some_and(|at| hidden.contains(&at)));
    let given: Vec<String> = given.map(|(value, name)| format!("{} → {name}", label(value))).collect();
    if given.is_empty() { String::new() } else { format!(" out of the last: {}", given.join(", ")) }
}

/// Value, operator, shape, what is read and what is named.
fn row(graph: &Graph, node: &Node) -> [String; 4] {
    let value = graph.value(node.output);
    let mut read: Vec<String> = node.inputs.iter().filter_map(|&input| argument(graph, input)).collect();
    read.dedup(); // queries, keys and values of one tensor
    let read = read.join(" ");
    let named = match &value.storage {
        Storage::Output(name) => format!(" → {name}"),
        _ => String::new(),
    };
    [label(node.output), operator(graph, node), value.shape.to_string(), format!("of {read}{named}")]
}

/// The operator, the widths of rows before and after its products, and its dtype unless that is f32.
pub(super) fn operator(graph: &Graph, node: &Node) -> String {
    format!("{}{}{}", node.op, graph.widths(node), graph.dtype_suffix(node))
}

fn argument(graph: &Graph, value: ValueId) -> Option<String> {
    match graph.value(value).storage {
        Storage::Weight(_) | Storage::Computed(_) => None,
        Storage::Input(Input::InputIds) => Some("ids".to_owned()),
        Storage::Input(Input::TokenTypeIds) => Some("types".to_owned()),
        Storage::Input(Input::PositionIds(_)) => Some("positions".to_owned()),
        Storage::Activation | Storage::Output(_) => Some(label(value)),
    }
}
