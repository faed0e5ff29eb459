//! `{graph}`: one line per node, repeated layers once.

use std::fmt;

use crate::{
    fold,
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
                Line::Layers { count } => writeln!(f, "  ┌ {count} layers like this one")?,
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
        let shape = &self.value(node.output).shape;
        format!("{} {shape} = {} ({})", label(node.output), node.op, inputs.join(", "))
    }

    fn argument(&self, value: ValueId) -> String {
        match &self.value(value).storage {
            Storage::Weight(parts) => {
                parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join(" ‖ ")
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
    /// The first of so many layers begins.
    Layers { count: usize },
    /// A node of that layer.
    LayerNode(&'a Node),
    /// The layers end.
    EndOfLayers,
}

pub(super) fn lines(graph: &Graph) -> Vec<Line<'_>> {
    let nodes = graph.nodes();
    let Some((layer, count)) = fold::repeated_layers(graph) else {
        return nodes.iter().map(Line::Node).collect();
    };
    let after = layer.start + layer.len() * count;
    let mut lines: Vec<Line<'_>> = nodes[..layer.start].iter().map(Line::Node).collect();
    lines.push(Line::Layers { count });
    lines.extend(nodes[layer].iter().map(Line::LayerNode));
    lines.push(Line::EndOfLayers);
    lines.extend(nodes[after..].iter().map(Line::Node));
    lines
}
