//! A product and the layer norm of it, with the bias and the residual that are added between, become one operator: the
//! rows are normalised while they are in cache.

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
    /// The product that gives `value` to one reader alone.
    fn of(graph: &Graph, value: ValueId) -> Option<Self> {
        let producer = graph.private_producer(value)?;
        let node = &graph.nodes[producer];
        let places = node.op.adds(node.inputs.len())?.places(2);
        let [bias, residual] =
            [places.bias, places.residual].map(|place| place.map(|input| node.inputs[input]));
        let factors = *node.inputs.first_chunk()?;
        Some(Sum { producer, factors, bias, residual })
    }

    /// Adds these, unless there is one of the kind already.
    fn and(self, bias: Option<ValueId>, residual: Option<ValueId>) -> Option<Self> {
        let both = |a: Option<ValueId>, b: Option<ValueId>| a.is_some() && b.is_some();
        if both(self.bias, bias) || both(self.residual, residual) {
            return None;
        }
        Some(Sum { bias: self.bias.or(bias), residual: self.residual.or(residual), ..self })
    }

    /// The one operator, when product and norm are of one layer: what follows the last layer must not make it unlike the
    /// others.
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
