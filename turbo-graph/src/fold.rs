//! Lifetimes of activations, and the folding of repeated layers: one layer is planned, and all use its offsets.
//!
//! The paper plans one layer and reuses the addresses (PPoPP'21, §6.2.2). Here that is derived, not assumed. Nodes
//! carry their layer; layers fold when they are alike node by node. The values then share *slots*:
//!
//! ```text
//!  prefix │ period 0 │ period 1 │ … │ period n−1 │ suffix      the timeline as it runs
//!  prefix │          period                      │ suffix      the timeline that is planned
//! ```
//!
//! * A value that lives inside one period has the slot of its twin in period 0.
//! * What a period hands to the next (the *carry*) takes one slot for all, when a period has read its own input for
//!   the last time before it computes its output; else two slots that alternate.
//! * What lives across the periods keeps its slot from end to end.
//!
//! The carry's slot is taken all through the period, although the value may be dead in its middle. So a period need
//! not begin where a layer does: every shift is tried, and the one of least peak is kept. For a post-norm encoder that
//! is the point between attention and feed-forward, and folding then costs no byte.
//!
//! Graphs without alike layers are planned value by value; nothing but planning time is lost.

use turbo_alloc::{UsageRecord, peak_live_bytes};

use crate::{
    dim::{Extents, Shape},
    graph::{Graph, Storage, ValueId},
};

/// When an activation lives, in positions of nodes; both ends inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) value: ValueId,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

impl Life {
    pub(crate) fn record(&self, graph: &Graph, extents: &Extents) -> UsageRecord {
        record(self.first, self.last, &graph.value(self.value).shape, extents)
    }
}

/// The activations of `graph` in order of computation, each with its life.
pub(crate) fn activations(graph: &Graph) -> Vec<Life> {
    let computed = graph.nodes.iter().enumerate();
    let lives = computed.filter(|(_, node)| graph.value(node.output).storage == Storage::Activation);
    lives
        .map(|(first, node)| Life { value: node.output, first, last: last_use(graph, node.output, first) })
        .collect()
}

fn last_use(graph: &Graph, value: ValueId, first: usize) -> usize {
    graph.nodes.iter().rposition(|node| node.inputs.contains(&value)).unwrap_or(first)
}

fn record(first: usize, last: usize, shape: &Shape, extents: &Extents) -> UsageRecord {
    let position = |node: usize| u32::try_from(node).expect("a graph has fewer than 2³² nodes");
    let size = shape.elements(extents).saturating_mul(size_of::<f32>());
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
}

impl Slots {
    pub(crate) fn of(graph: &Graph) -> Self {
        let Some(layers) = Layers::find(graph) else { return Slots::unfolded(graph) };
        let shifts =
            (0..layers.len).filter_map(|shift| Layers::count(graph, layers.start + shift, layers.len));
        let foldings = shifts.filter_map(|periods| periods.fold(graph));
        foldings.min_by_key(Slots::nominal_peak).unwrap_or_else(|| Slots::unfolded(graph))
    }

    /// Peak bytes of one sequence of common length, to compare foldings by.
    fn nominal_peak(&self) -> usize {
        let mut records = Vec::new();
        self.usage_records_into(&Extents::of(&[128]), &mut records);
        peak_live_bytes(&records)
    }

    /// One slot per activation.
    fn unfolded(graph: &Graph) -> Self {
        let mut slots =
            Slots { slots: Vec::new(), of_value: vec![None; graph.values.len()], folded_periods: 1 };
        for Life { value, first, last } in activations(graph) {
            let slot = slots.push(&graph.value(value).shape, first, last);
            slots.assign(value, slot);
        }
        slots
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
        records.extend(self.slots.iter().map(|slot| record(slot.first, slot.last, &slot.shape, extents)));
    }

    fn push(&mut self, shape: &Shape, first: usize, last: usize) -> usize {
        self.slots.push(Slot { shape: shape.clone(), first, last });
        self.slots.len() - 1
    }

    fn assign(&mut self, value: ValueId, slot: usize) {
        self.of_value[value.index()] = Some(u32::try_from(slot).expect("fewer than 2³² slots"));
    }
}

/// Repeated periods that are alike: `count` times `len` nodes from `start` on. A period is a layer, or as much of the
/// end of one and the beginning of the next.
struct Layers {
    start: usize,
    len: usize,
    count: usize,
    /// Node of a period whose result the next period reads, when there is one.
    carry: Option<usize>,
}

/// Where an input of a layer's node comes from.
#[derive(PartialEq)]
enum Source {
    /// Node of the same layer.
    Inside(usize),
    /// Node of the layer before; for the first layer, something before the layers.
    Carried,
    /// Something before the layers, the same for all.
    Before(ValueId),
    /// A weight of this shape.
    Weight(Shape),
}

impl Layers {
    /// The layers of `graph`, when there are several and they are alike.
    fn find(graph: &Graph) -> Option<Self> {
        let start = graph.nodes.iter().position(|node| node.layer == Some(0))?;
        let len = graph.nodes[start..].iter().take_while(|node| node.layer == Some(0)).count();
        let layers = Layers::count(graph, start, len)?;
        let last = graph.nodes.iter().rposition(|node| node.layer.is_some())?;
        (last < layers.end()).then_some(layers)
    }

    /// As many alike periods as there are from `start` on, when there are several.
    fn count(graph: &Graph, start: usize, len: usize) -> Option<Self> {
        let mut layers = Layers { start, len, count: 1, carry: None };
        layers.carry = layers.find_carry(graph);
        while layers.is_alike(graph, layers.count) {
            layers.count += 1;
        }
        (layers.count > 1).then_some(layers)
    }

    fn end(&self) -> usize {
        self.start + self.len * self.count
    }

    /// The node of layer 0 that layer 1 reads; at most one may be.
    fn find_carry(&self, graph: &Graph) -> Option<usize> {
        let second = graph.nodes.get(self.start + self.len..self.start + 2 * self.len)?;
        let mut read = (0..self.len).filter(|&node| {
            let output = graph.nodes[self.start + node].output;
            second.iter().any(|reader| reader.inputs.contains(&output))
        });
        let carry = read.next()?;
        read.next().is_none().then_some(carry)
    }

    fn is_alike(&self, graph: &Graph, layer: usize) -> bool {
        let at = self.start + layer * self.len;
        let Some(nodes) = graph.nodes.get(at..at + self.len) else { return false };
        nodes.iter().enumerate().all(|(index, node)| {
            let twin = &graph.nodes[self.start + index];
            node.layer.is_some()
                && node.op == twin.op
                && graph.value(node.output).shape == graph.value(twin.output).shape
                && node.inputs.len() == twin.inputs.len()
                && node.inputs.iter().zip(&twin.inputs).all(|(&a, &b)| {
                    let (here, there) = (self.source(graph, layer, a), self.source(graph, 0, b));
                    here.is_some() && (here == there || self.first_carry(graph, here, b))
                })
        })
    }

    /// In layer 0 the carried value comes from before the layers.
    fn first_carry(&self, graph: &Graph, here: Option<Source>, first: ValueId) -> bool {
        here == Some(Source::Carried) && Some(first) == self.carried_into_first(graph)
    }

    /// The value that layer 0 reads where layer 1 reads the carry.
    fn carried_into_first(&self, graph: &Graph) -> Option<ValueId> {
        let carry = graph.nodes[self.start + self.carry?].output;
        let (first, second) = (self.start, self.start + self.len);
        (0..self.len).find_map(|node| {
            let position = graph.nodes[second + node].inputs.iter().position(|&input| input == carry)?;
            graph.nodes[first + node].inputs.get(position).copied()
        })
    }

    fn source(&self, graph: &Graph, layer: usize, value: ValueId) -> Option<Source> {
        if let Storage::Weight(_) = graph.value(value).storage {
            return Some(Source::Weight(graph.value(value).shape.clone()));
        }
        let Some(producer) = graph.producer(value) else { return Some(Source::Before(value)) };
        let at = self.start + layer * self.len;
        if (at..at + self.len).contains(&producer) {
            return Some(Source::Inside(producer - at));
        }
        if producer < self.start {
            return Some(Source::Before(value));
        }
        (layer > 0 && Some(producer) == self.carry.map(|carry| at - self.len + carry))
            .then_some(Source::Carried)
    }

    /// The slots, or nothing when a value is used in a way that folding does not cover.
    fn fold(&self, graph: &Graph) -> Option<Slots> {
        let mut slots =
            Slots { slots: Vec::new(), of_value: vec![None; graph.values.len()], folded_periods: self.count };
        let lives = activations(graph);
        let life_of = |value: ValueId| lives.iter().find(|life| life.value == value);
        let carried_in = self.carried_into_first(graph);
        let layer_end = self.start + self.len - 1;

        for life in &lives {
            let inside = (self.start..self.end()).contains(&life.first);
            if Some(life.value) == carried_in || (inside && self.is_carry(life.first)) {
                continue; // taken by the carry's slots
            }
            if inside {
                let (layer, index) =
                    ((life.first - self.start) / self.len, (life.first - self.start) % self.len);
                let shift = layer * self.len;
                if life.last >= self.start + shift + self.len {
                    return None; // leaves its layer without being the carry
                }
                if layer == 0 {
                    slots.push(&graph.value(life.value).shape, life.first, life.last);
                }
                let twin = graph.nodes[self.start + index].output;
                let slot = if layer == 0 { slots.slots.len() - 1 } else { slots.of_value(twin)? };
                slots.assign(life.value, slot);
            } else {
                let slot = slots.push(
                    &graph.value(life.value).shape,
                    self.folded(life.first, layer_end),
                    self.folded(life.last, layer_end),
                );
                slots.assign(life.value, slot);
            }
        }
        if let (Some(carry), Some(first)) = (self.carry, carried_in) {
            self.fold_carry(graph, &mut slots, carry, first, &|value| life_of(value).copied())?;
        }
        Some(slots)
    }

    fn is_carry(&self, node: usize) -> bool {
        self.carry.is_some_and(|carry| (node - self.start) % self.len == carry)
    }

    /// The position of `node` on the folded timeline; inside the layers it counts as their end.
    fn folded(&self, node: usize, layer_end: usize) -> usize {
        match node {
            _ if node < self.start => node,
            _ if node < self.end() => layer_end,
            _ => node - self.len * (self.count - 1),
        }
    }

    fn fold_carry(
        &self,
        graph: &Graph,
        slots: &mut Slots,
        carry: usize,
        first: ValueId,
        life_of: &dyn Fn(ValueId) -> Option<Life>,
    ) -> Option<()> {
        let layer_end = self.start + self.len - 1;
        let chain: Vec<ValueId> = std::iter::once(first)
            .chain((0..self.count).map(|layer| graph.nodes[self.start + layer * self.len + carry].output))
            .collect();
        let shape = &graph.value(chain[1]).shape;
        let mut begin = self.start;
        let mut end = layer_end;
        let mut last_read_in_layer = self.start;
        for (layer, &value) in chain.iter().enumerate() {
            let Some(life) = life_of(value) else { continue }; // an input or an output: not planned
            if graph.value(value).shape != *shape {
                return None;
            }
            begin = begin.min(self.folded(life.first, layer_end));
            if layer < self.count {
                let at = self.start + layer * self.len;
                if life.last >= at + self.len {
                    return None; // read after the layer that it was handed to
                }
                last_read_in_layer = last_read_in_layer.max(life.last - at + self.start);
            } else {
                end = end.max(self.folded(life.last, layer_end));
            }
        }
        // Read for the last time before the next is computed: one place serves them all.
        let alternate = if last_read_in_layer < self.start + carry { 1 } else { 2 };
        let places: Vec<usize> = (0..alternate).map(|_| slots.push(shape, begin, end)).collect();
        for (layer, &value) in chain.iter().enumerate() {
            if life_of(value).is_some() {
                slots.assign(value, places[layer % alternate]);
            }
        }
        Some(())
    }
}

/// The nodes of layer 0 and how many layers are alike, for printing a graph once per layer.
pub(crate) fn repeated_layers(graph: &Graph) -> Option<(std::ops::Range<usize>, usize)> {
    Layers::find(graph).map(|layers| (layers.start..layers.start + layers.len, layers.count))
}
