//! A graph of operators over values.

use crate::{
    dim::{Dim, Shape},
    op::Op,
    precision::Precision,
    rotary::RotaryTable,
};

/// The id of a value; meaningful only in its own graph.
///
/// # Panics
/// A function that is given an id of another graph or builder panics, or uses the wrong value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) u32);

impl ValueId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// An input that a batch provides, one `u32` per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Row numbers in the word table.
    InputIds,
    /// Row numbers in the segment table.
    TokenTypeIds,
    /// Row numbers in the position table; not an argument, since they follow from the sequences.
    PositionIds(Positions),
}

/// How the tokens of a sequence are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Positions {
    /// 0, 1, 2, … from the start of each sequence.
    FromZero,
    /// As in RoBERTa: tokens other than `pad_id` are numbered `pad_id + 1`, `pad_id + 2`, …; tokens that are `pad_id`
    /// get `pad_id`.
    AfterPad {
        /// The id of the padding token.
        pad_id: u32,
    },
}

/// A named tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedWeight {
    /// As published.
    pub name: String,
    /// As published.
    pub shape: Vec<usize>,
}

/// Where a value lives, and so who owns its bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Storage {
    /// Constant: tensors of the checkpoint, concatenated along the first axis.
    Weight(Vec<NamedWeight>),
    /// Constant: computed when the program is loaded.
    Computed(RotaryTable),
    /// Provided by the batch.
    Input(Input),
    /// Passed between operators: its memory is planned, and it is gone after the batch.
    Activation,
    /// Read by the caller: has memory of its own.
    Output(String),
}

impl Storage {
    /// The names of the tensors that a constant is made of, joined by `+`; empty if the value is not a constant of the
    /// checkpoint.
    pub(crate) fn weight_name(&self) -> String {
        match self {
            Storage::Weight(parts) => {
                parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join("+")
            }
            _ => String::new(),
        }
    }
}

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Its axes.
    pub shape: Shape,
    /// Where it lives.
    pub storage: Storage,
}

/// An operator applied to values.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// Its inputs, in the operator's order.
    pub inputs: Vec<ValueId>,
    /// The result.
    pub output: ValueId,
    /// The repeated layer that the node belongs to.
    pub layer: Option<u32>,
}

/// Operators in an order in which they can run.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    pub(crate) name: String,
    pub(crate) values: Vec<Value>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) precision: Precision,
}

impl Graph {
    /// The name of the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The operators in order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// Every value that a node reads or writes, in order of id.
    pub fn live_values(&self) -> impl Iterator<Item = (ValueId, &Value)> {
        let mut live = vec![false; self.values.len()];
        for node in &self.nodes {
            node.inputs.iter().for_each(|input| live[input.index()] = true);
            live[node.output.index()] = true;
        }
        self.values
            .iter()
            .enumerate()
            .filter(move |(index, _)| live[*index])
            .map(|(index, value)| (id(index), value))
    }

    /// The named results.
    pub fn outputs(&self) -> impl Iterator<Item = (ValueId, &str)> {
        self.values.iter().enumerate().filter_map(|(index, value)| match &value.storage {
            Storage::Output(name) => Some((id(index), name.as_str())),
            _ => None,
        })
    }

    /// `[out_features, in_features]` of the matrix of a product.
    pub(crate) fn matrix(&self, value: ValueId) -> [usize; 2] {
        match self.value(value).shape.0[..] {
            [Dim::Fixed(out_features), Dim::Fixed(in_features)] => [out_features, in_features],
            _ => unreachable!("the verifier checked that a factor is a matrix of fixed size"),
        }
    }

    /// The widths of rows before a product, between two products (of one expert, if there are several) and after, with
    /// a space in front: `384→1536→384`. Empty for a node without a product.
    pub(crate) fn widths(&self, node: &Node) -> String {
        let mut factors = self.factors(node).map(|matrix| self.matrix(matrix));
        match (factors.next(), factors.next()) {
            (Some([out, width]), None) => format!(" {width}→{out}"),
            (Some([_, width]), Some([out, inner])) => {
                let inner = if let Op::Experts { routing, .. } = node.op {
                    inner / routing.num_experts
                } else {
                    inner
                };
                format!(" {width}→{inner}→{out}")
            }
            (None, _) => String::new(),
        }
    }

    /// The position of the first node of each kind. Nodes are of one kind if they apply the same operator to values of
    /// the same shapes, with matrices of the same dtype.
    pub(crate) fn distinct_nodes(&self) -> Vec<usize> {
        let shapes = |node: &Node| {
            let values = node.inputs.iter().chain([&node.output]);
            values.map(|&value| &self.value(value).shape).collect::<Vec<_>>()
        };
        let dtype = |matrix| self.matrix_dtype(matrix);
        let mut distinct: Vec<usize> = Vec::new();
        for (position, node) in self.nodes.iter().enumerate() {
            let alike = |&other: &usize| {
                let other = &self.nodes[other];
                other.op == node.op
                    && shapes(other) == shapes(node)
                    && self.factors(other).map(dtype).eq(self.factors(node).map(dtype))
            };
            if !distinct.iter().any(alike) {
                distinct.push(position);
            }
        }
        distinct
    }

    pub(crate) fn add_value(&mut self, shape: Shape, storage: Storage) -> ValueId {
        self.values.push(Value { shape, storage });
        id(self.values.len() - 1)
    }

    /// The constant made of these tensors; equal arguments give the same value.
    pub(crate) fn weight(&mut self, shape: Shape, tensors: Vec<NamedWeight>) -> ValueId {
        self.constant(shape, Storage::Weight(tensors))
    }

    /// These tensors, at least one and all as wide as the first, stacked into one constant.
    pub(crate) fn stack(&mut self, tensors: Vec<NamedWeight>) -> ValueId {
        let mut shape = tensors[0].shape.clone();
        shape[0] = tensors.iter().map(|tensor| tensor.shape[0]).sum();
        self.weight(Shape::fixed(&shape), tensors)
    }

    pub(crate) fn constant(&mut self, shape: Shape, storage: Storage) -> ValueId {
        match self.values.iter().position(|value| value.storage == storage) {
            Some(known) => id(known),
            None => self.add_value(shape, storage),
        }
    }

    /// The node that computes `value`.
    pub(crate) fn producer(&self, value: ValueId) -> Option<usize> {
        self.nodes.iter().position(|node| node.output == value)
    }

    /// The only node that reads `value`; `None` if several do, or if the caller reads it too.
    pub(crate) fn only_reader(&self, value: ValueId) -> Option<usize> {
        if self.value(value).storage != Storage::Activation {
            return None;
        }
        let mut readers = (0..self.nodes.len()).filter(|&node| self.nodes[node].inputs.contains(&value));
        let reader = readers.next()?;
        readers.next().is_none().then_some(reader)
    }

    /// The node that computes `value`, if exactly one input of one node reads it, so that the two nodes can be fused. A
    /// node that reads a value twice, say as factor and as residual, would still need it after the fusion.
    pub(crate) fn private_producer(&self, value: ValueId) -> Option<usize> {
        let reader = &self.nodes[self.only_reader(value)?];
        let reads = reader.inputs.iter().filter(|input| **input == value).count();
        if reads == 1 { self.producer(value) } else { None }
    }
}

fn id(index: usize) -> ValueId {
    ValueId(u32::try_from(index).expect("a graph has fewer than 2³² values"))
}
