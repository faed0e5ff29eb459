//! The two batched products of unfused attention, in the memory orders that attention uses.

use super::{
    ROUNDING, WIDTHS,
    numbers::Numbers,
    rig::{Rig, compare, refuses_length, refuses_size},
    twin::Product,
};
use crate::{
    BatchedMatMul,
    matmul::{HeadStrides, MatMulShape, Rhs},
};

/// `q · kᵀ` and `p · v` for every sequence and head.
///
/// # Panics
/// When the device departs from the twin.
pub fn matmul<D: BatchedMatMul>(device: &D) {
    for width in WIDTHS {
        for (m, n, k) in [(3, width, 8), (3, 8, width), (width, 5, 16)] {
            for rhs in [Rhs::Normal, Rhs::Transposed] {
                for num_kv_heads in [4, 2, 1] {
                    check(device, MatMulShape { batch_size: 2, num_heads: 4, num_kv_heads, m, n, k }, rhs);
                }
            }
        }
    }
    check(
        device,
        MatMulShape { batch_size: 1, num_heads: 2, num_kv_heads: 2, m: 50, n: 100, k: 64 },
        Rhs::Transposed,
    );
    check(
        device,
        MatMulShape { batch_size: 1, num_heads: 2, num_kv_heads: 2, m: 50, n: 64, k: 100 },
        Rhs::Normal,
    );
    refuses_strides_outside(device);
}

/// Heads side by side in a row, `[batch_size, rows, num_heads, columns]` behind `first` other values.
pub(super) fn interleaved(first: usize, num_heads: usize, rows: usize, columns: usize) -> HeadStrides {
    let row_stride = num_heads * columns;
    HeadStrides { first, batch_stride: rows * row_stride, head_stride: columns, row_stride }
}

/// Heads one after another, `[batch_size, num_heads, rows, columns]`.
pub(super) fn separate(num_heads: usize, rows: usize, columns: usize) -> HeadStrides {
    let head_stride = rows * columns;
    HeadStrides { first: 0, batch_stride: num_heads * head_stride, head_stride, row_stride: columns }
}

/// Element `(b, h, i, j)`.
pub(super) fn element(strides: HeadStrides, b: usize, h: usize, i: usize, j: usize) -> usize {
    strides.first + b * strides.batch_stride + h * strides.head_stride + i * strides.row_stride + j
}

fn check<D: BatchedMatMul>(device: &D, shape: MatMulShape, rhs: Rhs) {
    let MatMulShape { batch_size, num_heads, num_kv_heads, m, n, k } = shape;
    let heads = batch_size * num_heads;
    let (b_rows, b_columns) = match rhs {
        Rhs::Normal => (k, n),
        Rhs::Transposed => (n, k),
    };
    let mut numbers = Numbers::<D::Float>::new(m * 31 + n * 7 + k);
    let a = numbers.values(heads * m * k + 3);
    let b = numbers.values(batch_size * num_kv_heads * b_rows * b_columns + 5);
    let a_at = interleaved(3, num_heads, m, k);
    let b_at = interleaved(5, num_kv_heads, b_rows, b_columns);
    let out_at = separate(num_heads, m, n);

    let mut want = vec![Product::default(); heads * m * n];
    for s in 0..batch_size {
        for h in 0..num_heads {
            for i in 0..m {
                for j in 0..n {
                    let b_element = |x| match rhs {
                        Rhs::Normal => element(b_at, s, h / (num_heads / num_kv_heads), x, j),
                        Rhs::Transposed => element(b_at, s, h / (num_heads / num_kv_heads), j, x),
                    };
                    want[element(out_at, s, h, i, j)] = Product::sum(
                        (0..k).map(|x| (a[element(a_at, s, h, i, x)].into(), b[b_element(x)].into())),
                    );
                }
            }
        }
    }

    let mut rig = Rig::new(device);
    let (a, b) = (rig.put(&a), rig.put(&b));
    let out = rig
        .answer(want.len(), |d, queue, out| {
            d.batched_matmul(queue, shape, (a.view(), a_at), (b.view(), b_at, rhs), (out, out_at))
        })
        .unwrap_or_else(|e| panic!("{shape:?} {rhs:?}: {e}"));
    let values: Vec<f64> = want.iter().map(|p| p.value).collect();
    // k roundings of the sum of magnitudes, or 2k without FMA
    compare::<D::Float>((shape, rhs), &out, &values, |i| ROUNDING * (2 * k) as f64 * want[i].magnitude);
}

fn refuses_strides_outside<D: BatchedMatMul>(device: &D) {
    let shape = MatMulShape { batch_size: 2, num_heads: 2, num_kv_heads: 2, m: 3, n: 3, k: 3 };
    let mut rig = Rig::new(device);
    let values = rig.put(&[0.0; 36]);
    let fits = separate(2, 3, 3);
    let outside = HeadStrides { first: 1, ..fits };
    for (case, a, b, out_at) in [
        ("matmul: a ends outside", outside, fits, fits),
        ("matmul: b ends outside", fits, outside, fits),
        ("matmul: out ends outside", fits, fits, outside),
    ] {
        let answer = rig.answer(36, |d, queue, out| {
            d.batched_matmul(queue, shape, (values.view(), a), (values.view(), b, Rhs::Normal), (out, out_at))
        });
        refuses_length(case, answer);
    }
    for num_kv_heads in [0, 3, 4] {
        let shape = MatMulShape { num_kv_heads, ..shape };
        let (a, b) = ((values.view(), fits), (values.view(), fits, Rhs::Normal));
        let answer = rig.answer(36, |d, queue, out| d.batched_matmul(queue, shape, a, b, (out, fits)));
        refuses_size("matmul: heads do not divide", answer);
    }
}
