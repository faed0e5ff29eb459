//! Where the heads of a value lie: arguments of batched products and copies of heads.

use turbo_kernels::{gather::HeadShape, matmul::HeadStrides};

use crate::{
    Program, ValueId,
    dim::Extents,
    graph::Node,
    op::{HeadColumns, Heads},
};

/// Sizes and strides of a tensor of heads.
pub(super) struct HeadPlaces {
    pub(super) num_heads: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) strides: HeadStrides,
}

impl HeadPlaces {
    /// Where the heads of `value` lie, in a batch of these sizes.
    pub(super) fn of(program: &Program, extents: &Extents, value: ValueId, heads: Heads) -> Self {
        let dims = &program.value(value).shape.0;
        let size = |axis: usize| dims.get(axis).map_or(0, |dim| dim.size(extents));
        match heads {
            Heads::Apart => {
                let (num_heads, rows, columns) = (size(1), size(2), size(3));
                let (head_stride, batch_stride) = (rows * columns, num_heads * rows * columns);
                let strides = HeadStrides { first: 0, batch_stride, head_stride, row_stride: columns };
                HeadPlaces { num_heads, rows, columns, strides }
            }
            Heads::Within(columns) => {
                let (rows, width) = (size(1), size(2));
                let strides = HeadStrides {
                    first: columns.first,
                    batch_stride: rows * width,
                    head_stride: columns.head_dim,
                    row_stride: width,
                };
                HeadPlaces { num_heads: columns.num_heads, rows, columns: columns.head_dim, strides }
            }
        }
    }
}

/// The copy that splits or merges heads.
pub(super) struct HeadCopy {
    pub(super) shape: HeadShape,
    pub(super) from: HeadStrides,
    pub(super) to: HeadStrides,
}

impl HeadCopy {
    /// The copy that takes the heads of `node`'s input out of these columns.
    pub(super) fn split(program: &Program, extents: &Extents, node: &Node, columns: HeadColumns) -> Self {
        let from = HeadPlaces::of(program, extents, node.inputs[0], Heads::Within(columns));
        let to = HeadPlaces::of(program, extents, node.output, Heads::Apart);
        HeadCopy::between(extents.batch_size, from, to)
    }

    /// The copy that lays the heads of `node`'s input side by side.
    pub(super) fn merge(program: &Program, extents: &Extents, node: &Node) -> Self {
        let from = HeadPlaces::of(program, extents, node.inputs[0], Heads::Apart);
        let columns = HeadColumns { first: 0, num_heads: from.num_heads, head_dim: from.columns };
        let to = HeadPlaces::of(program, extents, node.output, Heads::Within(columns));
        HeadCopy::between(extents.batch_size, from, to)
    }

    fn between(batch_size: usize, from: HeadPlaces, to: HeadPlaces) -> Self {
        let HeadPlaces { num_heads, rows, columns: head_dim, strides } = from;
        let shape = HeadShape { batch_size, num_heads, rows, head_dim };
        HeadCopy { shape, from: strides, to: to.strides }
    }
}
