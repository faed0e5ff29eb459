//! A graph as a picture: operators from top to bottom, coloured by kind, repeated layers once in a frame, and an arc
//! wherever a value is read further down than the next operator.

use std::fmt::Write;

use super::text::{Line, lines};
use crate::{
    fold,
    graph::{Graph, Node, ValueId},
    op::Op,
};

const WIDTH: usize = 620;
const BOX_X: usize = 40;
const BOX_WIDTH: usize = 440;
const ROW: usize = 46;
const BOX_HEIGHT: usize = 32;
const TOP: usize = 56;

/// `graph` as an SVG document.
pub fn svg(graph: &Graph, title: &str) -> String {
    let lines = lines(graph);
    let height = TOP + lines.len() * ROW + 16;
    let mut body = String::new();
    let mut boxes: Vec<(&Node, usize)> = Vec::new();
    let mut frame_top = 0;
    for (row, line) in lines.iter().enumerate() {
        let y = TOP + row * ROW;
        match line {
            Line::Layers { count } => {
                frame_top = y + ROW / 2;
                text(&mut body, BOX_X - 8, frame_top - 8, "#555", &format!("{count} layers, each:"));
            }
            Line::EndOfLayers => frame(&mut body, frame_top, y + 8 - frame_top),
            Line::Node(node) | Line::LayerNode(node) => {
                draw_box(&mut body, graph, node, y);
                boxes.push((node, y));
            }
        }
    }
    draw_edges(&mut body, graph, &boxes);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{BOX_X}\" y=\"32\" font-size=\"17\" font-weight=\"bold\">{}</text>\n{body}</svg>\n",
        escape(title)
    )
}

fn draw_box(body: &mut String, graph: &Graph, node: &Node, y: usize) {
    let fill = colour(&node.op);
    push(
        body,
        format_args!(
            "<rect x=\"{BOX_X}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"6\" fill=\"{fill}\" \
             stroke=\"#444\"/>\n"
        ),
    );
    text(body, BOX_X + 10, y + 21, "#111", &node.op.to_string());
    let shape = graph.value(node.output).shape.to_string();
    push(
        body,
        format_args!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#333\" font-size=\"11\">{}</text>\n",
            BOX_X + BOX_WIDTH - 10,
            y + 21,
            escape(&shape)
        ),
    );
}

/// A straight line to the next box, an arc on the right to those further down.
fn draw_edges(body: &mut String, graph: &Graph, boxes: &[(&Node, usize)]) {
    for (index, (producer, from)) in boxes.iter().enumerate() {
        for (distance, (_, to)) in boxes[index + 1..].iter().enumerate().filter(|(_, (reader, _))| {
            reader.inputs.iter().any(|&input| shown(graph, input) == producer.output)
        }) {
            let start = from + BOX_HEIGHT;
            if distance == 0 {
                let x = BOX_X + BOX_WIDTH / 2;
                push(body, format_args!("<path d=\"M{x} {start} V{to}\" stroke=\"#444\" fill=\"none\"/>\n"));
                continue;
            }
            let (x, reach) = (BOX_X + BOX_WIDTH, 24 + 9 * distance.min(10));
            let (from, to) = (from + BOX_HEIGHT / 2, to + BOX_HEIGHT / 2);
            push(
                body,
                format_args!(
                    "<path d=\"M{x} {from} C{0} {from} {0} {to} {x} {to}\" stroke=\"#888\" fill=\"none\"/>\n",
                    x + reach
                ),
            );
        }
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

fn frame(body: &mut String, top: usize, height: usize) {
    push(
        body,
        format_args!(
            "<rect x=\"{}\" y=\"{top}\" width=\"{}\" height=\"{height}\" rx=\"10\" fill=\"none\" stroke=\"#999\" \
             stroke-dasharray=\"5 4\"/>\n",
            BOX_X - 18,
            BOX_WIDTH + 130
        ),
    );
}

fn text(body: &mut String, x: usize, y: usize, fill: &str, content: &str) {
    push(body, format_args!("<text x=\"{x}\" y=\"{y}\" fill=\"{fill}\">{}</text>\n", escape(content)));
}

fn push(body: &mut String, piece: std::fmt::Arguments<'_>) {
    body.write_fmt(piece).expect("writing to a string cannot fail");
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
