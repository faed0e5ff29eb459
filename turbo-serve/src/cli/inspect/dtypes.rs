//! What computing in another dtype would gain, by what this machine can do, and what it costs.

use std::fmt::Write;

use turbo_models::{
    DType,
    graph::{Program, dim::Extents, kernels::limits::Limits},
};

use super::{batch_name, heading};
use crate::cli::output::{bytes, ms};

/// A line for each dtype; the one in use has a mark.
pub(super) fn section(program: &Program, extents: &Extents, limits: &Limits, used: DType) -> String {
    let mut text = heading(&format!("what a dtype gains and costs: {}", batch_name(extents)));
    _ = writeln!(
        text,
        "{:<8} {:>13} {:>13} {:>10} {:>10}  accuracy",
        "--dtype", "weights read", "predicted_ms", "floor_ms", "speed-up"
    );
    let predicted = |program: &Program| {
        let graph = program.graph();
        ms(graph.nodes().iter().map(|node| graph.cost(node, extents).limit(limits)).sum())
    };
    let of = |dtype| program.clone().with_dtype(dtype);
    let in_f32 = predicted(&of(DType::F32));
    for dtype in DType::ALL {
        let program = of(dtype);
        let time = predicted(&program);
        _ = writeln!(
            text,
            "{:<8} {:>13} {time:>13.3} {:>10.3} {:>8.2} ×  {}",
            format!("{dtype}{}", if dtype == used { " *" } else { "" }),
            bytes(program.graph().weight_bytes_read(extents)),
            ms(program.graph().floor(extents, limits)),
            in_f32 / time,
            accuracy(dtype),
        );
    }
    text + "* in use; predicted from ceilings and bytes: all but the products of layers stays f32\n\
            accuracy: cosine to f32 and rank correlation of similarities, MiniLM over 200 sentences\n"
}

/// What the tests hold of each dtype, over 200 sentences with MiniLM.
fn accuracy(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "the reference's",
        DType::Bf16 => "cosine ≥ 0.9995, ranks ≥ 0.999",
        DType::Int8 => "cosine ≥ 0.99, ranks ≥ 0.99",
    }
}
