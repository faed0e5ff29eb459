//! A product, the bias and residual that are added to it, and the layer norm of the sum become one operator: the rows
//! are normalised while they are in cache.

use super::Fusion;
use crate::{
    graph::{Graph, ValueId},
    op::{Addends, Op},
};

pub(super) fn pattern(graph: &Graph, last: usize) -> Option<Fusion> {
    let norm = &graph.nodes[last];
    match (norm.op, &norm.inputs[..]) {
        (Op::LayerNorm { epsilon }, [sum, weights @ ..]) => {
            Sum::of(graph, *sum)?.normed(graph, last, epsilon, weights)
        }
        (Op::ResidualLayerNorm { epsilon }, [a, b, weights @ ..]) => {
            let mut sums = [(*a, *b), (*b, *a)]
                .into_iter()
                .filter_map(|(product, residual)| Sum::of(graph, product)?.and(None, Some(residual)));
            sums.find_map(|sum| sum.normed(graph, last, epsilon, weights))
        }
        (Op::BiasResidualLayerNorm { epsilon }, [product, bias, residual, weights @ ..]) => {
            Sum::of(graph, *product)?.and(Some(*bias), Some(*residual))?.normed(graph, last, epsilon, weights)
        }
        _ => None,
    }
}

/// A product and what is added to it.
struct Sum {
    producer: usize,
    factors: [ValueId; 2],
    bias: Option<ValueId>,
    residual: Option<ValueId>,
}

impl Sum {
    /// The product that computes `value`, if it is read once.
    fn of(graph: &Graph, value: ValueId) -> Option<Self> {
        let producer = graph.private_producer(value)?;
        let node = &graph.nodes[producer];
        let places = node.op.adds(node.inputs.len())?.places(2);
        let [bias, residual] =
            [places.bias, places.residual].map(|place| place.map(|input| node.inputs[input]));
        let factors = *node.inputs.first_chunk()?;
        Some(Sum { producer, factors, bias, residual })
    }

    /// Adds a bias and a residual; `None` if the sum already has one of the same kind.
    fn and(self, bias: Option<ValueId>, residual: Option<ValueId>) -> Option<Self> {
        let both = |a: Option<ValueId>, b: Option<ValueId>| a.is_some() && b.is_some();
        if both(self.bias, bias) || both(self.residual, residual) {
            return None;
        }
        Some(Sum { bias: self.bias.or(bias), residual: self.residual.or(residual), ..self })
    }

    /// The fused operator, if product and norm are in one layer: a norm after the last layer must not make that layer
    /// differ from the others.
    fn normed(&self, graph: &Graph, last: usize, epsilon: f32, weights: &[ValueId]) -> Option<Fusion> {
        if graph.nodes[self.producer].layer != graph.nodes[last].layer {
            return None;
        }
        let adds = Addends { bias: self.bias.is_some(), residual: self.residual.is_some() };
        let inputs =
            self.factors.into_iter().chain(self.bias).chain(self.residual).chain(weights.iter().copied());
        Some(Fusion {
            op: Op::LinearLayerNorm { adds, epsilon },
            inputs: inputs.collect(),
            last,
            others: vec![self.producer],
        })
    }
}
