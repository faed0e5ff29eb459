//! A graph as a picture: operators from top to bottom, coloured by kind, repeated layers once in a frame, and an arc
//! wherever a value is read further down than the next operator.

use std::fmt::Write;

use super::{
    brief::operator,
    text::{Line, label, lines},
};
use crate::{
    fold::Repeated,
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
    let shown = Shown { graph, repeated: Repeated::of(graph) };
    let mut drawing = Drawing { box_width: box_width(&shown, &lines), shown, body: String::new() };
    let mut boxes: Vec<(&Node, usize)> = Vec::new();
    let mut frame_top = 0;
    for (row, line) in lines.iter().enumerate() {
        let y = TOP + row * ROW;
        match line {
            Line::Layers { count, layers } => {
                frame_top = y + ROW / 2;
                let title = match layers {
                    1 => format!("{count} layers, one after the other:"),
                    _ => format!("{count} times {layers} layers, one after the other:"),
                };
                drawing.text(BOX_X - 8, frame_top - 8, "#555", &title);
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
fn box_width(shown: &Shown<'_>, lines: &[Line<'_>]) -> usize {
    let nodes = lines.iter().filter_map(|line| match line {
        Line::Node(node) | Line::LayerNode(node) => Some(*node),
        Line::Layers { .. } | Line::EndOfLayers => None,
    });
    let width = |node: &Node| 8 * shown.what(node).chars().count() + 6 * shown.gives(node).chars().count();
    nodes.map(|node| width(node) + 40).max().unwrap_or(0).max(LEAST_BOX_WIDTH)
}

/// A graph as it is shown: repeated layers once.
struct Shown<'a> {
    graph: &'a Graph,
    repeated: Option<Repeated>,
}

impl Shown<'_> {
    /// `%7 linear Relu 384→1536`.
    fn what(&self, node: &Node) -> String {
        format!("{} {}", label(node.output), operator(self.graph, node))
    }

    /// Its shape, and the name of the output that it, or its twin in another layer, is.
    fn gives(&self, node: &Node) -> String {
        let shape = self.graph.value(node.output).shape.to_string();
        let name = self.graph.outputs().find(|(value, _)| self.stands_for(*value) == node.output);
        name.map_or(shape.clone(), |(_, name)| format!("{shape} → {name}"))
    }

    /// The value that stands for `value`: of those computed in repeated layers, the one in the first.
    fn stands_for(&self, value: ValueId) -> ValueId {
        let twin = || {
            let twin = self.repeated.as_ref()?.twin(self.graph.producer(value)?)?;
            Some(self.graph.nodes()[twin].output)
        };
        twin().unwrap_or(value)
    }
}

/// A picture that grows.
struct Drawing<'a> {
    shown: Shown<'a>,
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
        self.text(BOX_X + 10, y + 21, "#111", &self.shown.what(node));
        let gives = escape(&self.shown.gives(node));
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
                if !reader.inputs.iter().any(|&input| self.shown.stands_for(input) == producer.output) {
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

/// Products blue, attention green, norms yellow, what only moves data grey, the rest orange.
fn colour(op: &Op) -> &'static str {
    match op {
        Op::MatMul
        | Op::Linear { .. }
        | Op::ResidualLinear { .. }
        | Op::LinearLayerNorm { .. }
        | Op::FeedForward(_)
        | Op::Experts { .. }
        | Op::LinearMaxPool
        | Op::PositionScores { .. }
        | Op::BatchedMatMul { .. } => "#cfe2ff",
        Op::Attention { .. } | Op::Softmax | Op::ScaleMaskSoftmax { .. } => "#d1e7dd",
        Op::LayerNorm { .. }
        | Op::RmsNorm { .. }
        | Op::HeadRmsNorm { .. }
        | Op::ResidualLayerNorm { .. }
        | Op::BiasResidualLayerNorm { .. }
        | Op::EmbedSumLayerNorm { .. } => "#fff3cd",
        Op::Embed | Op::SplitHeads(_) | Op::MergeHeads | Op::Mask(_) | Op::Select => "#e9ecef",
        Op::AddBias
        | Op::Add
        | Op::Mul
        | Op::Scale { .. }
        | Op::Activate(_)
        | Op::Gate(_)
        | Op::WeighExperts(_)
        | Op::Rotary(_)
        | Op::AddRelativeBias(_)
        | Op::Pool(_) => "#ffe5d0",
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
