//! The graph before, while and after it is fused.

use std::fmt::Write;

use turbo_models::graph::{Graph, TraceStep, dim::Extents, print::brief};

use super::{batch_name, heading};
use crate::cli::output::bytes;

/// The drawn graph, a line per pass, and the graph that runs; with `all` the graph after each pass.
pub(super) fn section(drawn: &Graph, steps: &[TraceStep], extents: &Extents, all: bool) -> String {
    let mut text = heading(&format!("graph as drawn: {} nodes", drawn.nodes().len()));
    _ = writeln!(text, "{}", brief(drawn));
    text += &heading("fusion");
    text += &passes(drawn, steps, extents);
    let rewrote: Vec<&TraceStep> = steps.iter().filter(|step| step.rewrites > 0).collect();
    let skipped = if all { 0 } else { rewrote.len().saturating_sub(1) };
    for step in &rewrote[skipped..] {
        let last = steps.last().is_some_and(|last| last.pass == step.pass);
        let runs = if last || !all { ", the graph that runs" } else { "" };
        let nodes = step.graph.nodes().len();
        _ = write!(text, "\n{}", heading(&format!("graph after `{}`{runs}: {nodes} nodes", step.pass)));
        _ = write!(text, "{}", brief(&step.graph));
    }
    text
}

/// What each pass rewrote, and the bytes that the operators then pass to each other and read of weights.
fn passes(drawn: &Graph, steps: &[TraceStep], extents: &Extents) -> String {
    let moved = |graph: &Graph| bytes(graph.total_cost(extents).bytes);
    let (mut nodes, mut text) = (drawn.nodes().len(), String::new());
    let title = format!("moved by {}", batch_name(extents));
    _ = writeln!(text, "{:<28} {:>12} {:>18} {title:>30}", "pass", "", "nodes");
    _ = writeln!(text, "{:<28} {:>12} {nodes:>18} {:>30}", "as drawn", "", moved(drawn));
    for step in steps {
        let (before, after) = (nodes, step.graph.nodes().len());
        let what = match (step.pass, step.rewrites) {
            ("pack", _) => "shapes",
            (_, 1) => "place",
            _ => "places",
        };
        let change = if before == after { after.to_string() } else { format!("{before} → {after}") };
        let places = format!("{} {what}", step.rewrites);
        _ = writeln!(text, "{:<28} {places:>12} {change:>18} {:>30}", step.pass, moved(&step.graph));
        nodes = after;
    }
    text
}
