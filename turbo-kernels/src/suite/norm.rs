//! Layer norm, alone and behind bias and residual.

use super::{
    ROUNDING, WIDTHS,
    numbers::Numbers,
    rig::{Rig, compare, refuses_length},
    twin,
};
use crate::{Norm, norm::NormWeights};

/// Rows of each case; odd, so that no pairing of rows comes out even.
const ROWS: usize = 5;

/// Layer norms of rows.
///
/// # Panics
/// When the device departs from the twin.
pub fn norm<D: Norm>(device: &D) {
    for hidden_size in WIDTHS.into_iter().chain([384, 768, 1000]) {
        for epsilon in [1e-12, 1e-5] {
            // E[x²] − E[x]² in f32 has no correct digit left at 1e4 ± 1, and hardly one at 100 ± 0.1
            for (center, spread) in [(0.0, 1.0), (1e4, 1.0), (-100.0, 0.1), (0.0, 1e4), (0.0, 1e-4)] {
                check(device, hidden_size, epsilon, center, spread);
            }
        }
    }
    constant_rows_give_the_offset(device);
    keeps_nan_in_its_row(device);
    refuses_wrong_lengths(device);
}

fn check<D: Norm>(device: &D, hidden_size: usize, epsilon: f32, center: f32, spread: f32) {
    let mut numbers = Numbers::new(hidden_size);
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
        compare((name, case), got, &want, |i| allowed[i]);
    }
}

/// The answer and how far each value may be off it.
fn expected(x: &[f32], gain: &[f32], offset: &[f32], epsilon: f32) -> (Vec<f64>, Vec<f64>) {
    let hidden_size = gain.len();
    let (mut want, mut allowed) = (Vec::new(), Vec::new());
    for row in twin::rows(x, hidden_size) {
        let n = hidden_size as f64;
        let mean = row.iter().sum::<f64>() / n;
        let deviation = (row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n + f64::from(epsilon)).sqrt();
        // The mean itself is rounded to f32, and so is a difference to it; n/4 roundings bound sums in any order of
        // random values, generously.
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
        let (x, gain) = (vec![0.7f32; 3 * hidden_size], vec![1.0; hidden_size]);
        let offset = Numbers::new(1).values(hidden_size);
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
        compare(("constant rows", hidden_size), &out, &want, |_| 1e-6);
    }
}

fn keeps_nan_in_its_row<D: Norm>(device: &D) {
    const N: usize = 19;
    let mut x = Numbers::new(3).values(3 * N);
    x[N + 18] = f32::NAN;
    let mut rig = Rig::new(device);
    let (x, ones) = (rig.put(&x), rig.put(&[1.0; N]));
    let out = rig
        .answer(3 * N, |d, queue, out| {
            let weights = NormWeights { gain: ones.view(), offset: Some(ones.view()), epsilon: 1e-12 };
            d.layer_norm(queue, x.view(), weights, out)
        })
        .expect("lengths agree");
    assert!(out.iter().enumerate().all(|(i, v)| v.is_nan() == (i / N == 1)), "layer_norm: NaN left its row");
}

fn refuses_wrong_lengths<D: Norm>(device: &D) {
    let mut rig = Rig::new(device);
    let (six, three, two) = (rig.put(&[0.0; 6]), rig.put(&[0.0; 3]), rig.put(&[0.0; 2]));
    let mut run = |case,
                   x: &super::rig::Placed<D, f32>,
                   gain: &super::rig::Placed<D, f32>,
                   offset: &super::rig::Placed<D, f32>,
                   out_len| {
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
}
