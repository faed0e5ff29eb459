//! Which products a program computes in which dtype.
//!
//! A dtype is set once, for the program. The products of repeated layers take it, and so do products with the
//! vocabulary, which is as large as several layers. Poolers, classifiers and projections outside the layers stay f32:
//! they cost next to nothing, and people read their results. The products that choose experts stay f32, too, since a
//! small error can change the choice. Attention has no weights to pack in int8: then it runs in bf16. Values passed
//! between operators do not depend on the dtype.

use turbo_kernels::DType;

use crate::{
    graph::{Graph, Input, Node, Storage, ValueId},
    op::Op,
};

/// The dtypes of a graph's products.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Precision {
    /// The dtype of the program.
    dtype: DType,
    /// The dtype of every value; empty if the graph is f32 throughout.
    matrices: Vec<DType>,
}

impl Precision {
    /// `dtype` for the products of `graph`.
    pub(crate) fn of(graph: &Graph, dtype: DType) -> Self {
        let mut matrices = Vec::new();
        if dtype != DType::F32 {
            matrices.resize(graph.values.len(), DType::F32);
            for node in graph.nodes().iter().filter(|node| takes_dtype(graph, node)) {
                // a shared matrix is packed once: where one reader takes the dtype, all do
                graph.factors(node).for_each(|matrix| matrices[matrix.index()] = dtype);
            }
        }
        Precision { dtype, matrices }
    }
}

impl Graph {
    /// The dtype in which `node` multiplies; f32 where it does not.
    pub fn dtype(&self, node: &Node) -> DType {
        match (node.op, self.factors(node).next()) {
            (Op::Attention { .. }, _) => self.attention_dtype(),
            (_, Some(matrix)) => self.matrix_dtype(matrix),
            (_, None) => DType::F32,
        }
    }

    /// The end of a line about `node`: ` int8`, or nothing for f32.
    pub(crate) fn dtype_suffix(&self, node: &Node) -> String {
        match self.dtype(node) {
            DType::F32 => String::new(),
            dtype => format!(" {dtype}"),
        }
    }

    /// The dtype in which a matrix of a product is packed.
    pub(crate) fn matrix_dtype(&self, matrix: ValueId) -> DType {
        self.precision.matrices.get(matrix.index()).copied().unwrap_or_default()
    }

    /// The matrices that `node` multiplies by.
    pub(crate) fn factors<'a>(&self, node: &'a Node) -> impl Iterator<Item = ValueId> + use<'a> {
        node.op.factors().iter().map(|&input| node.inputs[input])
    }

    fn attention_dtype(&self) -> DType {
        match self.precision.dtype {
            DType::F32 => DType::F32,
            DType::Bf16 | DType::Int8 => DType::Bf16,
        }
    }
}

/// Whether the products of `node` take the dtype of the program.
fn takes_dtype(graph: &Graph, node: &Node) -> bool {
    let chooses = |reader: &Node| {
        matches!(reader.op, Op::WeighExperts(_) | Op::Experts { .. }) && reader.inputs[1] == node.output
    };
    if graph.nodes().iter().any(chooses) {
        return false;
    }
    node.layer.is_some() || graph.factors(node).any(|matrix| is_vocabulary(graph, matrix))
}

/// Whether a matrix gives a value for every row of the word table.
fn is_vocabulary(graph: &Graph, matrix: ValueId) -> bool {
    let is_words = |ids: &ValueId| graph.value(*ids).storage == Storage::Input(Input::InputIds);
    let tables = graph.nodes().iter().filter_map(|node| {
        let ids = node.inputs.iter().position(is_words)?;
        node.inputs.get(ids.checked_sub(1)?)
    });
    let rows = |value: ValueId| graph.value(value).shape.0.first().copied();
    tables.into_iter().any(|&table| rows(table) == rows(matrix))
}
