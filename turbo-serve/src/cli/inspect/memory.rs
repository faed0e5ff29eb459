//! Where the activations of a batch lie, and what the next batch changes.

use std::fmt::Write;

use turbo_models::graph::{
    Program,
    dim::{Extents, Shape},
    memory::PlannedBatch,
};

use super::{batch_name, heading};
use crate::cli::output::{bytes, percent};

/// One section for each batch.
pub(super) fn sections(program: &Program, planned: &[PlannedBatch]) -> Vec<String> {
    let before = std::iter::once(None).chain(planned.iter().map(Some));
    planned.iter().zip(before).map(|(batch, before)| section(program, batch, before)).collect()
}

fn section(program: &Program, batch: &PlannedBatch, before: Option<&PlannedBatch>) -> String {
    let after = before.map_or(String::new(), |before| format!(" after {}", batch_name(&before.extents)));
    let mut text = heading(&format!("memory plan of {}{after}", batch_name(&batch.extents)));
    let periods = program.slots().folded_periods();
    let values: usize = batch.slots.iter().map(|slot| slot.values).sum();
    _ = writeln!(text, "{values} activations take {} slots", batch.slots.len());
    if periods > 1 {
        _ = writeln!(
            text,
            "{periods} periods of a layer each, cut where it costs least, take the same slots: they are planned once"
        );
    }
    _ = writeln!(
        text,
        "{:<36} {:<22} {:>6} {:>7} {:>9}  {:<8} {:>10}",
        "slot", "shape", "values", "alive", "bytes", "in", "at byte"
    );
    for (slot, place) in batch.slots.iter().zip(&batch.plan.placements) {
        let life = format!("{}–{}", slot.record.first_op, slot.record.last_op);
        _ = writeln!(
            text,
            "{:<36} {:<22} {:>6} {life:>7} {:>9}  {:<8} {:>10}",
            slot.name,
            sizes(&slot.shape, &batch.extents),
            slot.values,
            bytes(slot.record.size as u64),
            place.chunk.to_string(),
            place.offset,
        );
    }
    text.push('\n');
    text += &chunks(batch, before);
    text + &totals(batch)
}

/// `[20, 500, 384]`.
fn sizes(shape: &Shape, extents: &Extents) -> String {
    let sizes: Vec<usize> = shape.0.iter().map(|dim| dim.size(extents)).collect();
    format!("{sizes:?}")
}

/// What becomes of each chunk, in the order in which they were made.
fn chunks(batch: &PlannedBatch, before: Option<&PlannedBatch>) -> String {
    let plan = &batch.plan;
    let mut text = String::new();
    for id in &plan.release {
        let held = before.and_then(|before| before.plan.chunks.iter().find(|chunk| chunk.id == *id));
        let size = held.map_or(String::new(), |chunk| bytes(chunk.bytes as u64));
        _ = writeln!(text, "{:<10} {size:>10}  released", id.to_string());
    }
    for chunk in &plan.chunks {
        let fate = match (plan.grow.contains(chunk), before) {
            (true, None) => "obtained",
            (true, Some(_)) => "added",
            (false, _) => "kept",
        };
        _ = writeln!(text, "{:<10} {:>10}  {fate}", chunk.id.to_string(), bytes(chunk.bytes as u64));
    }
    text
}

fn totals(batch: &PlannedBatch) -> String {
    let (footprint, live) = (batch.plan.footprint() as f64, batch.peak_live_bytes());
    format!(
        "footprint  {:>10}  all chunks\n\
         peak live  {:>10}  alive during one operator, {:.0} % of the footprint: no plan can hold less\n\
         unshared   {:>10}  if every activation had its own memory\n",
        bytes(batch.plan.footprint() as u64),
        bytes(live as u64),
        percent(live as f64, footprint),
        bytes(batch.unshared_bytes as u64),
    )
}
