//! What a whole graph costs: by kind of operator, and the least time that a machine can take.
//!
//! There are two times, both from measured [`Limits`]. The *limit* of an operator is the time that the machine needs if
//! everything the operator reads and writes passes through memory; data in caches goes faster. The *floor* of a graph
//! is the time that no implementation can beat: all operations at peak speed, or every weight read once from memory,
//! whichever takes longer.

use std::{collections::BTreeMap, time::Duration};

use turbo_kernels::{Hidden, limits::Limits};

use super::Cost;
use crate::{
    Op,
    dim::Extents,
    graph::{Graph, Node, Storage},
    op::{FeedForwardParts, MaskSuffix, QueriesSuffix, RoutingSuffix},
};

/// The operators of one kind, together.
#[derive(Clone, Debug, PartialEq)]
pub struct KindCost {
    /// [`Graph::kind`] of each.
    pub kind: String,
    /// How many there are.
    pub nodes: usize,
    /// What they cost together.
    pub cost: Cost,
    /// Sum of their limits.
    pub limit: Duration,
}

impl Cost {
    /// The least time for this if all bytes pass through memory: that of the operations or of the bytes, whichever is
    /// longer.
    pub fn limit(&self, limits: &Limits) -> Duration {
        slower(self, self.bytes, limits)
    }
}

impl Graph {
    /// What a table calls an operator: its name, and what tells it from operators of another cost, as in
    /// `linear GeluErf 384→1536` and `attention ±64`.
    pub fn kind(&self, node: &Node) -> String {
        let mut kind = node.op.name().to_owned();
        match node.op {
            Op::Linear { activation: Some(activation) } => kind += &format!(" {activation:?}"),
            Op::FeedForward(FeedForwardParts { hidden: Hidden::Activation(activation), .. }) => {
                kind += &format!(" {activation:?}");
            }
            Op::FeedForward(FeedForwardParts { hidden: Hidden::Gate(activation), .. }) => {
                kind += &format!(" gate {activation:?}");
            }
            Op::Experts { routing, activation } => {
                kind += &format!("{} {activation:?}", RoutingSuffix(routing));
            }
            Op::Attention { queries, mask, .. } => {
                kind += &format!("{}{}", QueriesSuffix(queries), MaskSuffix(mask));
            }
            _ => {}
        }
        kind + &self.widths(node) + &self.dtype_suffix(node)
    }

    /// The cost of all nodes for a batch, by kind; the kind with the highest limit comes first.
    pub fn cost_by_kind(&self, extents: &Extents, limits: &Limits) -> Vec<KindCost> {
        let mut kinds: Vec<KindCost> = Vec::new();
        for node in self.nodes() {
            let (kind, cost) = (self.kind(node), self.cost(node, extents));
            let index = kinds.iter().position(|known| known.kind == kind).unwrap_or_else(|| {
                kinds.push(KindCost { kind, nodes: 0, cost: Cost::default(), limit: Duration::ZERO });
                kinds.len() - 1
            });
            kinds[index].nodes += 1;
            kinds[index].cost = kinds[index].cost + cost;
            kinds[index].limit += cost.limit(limits);
        }
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.limit));
        kinds
    }

    /// The least time for a batch on a machine with these limits, if all activations stay in caches.
    pub fn floor(&self, extents: &Extents, limits: &Limits) -> Duration {
        slower(&self.total_cost(extents), self.weight_bytes_read(extents), limits)
    }

    /// Bytes of the weights that a batch reads, each counted once however often it is used; of tables, only the rows
    /// taken.
    pub fn weight_bytes_read(&self, extents: &Extents) -> u64 {
        let mut read: BTreeMap<Vec<&str>, u64> = BTreeMap::new();
        for node in self.nodes() {
            for (input, &value) in node.inputs.iter().enumerate() {
                let Storage::Weight(parts) = &self.value(value).storage else { continue };
                let name = parts.iter().map(|part| part.name.as_str()).collect();
                let bytes = self.bytes_read(node, input, extents);
                let of_name = read.entry(name).or_default();
                *of_name = bytes.max(*of_name);
            }
        }
        read.values().sum()
    }
}

/// The time of the operations of `cost` at the peak of their dtypes, or of `bytes` from memory, whichever is longer.
fn slower(cost: &Cost, bytes: u64, limits: &Limits) -> Duration {
    let f32_flops = cost.flops - cost.bf16_flops - cost.int8_ops;
    let computed = f32_flops as f64 / limits.flops
        + cost.bf16_flops as f64 / limits.bf16_flops
        + cost.int8_ops as f64 / limits.int8_ops;
    Duration::from_secs_f64(computed.max(bytes as f64 / limits.memory_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Activation, GraphBuilder, Input, LayoutKind, Program, passes};

    const LIMITS: Limits = Limits { flops: 1e9, bf16_flops: 2e9, int8_ops: 4e9, memory_bytes: 1e6 };

    /// `relu(x · wᵀ + b) · wᵀ` of looked-up rows: the matrix is used twice.
    fn twice() -> Graph {
        let mut g = GraphBuilder::new("twice");
        let (table, ids) = (g.weight("table", &[100, 8]), g.input(Input::InputIds));
        let (weight, bias) = (g.weight("w", &[8, 8]), g.weight("b", &[8]));
        let x = g.embed(table, ids).unwrap();
        let x = g.matmul(x, weight).unwrap();
        let x = g.add_bias(x, bias).unwrap();
        let x = g.activate(x, Activation::Relu).unwrap();
        let y = g.matmul(x, weight).unwrap();
        g.output("y", y);
        Program::compile(&g.finish().unwrap(), LayoutKind::Packed, passes::ALL).unwrap().graph().clone()
    }

    #[test]
    fn kinds_add_up_to_the_whole() {
        let (graph, extents) = (twice(), Extents::of(&[3, 2]));
        let kinds = graph.cost_by_kind(&extents, &LIMITS);
        let mut names: Vec<_> = kinds.iter().map(|kind| (kind.kind.as_str(), kind.nodes)).collect();
        names.sort_unstable();
        assert_eq!(names, [("embed", 1), ("linear Relu 8→8", 1), ("matmul 8→8", 1)]);
        assert_eq!(kinds.iter().map(|kind| kind.cost).sum::<Cost>(), graph.total_cost(&extents));
        assert!(kinds.is_sorted_by(|a, b| a.limit >= b.limit), "{kinds:?}");
    }

    #[test]
    fn a_weight_used_twice_is_read_once_and_a_table_by_rows() {
        // 5 rows of 8 columns, a matrix of 64 values, a bias of 8
        assert_eq!(twice().weight_bytes_read(&Extents::of(&[3, 2])), 4 * (40 + 64 + 8));
    }

    #[test]
    fn the_floor_is_below_the_sum_of_limits() {
        let (graph, extents) = (twice(), Extents::of(&[3, 2]));
        let sum: Duration = graph.cost_by_kind(&extents, &LIMITS).iter().map(|kind| kind.limit).sum();
        assert!(graph.floor(&extents, &LIMITS) < sum);
        let memory_is_free = Limits { memory_bytes: f64::INFINITY, ..LIMITS };
        let flops = graph.total_cost(&extents).flops;
        assert_eq!(graph.floor(&extents, &memory_is_free), Duration::from_nanos(flops));
    }

    /// Operations count at the peak of their dtype: int8's is four times that of f32 here, and bf16's twice.
    #[test]
    fn each_dtype_has_its_own_ceiling() {
        let cost = Cost { flops: 7_000, bf16_flops: 2_000, int8_ops: 4_000, bytes: 1 };
        assert_eq!(cost.limit(&LIMITS), Duration::from_nanos(1_000 + 1_000 + 1_000));
        let bytes = Cost { bytes: 4, ..cost };
        assert_eq!(bytes.limit(&LIMITS), Duration::from_micros(4));
    }
}
