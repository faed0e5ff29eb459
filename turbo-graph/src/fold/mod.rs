//! Lifetimes of activations, and the folding of repeated layers: one layer is planned, and all use its offsets.
//!
//! The paper plans one layer and reuses its addresses (PPoPP'21, §6.2.2). Here the repetition is found, not assumed.
//! Nodes carry their layer, and layers fold if they are alike node by node; where several kinds of layers alternate, a
//! period is one round of them all. The values then share *slots*:
//!
//! ```text
//!  prefix │ period 0 │ period 1 │ … │ period n−1 │ suffix      the timeline as it runs
//!  prefix │          period                      │ suffix      the timeline that is planned
//! ```
//!
//! * A value that lives inside one period takes the slot of its twin in period 0.
//! * The value that a period hands to the next (the *carry*) takes one slot in all periods if each period reads its own
//!   input for the last time before it computes its output; otherwise it takes two slots that alternate.
//! * A value that lives across the periods keeps its slot from end to end.
//!
//! The carry's slot is taken for the whole period, although the value may be dead in the middle. So a period need not
//! begin where a layer does: every shift is tried, and the one with the least peak is kept. For a post-norm encoder
//! whose feed-forward is not fused, that is the point between attention and feed-forward; if it is fused, it is the
//! start of the layer. Folding then costs no bytes.
//!
//! A graph without alike layers is planned value by value; only planning time is lost.

mod periods;
mod share;

use std::ops::Range;

use turbo_alloc::{UsageRecord, peak_live_bytes};

use crate::{
    dim::{Extents, Shape},
    graph::{Graph, Storage, ValueId},
};
use periods::{Finder, Periods};

/// The lifetime of an activation, in positions of nodes; both ends inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) value: ValueId,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

impl Life {
    pub(crate) fn record(&self, graph: &Graph, extents: &Extents, element_bytes: usize) -> UsageRecord {
        record(self.first, self.last, &graph.value(self.value).shape, extents, element_bytes)
    }
}

/// The activations of `graph` in order of computation, each with its lifetime.
pub(crate) fn activations(graph: &Graph) -> Vec<Life> {
    let mut last_use: Vec<Option<usize>> = vec![None; graph.values.len()];
    for (position, node) in graph.nodes.iter().enumerate() {
        node.inputs.iter().for_each(|input| last_use[input.index()] = Some(position));
    }
    let computed = graph.nodes.iter().enumerate();
    let lives = computed.filter(|(_, node)| graph.value(node.output).storage == Storage::Activation);
    lives
        .map(|(first, node)| Life {
            value: node.output,
            first,
            last: last_use[node.output.index()].unwrap_or(first),
        })
        .collect()
}

fn record(first: usize, last: usize, shape: &Shape, extents: &Extents, element_bytes: usize) -> UsageRecord {
    let position = |node: usize| u32::try_from(node).expect("a graph has fewer than 2³² nodes");
    let size = shape.elements(extents).saturating_mul(element_bytes);
    UsageRecord { first_op: position(first), last_op: position(last), size }
}

/// One planned tensor, which several values may take in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Axes of the values that take it.
    pub shape: Shape,
    /// First position on the folded timeline.
    pub first: usize,
    /// Last position on the folded timeline, inclusive.
    pub last: usize,
}

/// Which values share which planned tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    slots: Vec<Slot>,
    of_value: Vec<Option<u32>>,
    folded_periods: usize,
    /// Bytes of each value of an activation, as the device stores it.
    pub(crate) element_bytes: usize,
}

impl Slots {
    pub(crate) fn of(graph: &Graph) -> Self {
        let finder = Finder::new(graph);
        let Some(layers) = finder.find() else { return Slots::unfolded(graph) };
        let shifts = (0..layers.len).filter_map(|shift| finder.alike_from(layers.start + shift, layers.len));
        let foldings = shifts.filter_map(|periods| periods.fold(graph));
        foldings.min_by_key(Slots::nominal_peak).unwrap_or_else(|| Slots::unfolded(graph))
    }

    /// Peak bytes of one sequence of a common length, by which foldings are compared.
    fn nominal_peak(&self) -> usize {
        let mut records = Vec::new();
        self.usage_records_into(&Extents::of(&[128]), &mut records);
        peak_live_bytes(&records)
    }

    /// One slot per activation.
    fn unfolded(graph: &Graph) -> Self {
        let mut slots = Slots::none(graph, 1);
        for Life { value, first, last } in activations(graph) {
            let slot = slots.push(&graph.value(value).shape, first, last);
            slots.assign(value, slot);
        }
        slots
    }

    /// No slots yet, for a graph whose activations are f32.
    fn none(graph: &Graph, folded_periods: usize) -> Self {
        let of_value = vec![None; graph.values.len()];
        Slots { slots: Vec::new(), of_value, folded_periods, element_bytes: size_of::<f32>() }
    }

    /// The planned tensors.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The slot that an activation takes.
    pub fn of_value(&self, value: ValueId) -> Option<usize> {
        self.of_value[value.index()].map(|slot| slot as usize)
    }

    /// Periods that share one plan; 1 when nothing was folded.
    pub fn folded_periods(&self) -> usize {
        self.folded_periods
    }

    /// Writes the usage records of all slots for a batch, sizes in bytes, into `records`.
    pub fn usage_records_into(&self, extents: &Extents, records: &mut Vec<UsageRecord>) {
        records.clear();
        let of_slot = |slot: &Slot| record(slot.first, slot.last, &slot.shape, extents, self.element_bytes);
        records.extend(self.slots.iter().map(of_slot));
    }

    fn push(&mut self, shape: &Shape, first: usize, last: usize) -> usize {
        self.slots.push(Slot { shape: shape.clone(), first, last });
        self.slots.len() - 1
    }

    fn assign(&mut self, value: ValueId, slot: usize) {
        self.of_value[value.index()] = Some(u32::try_from(slot).expect("fewer than 2³² slots"));
    }
}

/// Alike periods of layers, which are printed once.
pub(crate) struct Repeated {
    /// The nodes of the first period.
    pub(crate) first: Range<usize>,
    /// How many periods there are.
    pub(crate) count: usize,
    /// Layers in each period: more than one where kinds of layers alternate.
    pub(crate) layers: usize,
}

impl Repeated {
    pub(crate) fn of(graph: &Graph) -> Option<Self> {
        let Periods { start, len, count, .. } = Finder::new(graph).find()?;
        let first = start..start + len;
        let layer = |node: usize| graph.nodes[node].layer;
        let layers = 1 + first.clone().skip(1).filter(|&node| layer(node) != layer(node - 1)).count();
        Some(Repeated { first, count, layers })
    }

    /// The nodes of all periods.
    pub(crate) fn all(&self) -> Range<usize> {
        self.first.start..self.first.start + self.first.len() * self.count
    }

    /// The position in the first period that corresponds to `node`; `None` if `node` is in no period.
    pub(crate) fn twin(&self, node: usize) -> Option<usize> {
        let all = self.all();
        all.contains(&node).then(|| all.start + (node - all.start) % self.first.len())
    }
}
