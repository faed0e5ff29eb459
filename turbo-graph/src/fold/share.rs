//! Which values of alike periods share which slots.

use std::collections::HashMap;

use super::{Life, Slots, activations, periods::Periods};
use crate::graph::{Graph, ValueId};

impl Periods {
    /// The slots; `None` if a value is used in a way that folding does not cover.
    pub(super) fn fold(&self, graph: &Graph) -> Option<Slots> {
        let mut slots = Slots::none(graph, self.count);
        let lives = activations(graph);
        for life in &lives {
            let is_inside = (self.start..self.end()).contains(&life.first);
            if Some(life.value) == self.carried_in || (is_inside && self.is_carry(life.first)) {
                continue; // taken by the carry's slots
            }
            let slot = match is_inside {
                true => self.slot_inside(graph, &mut slots, life)?,
                false => {
                    let shape = &graph.value(life.value).shape;
                    slots.push(shape, self.folded(life.first), self.folded(life.last))
                }
            };
            slots.assign(life.value, slot);
        }
        if let (Some(carry), Some(first)) = (self.carry, self.carried_in) {
            let lives = lives.into_iter().map(|life| (life.value, life)).collect();
            self.fold_carry(graph, &mut slots, carry, first, &lives)?;
        }
        Some(slots)
    }

    fn is_carry(&self, node: usize) -> bool {
        self.carry.is_some_and(|carry| (node - self.start) % self.len == carry)
    }

    /// The last node of the first period.
    fn period_end(&self) -> usize {
        self.start + self.len - 1
    }

    /// The position of `node` on the folded timeline; a node inside the periods counts as the end of the first period.
    fn folded(&self, node: usize) -> usize {
        match node {
            _ if node < self.start => node,
            _ if node < self.end() => self.period_end(),
            _ => node - self.len * (self.count - 1),
        }
    }

    /// The slot of a value of one period: a new one in the first period, that of its twin in the others. `None` if it
    /// leaves its period without being the carry.
    fn slot_inside(&self, graph: &Graph, slots: &mut Slots, life: &Life) -> Option<usize> {
        let (period, index) = ((life.first - self.start) / self.len, (life.first - self.start) % self.len);
        if life.last >= self.start + (period + 1) * self.len {
            return None;
        }
        match period {
            0 => Some(slots.push(&graph.value(life.value).shape, life.first, life.last)),
            _ => slots.of_value(graph.nodes[self.start + index].output),
        }
    }

    /// Gives slots to the values that periods hand on: one for all of them, or two that alternate. `first` is what the
    /// first period is handed.
    fn fold_carry(
        &self,
        graph: &Graph,
        slots: &mut Slots,
        carry: usize,
        first: ValueId,
        lives: &HashMap<ValueId, Life>,
    ) -> Option<()> {
        let chain: Vec<ValueId> = std::iter::once(first)
            .chain((0..self.count).map(|period| graph.nodes[self.start + period * self.len + carry].output))
            .collect();
        let shape = &graph.value(chain[1]).shape;
        let mut planned = chain.iter().filter(|value| lives.contains_key(value)); // not inputs and outputs
        if planned.any(|&value| graph.value(value).shape != *shape) {
            return None;
        }
        let CarryLife { begin, end, overlap } = self.carry_life(&chain, carry, lives)?;
        let place_count = if overlap { 2 } else { 1 };
        let places: Vec<usize> = (0..place_count).map(|_| slots.push(shape, begin, end)).collect();
        for (period, value) in chain.iter().enumerate() {
            if lives.contains_key(value) {
                slots.assign(*value, places[period % place_count]);
            }
        }
        Some(())
    }

    /// When the values of `chain` live; `None` if one is read after the period that it was handed to.
    fn carry_life(
        &self,
        chain: &[ValueId],
        carry: usize,
        lives: &HashMap<ValueId, Life>,
    ) -> Option<CarryLife> {
        let (mut begin, mut end) = (self.start, self.period_end());
        let mut last_read = 0; // in any period, counted from its start
        for (period, value) in chain.iter().enumerate() {
            let Some(life) = lives.get(value) else { continue };
            begin = begin.min(self.folded(life.first));
            if period == self.count {
                end = end.max(self.folded(life.last));
                continue;
            }
            let at = self.start + period * self.len;
            if life.last >= at + self.len {
                return None;
            }
            // a period may read `carried_in` once more instead: then the value it was handed ends unread, before the
            // period begins
            last_read = last_read.max(life.last.saturating_sub(at));
        }
        Some(CarryLife { begin, end, overlap: last_read >= carry })
    }
}

/// When the values live that periods hand on, on the folded timeline.
struct CarryLife {
    begin: usize,
    /// Inclusive.
    end: usize,
    /// Whether one is still read when the next is computed. If not, one slot serves them all.
    overlap: bool,
}
