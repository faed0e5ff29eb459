//! A graph as a picture: operators from top to bottom, coloured by kind, repeated layers once in a frame, and an arc
//! wherever a value is read further down than the next operator.

use std::fmt::Write;

use super::{
    brief::operator,
    text::{Line, label, lines},
};
use crate::{
    fold,
    graph::{Graph, Node, ValueId},
    op::Op,
};

const BOX_X: usize = 40;
const LEAST_BOX_WIDTH: usize = 440;
/// Room on the right for arcs.
const ARCS: usize = 140;
const ROW: usize = 46;
const BOX_HEIGHT: usize = 32;
const TOP: usize = 56;

/// `graph` as an SVG document.
pub fn svg(graph: &Graph, title: &str) -> String {
    let lines = lines(graph);
    let mut drawing = Drawing { graph, box_width: box_width(graph, &lines), body: String::new() };
    let mut boxes: Vec<(&Node, usize)> = Vec::new();
    let mut frame_top = 0;
    for (row, line) in lines.iter().enumerate() {
        let y = TOP + row * ROW;
        match line {
            Line::Layers { count } => {
                frame_top = y + ROW / 2;
                drawing.text(
                    BOX_X - 8,
                    frame_top - 8,
                    "#555",
                    &format!("{count} layers, one after the other:"),
                );
            }
            Line::EndOfLayers => drawing.frame(frame_top, y + 8 - frame_top),
            Line::Node(node) | Line::LayerNode(node) => {
                drawing.draw_box(node, y);
                boxes.push((node, y));
            }
        }
    }
    drawing.draw_edges(&boxes);
    let (width, height) = (BOX_X + drawing.box_width + ARCS, TOP + lines.len() * ROW + 16);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{BOX_X}\" y=\"32\" font-size=\"17\" font-weight=\"bold\">{}</text>\n{}</svg>\n",
        escape(title),
        drawing.body
    )
}

/// Room for the longest line: what is computed in letters of 13 pixels, its shape in letters of 11.
fn box_width(graph: &Graph, lines: &[Line<'_>]) -> usize {
    let nodes = lines.iter().filter_map(|line| match line {
        Line::Node(node) | Line::LayerNode(node) => Some(*node),
        Line::Layers { .. } | Line::EndOfLayers => None,
    });
    let width = |node: &Node| 8 * what(graph, node).chars().count() + 6 * gives(graph, node).chars().count();
    nodes.map(|node| width(node) + 40).max().unwrap_or(0).max(LEAST_BOX_WIDTH)
}

/// `%7 linear Relu 384→1536`.
fn what(graph: &Graph, node: &Node) -> String {
    format!("{} {}", label(node.output), operator(graph, node))
}

/// Its shape, and the name of the result that it or its twin in another layer is.
fn gives(graph: &Graph, node: &Node) -> String {
    let shape = graph.value(node.output).shape.to_string();
    let name = graph.outputs().find(|(value, _)| shown(graph, *value) == node.output);
    name.map_or(shape.clone(), |(_, name)| format!("{shape} → {name}"))
}

/// A picture that grows.
struct Drawing<'a> {
    graph: &'a Graph,
    box_width: usize,
    body: String,
}

impl Drawing<'_> {
    fn draw_box(&mut self, node: &Node, y: usize) {
        let (fill, width) = (colour(&node.op), self.box_width);
        self.push(format_args!(
            "<rect x=\"{BOX_X}\" y=\"{y}\" width=\"{width}\" height=\"{BOX_HEIGHT}\" rx=\"6\" fill=\"{fill}\" \
             stroke=\"#444\"/>\n"
        ));
        self.text(BOX_X + 10, y + 21, "#111", &what(self.graph, node));
        let gives = escape(&gives(self.graph, node));
        self.push(format_args!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#333\" font-size=\"11\">{gives}</text>\n",
            BOX_X + width - 10,
            y + 21,
        ));
    }

    /// A straight line to the next box, an arc on the right to those further down.
    fn draw_edges(&mut self, boxes: &[(&Node, usize)]) {
        for (index, (producer, from)) in boxes.iter().enumerate() {
            for (distance, (reader, to)) in boxes[index + 1..].iter().enumerate() {
                if !reader.inputs.iter().any(|&input| shown(self.graph, input) == producer.output) {
                    continue;
                }
                if distance == 0 {
                    let (x, start) = (BOX_X + self.box_width / 2, from + BOX_HEIGHT);
                    self.push(format_args!(
                        "<path d=\"M{x} {start} V{to}\" stroke=\"#444\" fill=\"none\"/>\n"
                    ));
                    continue;
                }
                let (x, reach) = (BOX_X + self.box_width, 24 + 9 * distance.min(10));
                let (from, to) = (from + BOX_HEIGHT / 2, to + BOX_HEIGHT / 2);
                self.push(format_args!(
                    "<path d=\"M{x} {from} C{0} {from} {0} {to} {x} {to}\" stroke=\"#888\" fill=\"none\"/>\n",
                    x + reach
                ));
            }
        }
    }

    fn frame(&mut self, top: usize, height: usize) {
        let (x, width) = (BOX_X - 18, self.box_width + ARCS - 10);
        self.push(format_args!(
            "<rect x=\"{x}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" rx=\"10\" fill=\"none\" \
             stroke=\"#999\" stroke-dasharray=\"5 4\"/>\n"
        ));
    }

    fn text(&mut self, x: usize, y: usize, fill: &str, content: &str) {
        let content = escape(content);
        self.push(format_args!("<text x=\"{x}\" y=\"{y}\" fill=\"{fill}\">{content}</text>\n"));
    }

    fn push(&mut self, piece: std::fmt::Arguments<'_>) {
        self.body.write_fmt(piece).expect("writing to a string cannot fail");
    }
}

/// The value that stands for `value` in the picture: of those computed in repeated layers, the one in the first.
fn shown(graph: &Graph, value: ValueId) -> ValueId {
    let twin = || {
        let (layer, count) = fold::repeated_layers(graph)?;
        let producer = graph.producer(value)?;
        let all = layer.start..layer.start + layer.len() * count;
        all.contains(&producer)
            .then(|| graph.nodes()[layer.start + (producer - layer.start) % layer.len()].output)
    };
    twin().unwrap_or(value)
}

/// Products blue, attention green, norms yellow, what only moves data grey, the rest orange.
fn colour(op: &Op) -> &'static str {
    match op {
        Op::MatMul | Op::Linear { .. } | Op::BatchedMatMul { .. } => "#cfe2ff",
        Op::Attention { .. } | Op::Softmax | Op::ScaleMaskSoftmax { .. } => "#d1e7dd",
        Op::LayerNorm { .. } | Op::BiasResidualLayerNorm { .. } | Op::EmbedSumLayerNorm { .. } => "#fff3cd",
        Op::Embed | Op::SplitHeads(_) | Op::MergeHeads | Op::Mask => "#e9ecef",
        Op::AddBias | Op::Add | Op::Scale { .. } | Op::Activate(_) | Op::Pool(_) => "#ffe5d0",
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
