//! Finding periods that repeat: layers that are alike, node by node.

use std::ops::Range;

use crate::{
    dim::Shape,
    graph::{Graph, Storage, ValueId},
};

/// How many layers before the first period may be unlike all others.
const MAX_ODD_LAYERS: usize = 4;
/// The most layers that a period may have, where kinds of layers alternate.
const MAX_TURN: usize = 8;

/// Periods that are alike: `count` times `len` nodes from `start` on. A period is a layer or one round of several kinds
/// of layers; if it is shifted, it is the end of one and the beginning of the next.
#[derive(Clone, Copy)]
pub(super) struct Periods {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) count: usize,
    /// The node, counted from the start of its period, whose result the next period reads, if there is one.
    pub(super) carry: Option<usize>,
    /// The value that the first period reads where the second reads the carry.
    pub(super) carried_in: Option<ValueId>,
}

impl Periods {
    pub(super) fn end(&self) -> usize {
        self.start + self.len * self.count
    }
}

/// Where an input of a period's node comes from.
#[derive(PartialEq)]
enum Source<'a> {
    /// Node of the same period.
    Inside(usize),
    /// The carry of the period before; the first period reads `carried_in` instead.
    Carried,
    /// Something before the periods, the same for all.
    Before(ValueId),
    /// A constant of this shape.
    Constant(&'a Shape),
}

/// A graph in which periods are looked for.
pub(super) struct Finder<'a> {
    graph: &'a Graph,
    /// The node that computes each value.
    producer: Vec<Option<usize>>,
}

impl<'a> Finder<'a> {
    pub(super) fn new(graph: &'a Graph) -> Self {
        let mut producer = vec![None; graph.values.len()];
        graph.nodes.iter().enumerate().for_each(|(at, node)| producer[node.output.index()] = Some(at));
        Finder { graph, producer }
    }

    /// The periods of whole layers that cover the most nodes; among equals, the shortest, and among those the first.
    pub(super) fn find(&self) -> Option<Periods> {
        let layers = self.layers();
        let mut best: Option<Periods> = None;
        for turn in 1..=MAX_TURN {
            for first in 0..=MAX_ODD_LAYERS {
                let Some(period) = layers.get(first..first + turn) else { continue };
                let (start, end) = (period[0].start, period[turn - 1].end);
                let Some(found) = self.alike_from(start, end - start) else { continue };
                if best.is_none_or(|best| best.len * best.count < found.len * found.count) {
                    best = Some(found);
                }
            }
        }
        best
    }

    /// The nodes of each layer.
    fn layers(&self) -> Vec<Range<usize>> {
        let mut layers: Vec<Range<usize>> = Vec::new();
        let mut last = None;
        for (at, node) in self.graph.nodes.iter().enumerate().filter(|(_, node)| node.layer.is_some()) {
            match layers.last_mut() {
                Some(range) if node.layer == last => range.end = at + 1,
                _ => layers.push(at..at + 1),
            }
            last = node.layer;
        }
        layers
    }

    /// All alike periods from `start` on, if there are several.
    pub(super) fn alike_from(&self, start: usize, len: usize) -> Option<Periods> {
        let mut periods = Periods { start, len, count: 1, carry: None, carried_in: None };
        periods.carry = self.find_carry(&periods);
        periods.carried_in = self.carried_into_first(&periods);
        while self.is_alike(&periods, periods.count) {
            periods.count += 1;
        }
        (periods.count > 1).then_some(periods)
    }

    /// The node of the first period whose result the second reads; `None` if there are several.
    fn find_carry(&self, periods: &Periods) -> Option<usize> {
        let (start, len) = (periods.start, periods.len);
        let second = self.graph.nodes.get(start + len..start + 2 * len)?;
        let read = second.iter().flat_map(|reader| &reader.inputs).filter_map(|input| {
            let producer = self.producer[input.index()]?;
            (start..start + len).contains(&producer).then(|| producer - start)
        });
        let mut carry = None;
        for node in read {
            if carry.is_some_and(|carry| carry != node) {
                return None;
            }
            carry = Some(node);
        }
        carry
    }

    /// The value that the first period reads where the second reads the carry.
    fn carried_into_first(&self, periods: &Periods) -> Option<ValueId> {
        let nodes = &self.graph.nodes;
        let carry = nodes[periods.start + periods.carry?].output;
        let (first, second) = (periods.start, periods.start + periods.len);
        (0..periods.len).find_map(|node| {
            let position = nodes[second + node].inputs.iter().position(|&input| input == carry)?;
            nodes[first + node].inputs.get(position).copied()
        })
    }

    fn is_alike(&self, periods: &Periods, period: usize) -> bool {
        let at = periods.start + period * periods.len;
        let Some(nodes) = self.graph.nodes.get(at..at + periods.len) else { return false };
        let shape = |value: ValueId| &self.graph.value(value).shape;
        nodes.iter().zip(&self.graph.nodes[periods.start..]).all(|(node, twin)| {
            node.layer.is_some()
                && node.op == twin.op
                && shape(node.output) == shape(twin.output)
                && node.inputs.len() == twin.inputs.len()
                && node.inputs.iter().zip(&twin.inputs).all(|(&a, &b)| {
                    let (here, there) = (self.source(periods, period, a), self.source(periods, 0, b));
                    // the first period reads the carried value from before the periods
                    let handed_on = here == Some(Source::Carried) && Some(b) == periods.carried_in;
                    here.is_some() && (here == there || handed_on)
                })
        })
    }

    fn source(&self, periods: &Periods, period: usize, value: ValueId) -> Option<Source<'a>> {
        let described = self.graph.value(value);
        if let Storage::Weight(_) | Storage::Computed(_) = described.storage {
            return Some(Source::Constant(&described.shape));
        }
        let Some(producer) = self.producer[value.index()] else { return Some(Source::Before(value)) };
        let at = periods.start + period * periods.len;
        if (at..at + periods.len).contains(&producer) {
            return Some(Source::Inside(producer - at));
        }
        if producer < periods.start {
            return Some(Source::Before(value));
        }
        let is_carry = period > 0 && Some(producer) == periods.carry.map(|carry| at - periods.len + carry);
        is_carry.then_some(Source::Carried)
    }
}
