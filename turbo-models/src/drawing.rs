//! What every architecture draws with: groups of nodes that occur together, and weights that are checked as they are
//! named.

use std::ops::Range;

use turbo_graph::{Activation, Graph, GraphBuilder, ValueId};

use crate::{
    ModelError,
    position_table::PositionTable,
    weights::{Derived, Weights},
};

/// Whether a matrix or a norm has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bias {
    With,
    Without,
}

/// How the gain of a norm is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gain {
    /// The published weight is the gain.
    Weight,
    /// The gain is one more than the published weight, which was trained around zero.
    OnePlusWeight,
}

/// A graph being drawn for the weights of one folder.
///
/// A weight that the folder lacks, or has in another shape, ends the drawing at once. So a configuration that claims a
/// million layers costs no more than the layers that the files really have.
pub(crate) struct Drawing<'a> {
    /// The builder, for operators that need nothing added.
    pub(crate) graph: GraphBuilder,
    weights: &'a Weights,
    /// A weight that the folder lacks, and the one that is read in its place.
    stand_in: Option<(String, String)>,
}

impl<'a> Drawing<'a> {
    /// An empty graph called `name`.
    pub(crate) fn new(name: &str, weights: &'a Weights) -> Self {
        Self { graph: GraphBuilder::new(name), weights, stand_in: None }
    }

    /// Draws the published weight `other` wherever the weight `name` is asked for from now on.
    pub(crate) fn read_for(&mut self, name: String, other: String) {
        self.stand_in = Some((name, other));
    }

    /// Whether the folder has a tensor of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.weights.has(name)
    }

    /// The published weight `name` with `shape`.
    pub(crate) fn weight(&mut self, name: &str, shape: &[usize]) -> Result<ValueId, ModelError> {
        let stand_in = self.stand_in.as_ref().filter(|(missing, _)| missing == name);
        let name = stand_in.map_or(name, |(_, other)| other);
        self.weights.check(name, shape)?;
        Ok(self.graph.weight(name, shape))
    }

    /// A weight with `shape` that is made from the weight `name`, whose shape is `published`.
    fn derived(
        &mut self,
        name: &str,
        published: &[usize],
        derived: &Derived,
        shape: &[usize],
    ) -> Result<ValueId, ModelError> {
        self.weights.check(name, published)?;
        Ok(self.graph.weight(&derived.name(name), shape))
    }

    /// Like [`Self::embed`], with each value multiplied by `factor`.
    pub(crate) fn embed_times(
        &mut self,
        name: &str,
        (rows, columns): (usize, usize),
        ids: ValueId,
        factor: f32,
    ) -> Result<ValueId, ModelError> {
        let (name, shape) = (format!("{name}.weight"), [rows, columns]);
        let table = self.derived(&name, &shape, &Derived::Times(factor), &shape)?;
        Ok(self.graph.embed(table, ids)?)
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
        sizes: (usize, usize),
    ) -> Result<ValueId, ModelError> {
        self.linear_with(x, name, sizes, Bias::With)
    }

    /// Like [`Self::linear`], where the bias may be missing.
    pub(crate) fn linear_with(
        &mut self,
        x: ValueId,
        name: &str,
        (inputs, outputs): (usize, usize),
        bias: Bias,
    ) -> Result<ValueId, ModelError> {
        let weight = self.weight(&format!("{name}.weight"), &[outputs, inputs])?;
        let product = self.graph.matmul(x, weight)?;
        match bias {
            Bias::Without => Ok(product),
            Bias::With => {
                let bias = self.weight(&format!("{name}.bias"), &[outputs])?;
                Ok(self.graph.add_bias(product, bias)?)
            }
        }
    }

    /// `x · {name}`, for a matrix `[inputs, outputs]` that is published in the orientation in which it multiplies.
    pub(crate) fn product_of_transposed(
        &mut self,
        x: ValueId,
        name: &str,
        (inputs, outputs): (usize, usize),
    ) -> Result<ValueId, ModelError> {
        let matrix = self.derived(name, &[inputs, outputs], &Derived::Transposed, &[outputs, inputs])?;
        Ok(self.graph.matmul(x, matrix)?)
    }

    /// `x · {rows of name.weight}ᵀ`: the product with the part of a published matrix `[height, inputs]` that makes the
    /// columns `rows`.
    pub(crate) fn product_of_rows(
        &mut self,
        x: ValueId,
        name: &str,
        (inputs, height): (usize, usize),
        rows: Range<usize>,
    ) -> Result<ValueId, ModelError> {
        let (name, shape) = (format!("{name}.weight"), [rows.len(), inputs]);
        let part = self.derived(&name, &[height, inputs], &Derived::Rows(rows), &shape)?;
        Ok(self.graph.matmul(x, part)?)
    }

    /// The rows of `table`, `[positions, inputs]`, projected by the published matrix and bias `name`: `[positions,
    /// outputs]`.
    pub(crate) fn positions(
        &mut self,
        name: &str,
        (positions, inputs, outputs): (usize, usize, usize),
        table: &PositionTable,
    ) -> Result<ValueId, ModelError> {
        self.weights.check(&table.rows, &[positions, inputs])?;
        if let Some((norm, _)) = &table.norm {
            self.weights.check(&format!("{norm}.weight"), &[inputs])?;
            self.weights.check(&format!("{norm}.bias"), &[inputs])?;
        }
        let projected = self.derived(
            &format!("{name}.weight"),
            &[outputs, inputs],
            &Derived::Positions(table.clone()),
            &[positions, outputs],
        )?;
        self.weights.check(&format!("{name}.bias"), &[outputs])?;
        Ok(projected)
    }

    /// `x · rowᵀ`: one column, by row `row` of a published matrix `[height, inputs]`, minus row `less` if there is one.
    pub(crate) fn product_of_row(
        &mut self,
        x: ValueId,
        name: &str,
        (inputs, height): (usize, usize),
        row: usize,
        less: Option<usize>,
    ) -> Result<ValueId, ModelError> {
        let derived = less.map_or(Derived::Rows(row..row + 1), |less| Derived::RowLess(row, less));
        let row = self.derived(&format!("{name}.weight"), &[height, inputs], &derived, &[1, inputs])?;
        Ok(self.graph.matmul(x, row)?)
    }

    /// `activation(gate) · up`, value by value: what stands between the matrices of a gated feed-forward part.
    pub(crate) fn gated(
        &mut self,
        gate: ValueId,
        activation: Activation,
        up: ValueId,
    ) -> Result<ValueId, ModelError> {
        let gate = self.graph.activate(gate, activation)?;
        Ok(self.graph.mul(gate, up)?)
    }

    /// Layer norm of rows of `columns` values, with gain `{name}.weight` and offset `{name}.bias`.
    pub(crate) fn layer_norm(
        &mut self,
        x: ValueId,
        name: &str,
        columns: usize,
        epsilon: f32,
    ) -> Result<ValueId, ModelError> {
        self.layer_norm_with(x, name, columns, epsilon, Bias::With)
    }

    /// Like [`Self::layer_norm`], where the offset may be missing.
    pub(crate) fn layer_norm_with(
        &mut self,
        x: ValueId,
        name: &str,
        columns: usize,
        epsilon: f32,
        offset: Bias,
    ) -> Result<ValueId, ModelError> {
        let gain = self.weight(&format!("{name}.weight"), &[columns])?;
        let offset = match offset {
            Bias::With => Some(self.weight(&format!("{name}.bias"), &[columns])?),
            Bias::Without => None,
        };
        Ok(self.graph.layer_norm(x, gain, offset, epsilon)?)
    }

    /// The gain of a norm of `columns` values, from `{name}.weight`.
    pub(crate) fn gain(&mut self, name: &str, columns: usize, gain: Gain) -> Result<ValueId, ModelError> {
        let name = format!("{name}.weight");
        match gain {
            Gain::Weight => self.weight(&name, &[columns]),
            Gain::OnePlusWeight => self.derived(&name, &[columns], &Derived::Plus(1.0), &[columns]),
        }
    }

    /// RMS norm of rows of `columns` values, with its gain from `{name}.weight`.
    pub(crate) fn rms_norm(
        &mut self,
        x: ValueId,
        name: &str,
        columns: usize,
        epsilon: f32,
        gain: Gain,
    ) -> Result<ValueId, ModelError> {
        let gain = self.gain(name, columns, gain)?;
        Ok(self.graph.rms_norm(x, gain, epsilon)?)
    }

    /// The finished graph.
    pub(crate) fn finish(self) -> Result<Graph, ModelError> {
        Ok(self.graph.finish()?)
    }
}
