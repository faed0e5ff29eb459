//! Where the heads of a value lie: arguments of batched products and copies of heads.

use turbo_kernels::{gather::HeadShape, matmul::HeadStrides};

use crate::{
    Program, ValueId,
    dim::Extents,
    graph::Node,
    op::{HeadColumns, Heads, Op},
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
    /// The copy that `node` makes, if it is nothing but a copy.
    pub(super) fn of(program: &Program, extents: &Extents, node: &Node) -> Option<Self> {
        let places = |value, heads| HeadPlaces::of(program, extents, value, heads);
        let (from, to) = match node.op {
            Op::SplitHeads(columns) => {
                (places(node.inputs[0], Heads::Within(columns)), places(node.output, Heads::Apart))
            }
            Op::MergeHeads => {
                let from = places(node.inputs[0], Heads::Apart);
                let columns = HeadColumns { first: 0, num_heads: from.num_heads, head_dim: from.columns };
                (from, places(node.output, Heads::Within(columns)))
            }
            _ => return None,
        };
        let shape = HeadShape {
            batch_size: extents.batch_size,
            num_heads: from.num_heads,
            rows: from.rows,
            head_dim: from.columns,
        };
        Some(HeadCopy { shape, from: from.strides, to: to.strides })
    }
}
