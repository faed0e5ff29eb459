//! The pencil of every architecture: nodes that come in groups, and weights that are checked as they are named.

use turbo_graph::{Graph, GraphBuilder, ValueId};

use crate::{ModelError, weights::Weights};

/// A graph being drawn for the weights of one folder.
///
/// A weight that the folder lacks, or has in another shape, ends the drawing at once. So a configuration that claims a
/// million layers costs no more than the layers that the files really have.
pub(crate) struct Drawing<'a> {
    /// For the operators that are used as they are.
    pub(crate) graph: GraphBuilder,
    weights: &'a Weights,
}

impl<'a> Drawing<'a> {
    /// An empty graph called `name`.
    pub(crate) fn new(name: &str, weights: &'a Weights) -> Self {
        Self { graph: GraphBuilder::new(name), weights }
    }

    /// The published weight `name` with `shape`.
    pub(crate) fn weight(&mut self, name: &str, shape: &[usize]) -> Result<ValueId, ModelError> {
        self.weights.check(name, shape)?;
        Ok(self.graph.weight(name, shape))
    }

    /// Rows `ids` of the table `{name}.weight`, `[rows, columns]`.
    pub(crate) fn embed(
        &mut self,
        name: &str,
        (rows, columns): (usize, usize),
        ids: ValueId,
    ) -> Result<ValueId, ModelError> {
        let table = self.weight(&format!("{name}.weight"), &[rows, columns])?;
        Ok(self.graph.embed(table, ids)?)
    }

    /// `x · {name}.weightᵀ + {name}.bias`, from `inputs` columns to `outputs`.
    pub(crate) fn linear(
        &mut self,
        x: ValueId,
        name: &str,
        (inputs, outputs): (usize, usize),
    ) -> Result<ValueId, ModelError> {
        let weight = self.weight(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = self.weight(&format!("{name}.bias"), &[outputs])?;
        let product = self.graph.matmul(x, weight)?;
        Ok(self.graph.add_bias(product, bias)?)
    }

    /// Layer norm of rows of `columns` values, with gain `{name}.weight` and offset `{name}.bias`.
    pub(crate) fn layer_norm(
        &mut self,
        x: ValueId,
        name: &str,
        columns: usize,
        epsilon: f32,
    ) -> Result<ValueId, ModelError> {
        let gain = self.weight(&format!("{name}.weight"), &[columns])?;
        let offset = self.weight(&format!("{name}.bias"), &[columns])?;
        Ok(self.graph.layer_norm(x, gain, offset, epsilon)?)
    }

    /// The finished graph.
    pub(crate) fn finish(self) -> Result<Graph, ModelError> {
        Ok(self.graph.finish()?)
    }
}
