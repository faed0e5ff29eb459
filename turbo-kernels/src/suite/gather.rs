//! Heads apart and together again: copies, so every bit must arrive.

use super::{
    WIDTHS,
    matmul::{element, interleaved, separate},
    numbers::Numbers,
    rig::{Rig, refuses_length},
};
use crate::{Gather, gather::HeadShape, matmul::HeadStrides};

/// Copies between the two orders of heads.
///
/// # Panics
/// When a value does not arrive where it belongs.
pub fn gather<D: Gather>(device: &D) {
    for head_dim in WIDTHS {
        let shape = HeadShape { batch_size: 2, num_heads: 3, rows: 5, head_dim };
        check(device, shape, interleaved(0, 3, 5, head_dim), separate(3, 5, head_dim));
        check(device, shape, separate(3, 5, head_dim), interleaved(0, 3, 5, head_dim));
    }
    keys_out_of_merged_rows(device);
    refuses_strides_outside(device);
}

fn check<D: Gather>(device: &D, shape: HeadShape, from: HeadStrides, to: HeadStrides) {
    let HeadShape { batch_size, num_heads, rows, head_dim } = shape;
    let values =
        Numbers::<D::Float>::new(head_dim).values(from.first + batch_size * num_heads * rows * head_dim);
    let mut rig = Rig::new(device);
    let placed = rig.put(&values);
    let out = rig
        .answer(batch_size * num_heads * rows * head_dim, |d, queue, out| {
            d.copy_heads(queue, shape, (placed.view(), from), (out, to))
        })
        .unwrap_or_else(|e| panic!("{shape:?}: {e}"));
    for b in 0..batch_size {
        for h in 0..num_heads {
            for i in 0..rows {
                for j in 0..head_dim {
                    let (got, want) = (out[element(to, b, h, i, j)], values[element(from, b, h, i, j)]);
                    assert!(
                        got.to_bits() == want.to_bits(),
                        "{shape:?} at {:?}: {got} != {want}",
                        (b, h, i, j)
                    );
                }
            }
        }
    }
}

/// The keys in `[rows, 3 · hidden_size]`: strides wider than the values that they reach.
fn keys_out_of_merged_rows<D: Gather>(device: &D) {
    let shape = HeadShape { batch_size: 1, num_heads: 2, rows: 3, head_dim: 4 };
    let from = HeadStrides { first: 8, batch_stride: 72, head_stride: 4, row_stride: 24 };
    let qkv: Vec<f32> = (0..72u8).map(f32::from).collect();
    let mut rig = Rig::new(device);
    let placed = rig.put(&qkv);
    let out = rig
        .answer(24, |d, queue, out| {
            d.copy_heads(queue, shape, (placed.view(), from), (out, separate(2, 3, 4)))
        })
        .expect("the strides fit");
    let want: Vec<f32> = [8u8, 32, 56, 12, 36, 60].iter().flat_map(|&f| (f..f + 4).map(f32::from)).collect();
    assert_eq!(out, want);
}

fn refuses_strides_outside<D: Gather>(device: &D) {
    let shape = HeadShape { batch_size: 1, num_heads: 2, rows: 3, head_dim: 4 };
    let (fits, outside) = (separate(2, 3, 4), HeadStrides { first: 1, ..separate(2, 3, 4) });
    let mut rig = Rig::new(device);
    let placed = rig.put(&[0.0; 24]);
    for (case, from, to) in
        [("copy_heads: reads outside", outside, fits), ("copy_heads: writes outside", fits, outside)]
    {
        let answer =
            rig.answer(24, |d, queue, out| d.copy_heads(queue, shape, (placed.view(), from), (out, to)));
        refuses_length(case, answer);
    }
}
