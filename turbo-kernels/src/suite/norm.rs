//! Layer norm, alone and after bias and residual; RMS norm, of rows and of heads.

use super::{
    ROUNDING, WIDE, WIDTHS,
    numbers::Numbers,
    rig::{Floats, Rig, compare, refuses_length, refuses_size, rounded},
    twin,
};
use crate::{Columns, Float, HeadSizes, Norm, norm::NormWeights};

/// Rows of each case; odd, so that no pairing of rows comes out even.
const ROWS: usize = 5;

/// Norms of rows.
///
/// # Panics
/// When the device departs from the twin.
pub fn norm<D: Norm>(device: &D) {
    for hidden_size in WIDTHS.into_iter().chain([384, 768, 1000]) {
        every_spread(device, hidden_size);
    }
    for head_dim in WIDTHS.into_iter().chain([64, 128]) {
        // not aligned to vectors, and aligned
        for beside in [[7, 2], [8, 16]] {
            rms_of_heads(device, HeadSizes { num_heads: 3, head_dim }, beside);
        }
    }
    constant_rows_give_the_offset(device);
    keeps_nan_in_its_row(device);
    refuses_wrong_lengths(device);
}

/// Rows of [`super::wide_rows`].
pub(crate) fn wide_rows<D: Norm>(device: &D) {
    for hidden_size in WIDE {
        every_spread(device, hidden_size);
    }
}

fn every_spread<D: Norm>(device: &D, hidden_size: usize) {
    // thousands of squares are still within f32
    let huge = f32::min(1e15, D::Float::GREATEST);
    for epsilon in [1e-12, 1e-5] {
        // in f32, E[x²] − E[x]² has no correct digit left at 1e4 ± 1, and hardly one at 100 ± 0.1
        for (center, spread) in [(0.0, 1.0), (1e4, 1.0), (-100.0, 0.1), (0.0, huge), (0.0, 1e4), (0.0, 1e-4)]
        {
            // so far from 0, a narrow type has only multiples of its unit, 2 · ROUNDING · center: four on each side
            let spread = f32::max(spread, (8.0 * D::Float::ROUNDING) as f32 * f32::abs(center));
            check(device, hidden_size, epsilon, center, spread);
        }
        for spread in [1.0, huge, 1e4, 1e-4] {
            rms_of_rows(device, hidden_size, epsilon, spread);
        }
    }
}

fn check<D: Norm>(device: &D, hidden_size: usize, epsilon: f32, center: f32, spread: f32) {
    let mut numbers = Numbers::<D::Float>::new(hidden_size);
    let x = numbers.around(center, spread, ROWS * hidden_size);
    let residual = numbers.around(0.0, spread, ROWS * hidden_size);
    let bias = numbers.around(0.0, spread, hidden_size);
    let (gain, offset) = (numbers.values(hidden_size), numbers.values(hidden_size));
    let mut rig = Rig::new(device);
    let [on_x, on_residual, on_bias, on_gain, on_offset] =
        [&x, &residual, &bias, &gain, &offset].map(|values| rig.put(values));
    let weights = || NormWeights { gain: on_gain.view(), offset: Some(on_offset.view()), epsilon };

    let case = (hidden_size, epsilon, center, spread);
    let out = rig
        .answer(x.len(), |d, queue, out| d.layer_norm(queue, on_x.view(), weights(), out))
        .unwrap_or_else(|e| panic!("layer_norm {case:?}: {e}"));
    // the sums x + bias + residual are rounded to f32 before the norm, in this order; that is part of the contract
    let summed: Vec<f32> =
        x.iter().enumerate().map(|(i, x)| (x + bias[i % hidden_size]) + residual[i]).collect();
    let fused = rig
        .answer(x.len(), |d, queue, out| {
            d.bias_residual_layer_norm(
                queue,
                on_x.view(),
                Some(on_bias.view()),
                on_residual.view(),
                weights(),
                out,
            )
        })
        .unwrap_or_else(|e| panic!("bias_residual_layer_norm {case:?}: {e}"));
    for (name, input, got) in [("layer_norm", &x, &out), ("bias_residual_layer_norm", &summed, &fused)] {
        let (want, allowed) = expected(input, &gain, &offset, epsilon);
        compare::<D::Float>((name, case), got, &want, |i| allowed[i]);
    }

    // as checkpoints without biases need it
    let bare = || NormWeights { gain: on_gain.view(), offset: None, epsilon };
    let out = rig
        .answer(x.len(), |d, queue, out| d.layer_norm(queue, on_x.view(), bare(), out))
        .unwrap_or_else(|e| panic!("layer_norm {case:?}: {e}"));
    let summed: Vec<f32> = x.iter().zip(&residual).map(|(x, residual)| x + residual).collect();
    let fused = rig
        .answer(x.len(), |d, queue, out| {
            d.bias_residual_layer_norm(queue, on_x.view(), None, on_residual.view(), bare(), out)
        })
        .unwrap_or_else(|e| panic!("bias_residual_layer_norm {case:?}: {e}"));
    let zeros = vec![0.0; hidden_size];
    for (name, input, got) in [("no offset", &x, &out), ("no offset, no bias", &summed, &fused)] {
        let (want, allowed) = expected(input, &gain, &zeros, epsilon);
        compare::<D::Float>((name, case), got, &want, |i| allowed[i]);
    }
}

fn rms_of_rows<D: Norm>(device: &D, hidden_size: usize, epsilon: f32, spread: f32) {
    let mut numbers = Numbers::<D::Float>::new(hidden_size);
    let x = numbers.around(0.0, spread, ROWS * hidden_size);
    let gain = numbers.values(hidden_size);
    let mut rig = Rig::new(device);
    let (on_x, on_gain) = (rig.put(&x), rig.put(&gain));
    let case = ("rms_norm", hidden_size, epsilon, spread);
    let out = rig
        .answer(x.len(), |d, queue, out| d.rms_norm(queue, on_x.view(), on_gain.view(), epsilon, out))
        .unwrap_or_else(|e| panic!("{case:?}: {e}"));
    compare_rms::<D::Float>(case, &out, &x, &gain, epsilon);
}

/// Heads with `first` columns before and `behind` columns behind them.
fn rms_of_heads<D: Norm>(device: &D, heads: HeadSizes, [first, behind]: [usize; 2]) {
    let (width, epsilon) = (heads.width(), 1e-6);
    let mut numbers = Numbers::<D::Float>::new(width);
    let (x, gain) = (numbers.values(ROWS * width), numbers.values(heads.head_dim));
    let row_stride = first + width + behind;
    let mut wide = vec![f32::NAN; ROWS * row_stride];
    for (row, wide) in x.chunks_exact(width).zip(wide.chunks_exact_mut(row_stride)) {
        wide[first..first + width].copy_from_slice(row);
    }
    let mut rig = Rig::new(device);
    let (wide, on_gain) = (rig.put(&wide), rig.put(&gain));
    let out = rig
        .answer(x.len(), |d, queue, out| {
            let x = Columns { rows: wide.view(), first, row_stride };
            d.head_rms_norm(queue, heads, x, on_gain.view(), epsilon, out)
        })
        .unwrap_or_else(|e| panic!("head_rms_norm {heads:?}: {e}"));
    compare_rms::<D::Float>(("head_rms_norm", heads), &out, &x, &gain, epsilon);
}

/// Rows as long as `gain`.
fn compare_rms<F: Float>(case: impl std::fmt::Debug, got: &[f32], x: &[f32], gain: &[f32], epsilon: f32) {
    let want: Vec<f64> = twin::rows(x, gain.len())
        .flat_map(|row| twin::rms_normalize(&row, epsilon.into()))
        .zip(gain.iter().cycle())
        .map(|(y, &gain)| y * f64::from(gain))
        .collect();
    // n/2 roundings of a sum of positive values, halved by the root; mean, epsilon, root, inverse and two products
    let relative = ROUNDING * (gain.len() as f64 / 2.0 + 6.0);
    compare::<F>(case, got, &want, |i| relative * want[i].abs() + 1e-37);
}

/// The answer, and the tolerance of each value.
fn expected(x: &[f32], gain: &[f32], offset: &[f32], epsilon: f32) -> (Vec<f64>, Vec<f64>) {
    let hidden_size = gain.len();
    let (mut want, mut allowed) = (Vec::new(), Vec::new());
    for row in twin::rows(x, hidden_size) {
        let n = hidden_size as f64;
        let mean = row.iter().sum::<f64>() / n;
        let deviation = (row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n + f64::from(epsilon)).sqrt();
        // The mean itself is rounded to f32, and so is a difference to it; n/4 roundings are a generous bound for sums
        // of random values in any order.
        let of_mean = ROUNDING * mean.abs() / deviation;
        let of_sums = ROUNDING * (n / 4.0 + 8.0);
        for (i, y) in twin::normalize(&row, epsilon.into()).into_iter().enumerate() {
            let (gain, offset) = (f64::from(gain[i]), f64::from(offset[i]));
            want.push(y * gain + offset);
            allowed.push(gain.abs() * (of_mean + of_sums * (1.0 + y.abs())) + 2.0 * ROUNDING * offset.abs());
        }
    }
    (want, allowed)
}

/// A row without spread is its mean: `(x − mean)` must be 0, or an epsilon of 1e-12 blows it up a million times.
fn constant_rows_give_the_offset<D: Norm>(device: &D) {
    for hidden_size in [5, 33, 768] {
        let (x, gain) = (vec![rounded::<D::Float>(0.7); 3 * hidden_size], vec![1.0; hidden_size]);
        let offset = Numbers::<D::Float>::new(1).values(hidden_size);
        let mut rig = Rig::new(device);
        let [x, gain, on_offset] = [&x, &gain, &offset].map(|values| rig.put(values));
        let out = rig
            .answer(3 * hidden_size, |d, queue, out| {
                let weights =
                    NormWeights { gain: gain.view(), offset: Some(on_offset.view()), epsilon: 1e-12 };
                d.layer_norm(queue, x.view(), weights, out)
            })
            .expect("lengths agree");
        let want: Vec<f64> = offset.iter().cycle().take(out.len()).map(|&v| v.into()).collect();
        compare::<D::Float>(("constant rows", hidden_size), &out, &want, |_| 1e-6);
    }
}

fn keeps_nan_in_its_row<D: Norm>(device: &D) {
    for hidden_size in [19, 24] {
        let mut x = Numbers::<D::Float>::new(3).values(3 * hidden_size);
        x[2 * hidden_size - 1] = f32::NAN;
        let mut rig = Rig::new(device);
        let (x, ones) = (rig.put(&x), rig.put(&vec![1.0; hidden_size]));
        let weights = || NormWeights { gain: ones.view(), offset: Some(ones.view()), epsilon: 1e-12 };
        let layer_norm = rig.answer(3 * hidden_size, |d, q, out| d.layer_norm(q, x.view(), weights(), out));
        let rms_norm =
            rig.answer(3 * hidden_size, |d, q, out| d.rms_norm(q, x.view(), ones.view(), 1e-12, out));
        for (name, out) in [("layer_norm", layer_norm), ("rms_norm", rms_norm)] {
            let out = out.expect("lengths agree");
            let kept = out.iter().enumerate().all(|(i, v)| v.is_nan() == (i / hidden_size == 1));
            assert!(kept, "{name}: NaN left its row or was lost: {out:?}");
        }
    }
}

fn refuses_wrong_lengths<D: Norm>(device: &D) {
    let mut rig = Rig::new(device);
    let (six, three, two) = (rig.put(&[0.0; 6]), rig.put(&[0.0; 3]), rig.put(&[0.0; 2]));
    let mut run = |case, x: &Floats<D>, gain: &Floats<D>, offset: &Floats<D>, out_len| {
        let answer = rig.answer(out_len, |d, queue, out| {
            let weights = NormWeights { gain: gain.view(), offset: Some(offset.view()), epsilon: 1e-12 };
            d.layer_norm(queue, x.view(), weights, out)
        });
        refuses_length(case, answer);
    };
    run("layer_norm: offset too short", &six, &three, &two, 6);
    run("layer_norm: x too short", &three, &three, &three, 6);
    run("layer_norm: no whole rows", &six, &three, &three, 5);
    let weights = || NormWeights { gain: three.view(), offset: Some(three.view()), epsilon: 1e-12 };
    for (case, bias, residual) in [
        ("bias_residual_layer_norm: bias too short", &two, &six),
        ("bias_residual_layer_norm: residual too short", &three, &three),
    ] {
        let answer = rig.answer(6, |d, queue, out| {
            d.bias_residual_layer_norm(queue, six.view(), Some(bias.view()), residual.view(), weights(), out)
        });
        refuses_length(case, answer);
    }
    refuses_length("rms_norm", rig.answer(5, |d, q, out| d.rms_norm(q, six.view(), three.view(), 1e-6, out)));
    refuses_length("rms_norm", rig.answer(6, |d, q, out| d.rms_norm(q, two.view(), three.view(), 1e-6, out)));
    let mut heads = |num_heads, head_dim, first, row_stride, gain: &Floats<D>, out_len| {
        rig.answer(out_len, |d, q, out| {
            let x = Columns { rows: six.view(), first, row_stride };
            d.head_rms_norm(q, HeadSizes { num_heads, head_dim }, x, gain.view(), 1e-6, out)
        })
    };
    assert!(heads(1, 2, 1, 3, &two, 4).is_ok(), "head_rms_norm: everything fits");
    refuses_length("head_rms_norm: gain of another head", heads(1, 2, 1, 3, &three, 4));
    refuses_length("head_rms_norm: out too short", heads(1, 2, 1, 3, &two, 2));
    refuses_size("head_rms_norm: columns leave the row", heads(1, 2, 2, 3, &two, 4));
}
