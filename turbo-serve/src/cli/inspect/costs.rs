//! What a batch costs by kind of operator, and how fast this machine could be.

use std::fmt::Write;

use turbo_models::graph::kernels::limits::Limits;
use turbo_models::graph::{
    Graph,
    cost::{Cost, KindCost},
    dim::Extents,
};

use super::{batch_name, heading};
use crate::cli::output::{bytes, ceilings, count, ms, percent};

pub(super) fn section(graph: &Graph, extents: &Extents, limits: &Limits, device: &str) -> String {
    let kinds = graph.cost_by_kind(extents, limits);
    let (whole, limit) = (graph.total_cost(extents), kinds.iter().map(|kind| kind.limit).sum());
    let mut text = heading(&format!("cost of {}", batch_name(extents)));
    _ = writeln!(
        text,
        "{:<33} {:>5} {:>8} {:>8} {:>9} {:>8} {:>10} {:>8}  met first",
        "operator", "nodes", "FLOP", "share", "bytes", "share", "limit_ms", "share"
    );
    for KindCost { kind, nodes, cost, limit: of_kind } in &kinds {
        let computes = at_the_peak(cost, limits) > cost.bytes as f64 / limits.memory_bytes;
        _ = writeln!(
            text,
            "{kind:<33} {nodes:>5} {:>8} {:>6.1} % {:>9} {:>6.1} % {:>10.3} {:>6.1} %  {}",
            count(cost.flops),
            percent(cost.flops as f64, whole.flops as f64),
            bytes(cost.bytes),
            percent(cost.bytes as f64, whole.bytes as f64),
            ms(*of_kind),
            percent(ms(*of_kind), ms(limit)),
            if computes { "compute" } else { "memory" },
        );
    }
    _ = write!(
        text,
        "{:<33} {:>5} {:>8} {:>8} {:>9} {:>8} {:>10.3}\n\n{}",
        "total",
        graph.nodes().len(),
        count(whole.flops),
        "",
        bytes(whole.bytes),
        "",
        ms(limit),
        predictions(graph, extents, limits, device)
    );
    text
}

/// Seconds for all operations, each at the peak of its dtype.
fn at_the_peak(cost: &Cost, limits: &Limits) -> f64 {
    let Cost { flops, bf16_flops, int8_ops, .. } = *cost;
    let in_f32 = flops - bf16_flops - int8_ops;
    in_f32 as f64 / limits.flops + bf16_flops as f64 / limits.bf16_flops + int8_ops as f64 / limits.int8_ops
}

fn predictions(graph: &Graph, extents: &Extents, limits: &Limits, device: &str) -> String {
    let whole = graph.total_cost(extents);
    let weights = graph.weight_bytes_read(extents);
    let limit = graph.nodes().iter().map(|node| graph.cost(node, extents).limit(limits)).sum();
    format!(
        "{device}, measured now:\n\
         {}\n\
         predicted {:.3} ms: each operator at the ceiling that it meets first, every byte from memory\n\
         floor     {:.3} ms: the longer of {:.3} ms for {}FLOP at the peak\n\
         {:>31} and {:.3} ms for {} of weights, once from memory\n",
        ceilings(limits),
        ms(limit),
        ms(graph.floor(extents, limits)),
        at_the_peak(&whole, limits) * 1e3,
        count(whole.flops),
        "",
        weights as f64 / limits.memory_bytes * 1e3,
        bytes(weights),
    )
}
