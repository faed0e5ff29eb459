//! Which values of alike periods share which slots.

use super::{Life, Slots, activations, periods::Periods};
use crate::graph::{Graph, ValueId};

impl Periods {
    /// The slots; `None` if a value is used in a way that folding does not cover.
    pub(super) fn fold(&self, graph: &Graph) -> Option<Slots> {
        let mut slots = Slots::none(graph, self.count);
        let lives = activations(graph);
        let life_of = |value: ValueId| lives.iter().find(|life| life.value == value);
        let carried_in = self.carried_in;
        let period_end = self.start + self.len - 1;

        for life in &lives {
            let inside = (self.start..self.end()).contains(&life.first);
            if Some(life.value) == carried_in || (inside && self.is_carry(life.first)) {
                continue; // taken by the carry's slots
            }
            if inside {
                let (period, index) =
                    ((life.first - self.start) / self.len, (life.first - self.start) % self.len);
                let shift = period * self.len;
                if life.last >= self.start + shift + self.len {
                    return None; // leaves its period without being the carry
                }
                if period == 0 {
                    slots.push(&graph.value(life.value).shape, life.first, life.last);
                }
                let twin = graph.nodes[self.start + index].output;
                let slot = if period == 0 { slots.slots.len() - 1 } else { slots.of_value(twin)? };
                slots.assign(life.value, slot);
            } else {
                let slot = slots.push(
                    &graph.value(life.value).shape,
                    self.folded(life.first, period_end),
                    self.folded(life.last, period_end),
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

    /// The position of `node` on the folded timeline; a node inside the periods counts as the end of the first period.
    fn folded(&self, node: usize, period_end: usize) -> usize {
        match node {
            _ if node < self.start => node,
            _ if node < self.end() => period_end,
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
        let period_end = self.start + self.len - 1;
        let chain: Vec<ValueId> = std::iter::once(first)
            .chain((0..self.count).map(|period| graph.nodes[self.start + period * self.len + carry].output))
            .collect();
        let shape = &graph.value(chain[1]).shape;
        let mut begin = self.start;
        let mut end = period_end;
        let mut last_read_in_period = self.start;
        for (period, &value) in chain.iter().enumerate() {
            let Some(life) = life_of(value) else { continue }; // an input or an output: not planned
            if graph.value(value).shape != *shape {
                return None;
            }
            begin = begin.min(self.folded(life.first, period_end));
            if period < self.count {
                let at = self.start + period * self.len;
                if life.last >= at + self.len {
                    return None; // read after the period that it was handed to
                }
                // a period may read `carried_in` once more instead: then the value it was handed ends unread, before
                // the period begins
                let read_in_period = life.last.max(at) - at;
                last_read_in_period = last_read_in_period.max(self.start + read_in_period);
            } else {
                end = end.max(self.folded(life.last, period_end));
            }
        }
        // If each is read for the last time before the next is computed, one slot serves them all.
        let place_count = if last_read_in_period < self.start + carry { 1 } else { 2 };
        let places: Vec<usize> = (0..place_count).map(|_| slots.push(shape, begin, end)).collect();
        for (period, &value) in chain.iter().enumerate() {
            if life_of(value).is_some() {
                slots.assign(value, places[period % place_count]);
            }
        }
        Some(())
    }
}
