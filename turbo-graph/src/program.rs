//! A fused graph in its final order and layout, and what planning needs to know of it.

use turbo_alloc::UsageRecord;
use turbo_kernels::DType;

use crate::{
    GraphError,
    dim::Extents,
    fold::Slots,
    graph::{Graph, Node, Value, ValueId},
    passes::{self, Pass},
    precision::Precision,
    verify,
};

/// How the sequences of a batch share a tensor of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayoutKind {
    /// One block of rows per sequence, all as long as the longest.
    Padded,
    /// Rows of all sequences one after the other.
    Packed,
}

/// A graph ready to be bound: fused, ordered, laid out, its values assigned to planning slots.
#[derive(Clone, Debug)]
pub struct Program {
    graph: Graph,
    layout: LayoutKind,
    slots: Slots,
}

/// What one step of compilation made of a graph.
#[derive(Clone, Debug)]
pub struct TraceStep {
    /// The pass.
    pub pass: &'static str,
    /// How many places it rewrote; for the packed layout, how many shapes.
    pub rewrites: usize,
    /// The graph after it.
    pub graph: Graph,
}

impl Program {
    /// Fuses `graph` with `passes` and lays it out.
    ///
    /// # Errors
    /// [`GraphError::NotPackable`] if the packed layout is requested and an operator is left that needs padded rows:
    /// the layout requires the attention pass, which finds `softmax(mask(q·kᵀ))·v` whose intermediate results nothing
    /// else reads. [`GraphError::Malformed`] if a pass breaks a rule, which is a defect of the pass.
    pub fn compile(graph: &Graph, layout: LayoutKind, passes: &[Pass]) -> Result<Self, GraphError> {
        Self::compile_traced(graph, layout, passes, |_| ())
    }

    /// As [`Program::compile`], but calls `show` with the graph after each pass.
    ///
    /// # Errors
    /// As [`Program::compile`].
    pub fn compile_traced(
        graph: &Graph,
        layout: LayoutKind,
        passes: &[Pass],
        mut show: impl FnMut(TraceStep),
    ) -> Result<Self, GraphError> {
        let mut graph = graph.clone();
        for pass in passes {
            let rewrites = pass.run(&mut graph);
            verify::verify(&graph, pass.name)?;
            show(TraceStep { pass: pass.name, rewrites, graph: graph.clone() });
        }
        if layout == LayoutKind::Packed {
            let rewrites = passes::pack(&mut graph)?;
            verify::verify(&graph, "pack")?;
            show(TraceStep { pass: "pack", rewrites, graph: graph.clone() });
        }
        let slots = Slots::of(&graph);
        Ok(Program { graph, layout, slots })
    }

    /// This program with the products of its layers, and those with the vocabulary, in `dtype`. From now on the costs
    /// and printed forms of the graph are of that dtype. A new program is f32.
    #[must_use]
    pub fn with_dtype(mut self, dtype: DType) -> Self {
        self.graph.precision = Precision::of(&self.graph, dtype);
        self
    }

    /// This program with activations of `element_bytes` per value, as on the device that it will run on. A new program
    /// has those of f32.
    #[must_use]
    pub fn with_element_bytes(mut self, element_bytes: usize) -> Self {
        self.slots.element_bytes = element_bytes;
        self
    }

    /// Bytes of one value of an activation or an output.
    pub fn element_bytes(&self) -> usize {
        self.slots.element_bytes
    }

    /// The fused graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// How rows are laid out.
    pub fn layout(&self) -> LayoutKind {
        self.layout
    }

    /// The nodes in the order in which they run.
    pub fn nodes(&self) -> &[Node] {
        self.graph.nodes()
    }

    /// The nodes that the output of this name needs, in order; empty if there is no such output.
    pub fn nodes_for(&self, output: &str) -> Vec<&Node> {
        let value = self.graph.outputs().find(|(_, name)| *name == output).map(|(value, _)| value);
        let mut positions = value.map_or_else(Vec::new, |value| self.needed_for(value));
        positions.reverse();
        positions.into_iter().map(|position| &self.nodes()[position]).collect()
    }

    /// The positions of the nodes that `value` needs, the last one first.
    pub(crate) fn needed_for(&self, value: ValueId) -> Vec<usize> {
        let mut needed = vec![false; self.graph.values.len()];
        needed[value.index()] = true;
        let mut positions = Vec::new();
        for (position, node) in self.nodes().iter().enumerate().rev() {
            if needed[node.output.index()] {
                node.inputs.iter().for_each(|input| needed[input.index()] = true);
                positions.push(position);
            }
        }
        positions
    }

    /// A value of the fused graph.
    pub fn value(&self, id: ValueId) -> &Value {
        self.graph.value(id)
    }

    /// What is planned: one record per slot, repeated layers once.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Usage records of every activation for a batch, unfolded: what a checker compares a plan with.
    ///
    /// Sizes in bytes; operator indices are positions in [`Program::nodes`].
    pub fn usage_records(&self, extents: &Extents) -> Vec<(ValueId, UsageRecord)> {
        crate::fold::activations(&self.graph)
            .into_iter()
            .map(|life| (life.value, life.record(&self.graph, extents, self.slots.element_bytes)))
            .collect()
    }
}
