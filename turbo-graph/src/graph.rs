//! A graph of operators over values.

use crate::{
    dim::{Dim, Shape},
    op::Op,
    precision::Precision,
    rotary::RotaryTable,
};

/// A value of a graph; means nothing to another graph.
///
/// # Panics
/// What takes a value panics, or takes another one, when it is given that of another graph or builder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) u32);

impl ValueId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a batch brings with it, one `u32` per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Rows of the word table.
    InputIds,
    /// Rows of the segment table.
    TokenTypeIds,
    /// Rows of the position table; not an argument, they follow from the sequences.
    PositionIds(Positions),
}

/// How the tokens of a sequence are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Positions {
    /// 0, 1, 2, … from the start of each sequence.
    FromZero,
    /// As in RoBERTa: `pad_id + 1`, `pad_id + 2`, … over the tokens that are not `pad_id`; those that are stay at
    /// `pad_id`.
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

/// Where a value lives, and so what owns its bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Storage {
    /// Constant: tensors of the checkpoint, one below the other along the first axis.
    Weight(Vec<NamedWeight>),
    /// Constant: made when the program is loaded.
    Computed(RotaryTable),
    /// Brought by the batch.
    Input(Input),
    /// Between two operators: planned, and gone after the batch.
    Activation,
    /// Read by the caller: has memory of its own.
    Output(String),
}

impl Storage {
    /// The tensors that a constant is made of, joined by `+`; nothing for what is no constant of a checkpoint.
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
    /// Of what, in the operator's order.
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
    /// What the model calls itself.
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

    /// How wide rows are before a product and after it, and between two of them: `384→1536→384`, those of one expert
    /// where there are several; nothing for what does not multiply.
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

    /// Of nodes that do the same to values of the same shapes, in the same dtype, the first; by position.
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

    /// The constant that these tensors are below each other, at least one and as wide as the first.
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

    /// The node that reads `value`, when there is just one and the caller does not read it too.
    pub(crate) fn only_reader(&self, value: ValueId) -> Option<usize> {
        if self.value(value).storage != Storage::Activation {
            return None;
        }
        let mut readers = (0..self.nodes.len()).filter(|&node| self.nodes[node].inputs.contains(&value));
        let reader = readers.next()?;
        readers.next().is_none().then_some(reader)
    }

    /// The node that computes `value` for one input of one reader, so that both nodes may become one. A node that reads
    /// a value twice, say as factor and as residual, still needs it after taking in what computes it.
    pub(crate) fn private_producer(&self, value: ValueId) -> Option<usize> {
        let reader = &self.nodes[self.only_reader(value)?];
        let reads = reader.inputs.iter().filter(|input| **input == value).count();
        if reads == 1 { self.producer(value) } else { None }
    }
}

fn id(index: usize) -> ValueId {
    ValueId(u32::try_from(index).expect("a graph has fewer than 2³² values"))
}
