//! What a model and its batches take of a GPU's memory, be there one or not.

use std::fmt::Write;

use turbo_models::graph::{
    Program,
    dim::Extents,
    graph::Storage,
    memory::{PlannedBatch, scratch_bytes},
};

use super::{batch_name, heading};
use crate::cli::{
    device::{Chosen, Wish},
    output::bytes,
};

/// Bytes by what they are for, and what the GPU has, where there is one.
pub(super) fn section(program: &Program, planned: &[PlannedBatch], device: Wish) -> String {
    let mut text = heading("memory of the device, predicted");
    let weights = weight_bytes(program);
    _ = writeln!(text, "{:<28} {:>10}", "weights", bytes(weights as u64));
    for batch in planned {
        let (plan, outputs, scratch) = (
            batch.plan.footprint(),
            output_bytes(program, &batch.extents),
            scratch_bytes(program, &batch.extents),
        );
        _ = writeln!(
            text,
            "{:<28} {:>10}  activations {}, outputs {}, inside operators {}",
            batch_name(&batch.extents),
            bytes((plan + outputs + scratch) as u64),
            bytes(plan as u64),
            bytes(outputs as u64),
            bytes(scratch as u64),
        );
    }
    _ = match Chosen::new(device, None, |_| ()).and_then(|gpu| gpu.free_bytes()) {
        Ok(Some(free)) => writeln!(text, "{:<28} {:>10}", format!("free on {device}"), bytes(free)),
        Ok(None) => Ok(()),
        Err(why) => writeln!(text, "{why:#}"),
    };
    text + "in addition: at most 32 MB for cuBLASLt in each stream, and what CUDA itself takes\n"
}

fn weight_bytes(program: &Program) -> usize {
    let constants = program.graph().live_values().filter_map(|(_, value)| {
        let is_constant = matches!(value.storage, Storage::Weight(_) | Storage::Computed(_));
        is_constant.then(|| value.shape.elements(&Extents::of(&[])))
    });
    constants.sum::<usize>().saturating_mul(program.element_bytes())
}

fn output_bytes(program: &Program, extents: &Extents) -> usize {
    let outputs = program.graph().outputs().map(|(value, _)| program.value(value).shape.elements(extents));
    outputs.sum::<usize>().saturating_mul(program.element_bytes())
}
