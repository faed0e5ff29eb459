//! `{graph}`: one line per node, repeated layers once.

use std::fmt;

use crate::{
    fold::Repeated,
    graph::{Graph, Input, Node, Positions, Storage, ValueId},
};

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} nodes", self.name(), self.nodes().len())?;
        for (index, (value, name)) in self.outputs().enumerate() {
            write!(f, "{} {name} = {}", if index == 0 { ";" } else { "," }, label(value))?;
        }
        writeln!(f)?;
        for line in lines(self) {
            match line {
                Line::Node(node) => writeln!(f, "  {}", self.describe(node))?,
                Line::Layers { count, layers: 1 } => writeln!(f, "  ┌ {count} layers like this one")?,
                Line::Layers { count, layers } => writeln!(f, "  ┌ {count} times these {layers} layers")?,
                Line::LayerNode(node) => writeln!(f, "  │ {}", self.describe(node))?,
                Line::EndOfLayers => writeln!(f, "  └")?,
            }
        }
        Ok(())
    }
}

impl Graph {
    /// `%7 [total_tokens, 384] = linear Relu (%5, encoder.weight, encoder.bias)`.
    fn describe(&self, node: &Node) -> String {
        let inputs: Vec<String> = node.inputs.iter().map(|&input| self.argument(input)).collect();
        let (shape, dtype) = (&self.value(node.output).shape, self.dtype_suffix(node));
        format!("{} {shape} = {}{dtype} ({})", label(node.output), node.op, inputs.join(", "))
    }

    fn argument(&self, value: ValueId) -> String {
        match &self.value(value).storage {
            Storage::Weight(parts) => {
                parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join(" ‖ ")
            }
            Storage::Computed(table) => {
                let [positions, columns] = table.shape();
                format!("rotary table {positions}×{columns}")
            }
            Storage::Input(Input::InputIds) => "input_ids".to_owned(),
            Storage::Input(Input::TokenTypeIds) => "token_type_ids".to_owned(),
            Storage::Input(Input::PositionIds(Positions::FromZero)) => "position_ids".to_owned(),
            Storage::Input(Input::PositionIds(Positions::AfterPad { pad_id })) => {
                format!("position_ids after pad {pad_id}")
            }
            Storage::Activation | Storage::Output(_) => label(value),
        }
    }
}

pub(super) fn label(value: ValueId) -> String {
    format!("%{}", value.0)
}

/// A graph as it is shown: repeated layers once.
pub(super) enum Line<'a> {
    /// A node outside the repeated layers.
    Node(&'a Node),
    /// The first of `count` periods begins, each of `layers` layers.
    Layers { count: usize, layers: usize },
    /// A node of that period.
    LayerNode(&'a Node),
    /// The layers end.
    EndOfLayers,
}

pub(super) fn lines(graph: &Graph) -> Vec<Line<'_>> {
    let nodes = graph.nodes();
    let Some(repeated) = Repeated::of(graph) else {
        return nodes.iter().map(Line::Node).collect();
    };
    let (before, after) = (&nodes[..repeated.first.start], &nodes[repeated.all().end..]);
    let mut lines: Vec<Line<'_>> = before.iter().map(Line::Node).collect();
    lines.push(Line::Layers { count: repeated.count, layers: repeated.layers });
    lines.extend(nodes[repeated.first].iter().map(Line::LayerNode));
    lines.push(Line::EndOfLayers);
    lines.extend(after.iter().map(Line::Node));
    lines
}
