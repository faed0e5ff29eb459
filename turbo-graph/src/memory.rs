//! The memory of a program, to be inspected and drawn: what is planned for each of several batches, and where it lies.
//!
//! One planner plans the batches, each for exactly its own sizes, as the paper does (PPoPP'21, Figure 6): this shows
//! what a longer batch moves. An [`Executor`](crate::Executor) that keeps its bindings plans for rounded sizes instead.

use turbo_alloc::{
    MemoryPlan, Planner, PlannerConfig, UsageRecord, peak_live_bytes,
    report::svg::{Picture, draw},
};
use turbo_kernels::{Hidden, gemm::products_at_once};

use crate::{
    GraphError, Op, Program,
    dim::{Extents, Shape},
    graph::{Node, ValueId},
};

/// The plan of one batch.
#[derive(Clone, Debug)]
pub struct PlannedBatch {
    /// Its sizes.
    pub extents: Extents,
    /// The planned tensors, one for each slot of the program.
    pub slots: Vec<PlannedSlot>,
    /// Where the slots lie, in their order; and the chunks before, during and after.
    pub plan: MemoryPlan,
    /// Bytes that all activations, repeated layers included, would take without sharing memory.
    pub unshared_bytes: usize,
}

/// A planned tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedSlot {
    /// The first value that takes it, and the kind of node that computes the last: `%9 linear 384→1152`.
    pub name: String,
    /// Axes.
    pub shape: Shape,
    /// When it is alive, in positions of the folded timeline, and its bytes.
    pub record: UsageRecord,
    /// Values that take it in turn, one layer after the other.
    pub values: usize,
}

impl PlannedBatch {
    /// The most bytes that are alive during one operator: no plan can hold fewer.
    pub fn peak_live_bytes(&self) -> usize {
        peak_live_bytes(&self.records())
    }

    /// The usage records of all slots.
    pub fn records(&self) -> Vec<UsageRecord> {
        self.slots.iter().map(|slot| slot.record).collect()
    }
}

/// Plans `batches` one after the other, starting without chunks.
///
/// # Errors
/// Errors of the planner.
pub fn plan_batches(
    program: &Program,
    batches: &[Extents],
    config: PlannerConfig,
) -> Result<Vec<PlannedBatch>, GraphError> {
    let mut planner = Planner::new(config)?;
    batches.iter().map(|extents| plan_batch(program, *extents, &mut planner)).collect()
}

fn plan_batch(
    program: &Program,
    extents: Extents,
    planner: &mut Planner,
) -> Result<PlannedBatch, GraphError> {
    let mut records = Vec::new();
    program.slots().usage_records_into(&extents, &mut records);
    let takers = takers(program);
    let slots = program.slots().slots().iter().zip(&records).zip(&takers).map(|((slot, &record), values)| {
        PlannedSlot { name: name(program, values), shape: slot.shape.clone(), record, values: values.len() }
    });
    let sizes = program.usage_records(&extents).into_iter().map(|(_, record)| record.size);
    Ok(PlannedBatch {
        extents,
        slots: slots.collect(),
        plan: planner.plan(&records)?,
        unshared_bytes: sizes.fold(0, usize::saturating_add),
    })
}

/// Bytes of scratch that operators need for a batch of `extents` on a device with memory of its own: wide rows inside a
/// feed-forward, sums before a norm, products of which only the maximum is kept. Uses nest; the scratch of each depth
/// is shared by all operators.
pub fn scratch_bytes(program: &Program, extents: &Extents) -> usize {
    let mut most = [0; 3];
    for node in program.nodes() {
        for (most, values) in most.iter_mut().zip(scratch_of(program, extents, node)) {
            *most = values.max(*most);
        }
    }
    most.into_iter().fold(0, usize::saturating_add).saturating_mul(program.element_bytes())
}

/// Values of scratch that `node` uses at each depth, the outermost first.
fn scratch_of(program: &Program, extents: &Extents, node: &Node) -> [usize; 3] {
    let out = program.value(node.output).shape.elements(extents);
    let of_rows = |columns| program.value(node.inputs[0]).shape.with_columns(columns).elements(extents);
    let matrix = |input: usize| program.graph().matrix(node.inputs[input]);
    match node.op {
        Op::LinearLayerNorm { .. } => [out, 0, 0],
        Op::FeedForward(parts) => {
            let ([wide, _], [_, narrow]) = (matrix(1), matrix(2));
            let sums = if parts.norm.is_some() { out } else { 0 };
            match parts.hidden {
                Hidden::Activation(_) => [of_rows(wide), sums, 0],
                Hidden::Gate(_) => [of_rows(wide), of_rows(narrow), sums],
            }
        }
        // such a device computes all experts, and weights their values in place
        Op::Experts { .. } => [of_rows(matrix(2)[0]), 0, 0],
        Op::LinearMaxPool => [products_at_once(of_rows(1), matrix(1)[0]), 0, 0],
        _ => [0; 3],
    }
}

/// For each slot, the values that take it, with the nodes that compute them, in order.
fn takers(program: &Program) -> Vec<Vec<(ValueId, &Node)>> {
    let slots = program.slots();
    let mut takers = vec![Vec::new(); slots.slots().len()];
    for node in program.nodes() {
        if let Some(slot) = slots.of_value(node.output) {
            takers[slot].push((node.output, node));
        }
    }
    takers
}

/// The id of the first taker and the kind of the last: where layers hand a slot on, what they compute says more than
/// what came before the first layer.
fn name(program: &Program, takers: &[(ValueId, &Node)]) -> String {
    match (takers.first(), takers.last()) {
        (Some((first, _)), Some((_, node))) => format!("%{} {}", first.0, program.graph().kind(node)),
        _ => String::new(),
    }
}

/// Draws time to the right and addresses upward, with a rectangle for every tensor; `batches` side by side, each under
/// its title.
pub fn svg<'a>(batches: impl IntoIterator<Item = (&'a str, &'a PlannedBatch)>) -> String {
    let (titles, batches): (Vec<_>, Vec<_>) = batches.into_iter().unzip();
    let records: Vec<_> = batches.iter().map(|batch| batch.records()).collect();
    let names: Vec<Vec<&str>> =
        batches.iter().map(|batch| batch.slots.iter().map(|slot| slot.name.as_str()).collect()).collect();
    let pictures: Vec<_> = (0..batches.len())
        .map(|i| Picture { title: titles[i], records: &records[i], plan: &batches[i].plan, names: &names[i] })
        .collect();
    draw(&pictures)
}
