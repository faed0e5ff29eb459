//! Which products a program computes in which dtype.
//!
//! A dtype is asked for once, for the program. The products of repeated layers take it, and so do those with the
//! vocabulary, which is as large as several layers; poolers, classifiers and projections outside the layers stay f32:
//! they cost next to nothing, and what they give is read by people. Matrices that are named as sensitive, and the others
//! of their operator, stay bf16 where int8 is asked for. Attention has no weights to be packed in int8: it follows in
//! bf16. What is handed from one operator to the next is f32 in any case.

use turbo_kernels::DType;

use crate::{
    graph::{Graph, Input, Node, Storage, ValueId},
    op::Op,
};

/// The dtypes of a graph's products.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Precision {
    /// What was asked for.
    dtype: DType,
    /// Of every value; nothing is said of a graph that is f32 throughout.
    matrices: Vec<DType>,
    /// Matrices that int8 was asked of, and that stay bf16.
    kept: Vec<String>,
}

impl Precision {
    /// `dtype` for the products of `graph`, but for those with a matrix that has a tensor of `sensitive`.
    pub(crate) fn of(graph: &Graph, dtype: DType, sensitive: &[String]) -> Self {
        let mut precision = Precision { dtype, ..Precision::default() };
        if dtype == DType::F32 {
            return precision;
        }
        precision.matrices = vec![DType::F32; graph.values.len()];
        let is_sensitive = |value: ValueId| match &graph.value(value).storage {
            Storage::Weight(parts) => parts.iter().any(|part| sensitive.contains(&part.name)),
            _ => false,
        };
        for node in graph.nodes().iter().filter(|node| takes_dtype(graph, node)) {
            let keeps = dtype == DType::Int8 && graph.factors(node).any(is_sensitive);
            for value in graph.factors(node) {
                // a shared matrix is packed once: what one reader keeps, all do
                let known = &mut precision.matrices[value.index()];
                *known = if keeps || *known == DType::Bf16 { DType::Bf16 } else { dtype };
            }
        }
        if dtype == DType::Int8 {
            let kept = |(index, _): &(usize, &DType)| precision.matrices[*index] == DType::Bf16;
            let kept = precision.matrices.iter().enumerate().filter(kept);
            let names = kept.map(|(index, _)| graph.values[index].storage.weight_name());
            precision.kept = names.collect();
        }
        precision
    }
}

impl Graph {
    /// What was asked of this graph's products; not all of them need have it, see [`Graph::dtype`].
    pub fn asked_dtype(&self) -> DType {
        self.precision.dtype
    }

    /// The dtype in which `node` multiplies; f32 where it does not.
    pub fn dtype(&self, node: &Node) -> DType {
        match (node.op, self.factors(node).next()) {
            (Op::Attention { .. }, _) => self.attention_dtype(),
            (_, Some(matrix)) => self.matrix_dtype(matrix),
            (_, None) => DType::F32,
        }
    }

    /// The matrices that are bf16 where int8 was asked for, as [`GraphBuilder::weight`](crate::GraphBuilder::weight)
    /// named their tensors, those that were merged joined by `+`.
    pub fn kept_in_bf16(&self) -> &[String] {
        &self.precision.kept
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

/// Whether the products of `node` take the dtype that is asked for.
fn takes_dtype(graph: &Graph, node: &Node) -> bool {
    node.layer.is_some()
        || node.op == Op::LinearMaxPool
        || graph.factors(node).any(|matrix| is_vocabulary(graph, matrix))
}

/// Whether a matrix gives a value for every row of the table of words.
fn is_vocabulary(graph: &Graph, matrix: ValueId) -> bool {
    let is_words = |ids: &ValueId| graph.value(*ids).storage == Storage::Input(Input::InputIds);
    let tables = graph.nodes().iter().filter_map(|node| {
        let ids = node.inputs.iter().position(is_words)?;
        node.inputs.get(ids.checked_sub(1)?)
    });
    let rows = |value: ValueId| graph.value(value).shape.0.first().copied();
    tables.into_iter().any(|&table| rows(table) == rows(matrix))
}
