//! The textbook in `f64`: one loop per index, nothing clever.

use crate::{Activation, AttentionMask, DType, PositionBuckets};

/// A sum of products, and the sum of their magnitudes, which bounds the error of every order of addition.
#[derive(Clone, Copy, Default)]
pub(super) struct Product {
    pub(super) value: f64,
    pub(super) magnitude: f64,
}

impl Product {
    /// `Σ a · b`.
    pub(super) fn sum(pairs: impl Iterator<Item = (f64, f64)>) -> Self {
        pairs.fold(Self::default(), |sum, (a, b)| Self {
            value: sum.value + a * b,
            magnitude: sum.magnitude + (a * b).abs(),
        })
    }
}

/// `x · weightᵀ`, `[rows, out_features]`.
pub(super) fn linear(x: &[f32], weight: &[f32], in_features: usize) -> Vec<Product> {
    let mut out = Vec::new();
    for x in x.chunks_exact(in_features) {
        for w in weight.chunks_exact(in_features) {
            out.push(Product::sum(x.iter().zip(w).map(|(&x, &w)| (x.into(), w.into()))));
        }
    }
    out
}

/// Rows of `k` values as products of `dtype` take them: rounded to bf16, or to the nearest of 254 steps from the least
/// to the greatest value of the row and 0.
pub(super) fn rows_in(dtype: DType, x: &[f32], k: usize) -> Vec<f32> {
    match dtype {
        DType::F32 => x.to_vec(),
        DType::Bf16 => x.iter().map(|x| bf16(*x)).collect(),
        DType::Int8 => x.chunks(k.max(1)).flat_map(in_steps).collect(),
    }
}

/// Columns of a weight as products of `dtype` take them: rounded to bf16, or to the nearest of 127 steps in each
/// direction from 0 to the greatest magnitude of the column.
pub(super) fn columns_in(dtype: DType, weight: &[f32], k: usize) -> Vec<f32> {
    let symmetric = |column: &[f32]| {
        let most = column.iter().fold(0.0f32, |a, b| a.max(b.abs()));
        let steps = 127.0 / most;
        column.iter().map(|w| (w * steps).round_ties_even() * (most / 127.0)).collect::<Vec<f32>>()
    };
    match dtype {
        DType::F32 | DType::Bf16 => rows_in(dtype, weight, k),
        DType::Int8 => weight.chunks(k.max(1)).flat_map(symmetric).collect(),
    }
}

/// The nearer of the two bf16 around a value; ties go to the even one.
fn bf16(v: f32) -> f32 {
    let below = v.to_bits() & !0xffff;
    let [low, high] = [below, below + 0x1_0000].map(f32::from_bits);
    let (to_low, to_high) = ((f64::from(v) - f64::from(low)).abs(), (f64::from(high) - f64::from(v)).abs());
    let low_is_even = below & 0x1_0000 == 0;
    if to_low < to_high || (to_low == to_high && low_is_even) { low } else { high }
}

fn in_steps(row: &[f32]) -> Vec<f32> {
    let (least, most) = row.iter().fold((0.0f32, 0.0f32), |(least, most), x| (least.min(*x), most.max(*x)));
    let steps = 254.0 / (most - least);
    let zero = f64::from((-least * steps).round_ties_even());
    let step = |x: &f32| (f64::from(x * steps) + zero).round_ties_even() - zero;
    row.iter().map(|x| step(x) as f32 * ((most - least) / 254.0)).collect()
}

/// An activation.
pub(crate) fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::GeluErf => 0.5 * x * erfc(-x / 2f64.sqrt()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        // not `f64::max`, which turns NaN into 0
        Activation::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Log1pRelu => activate(Activation::Relu, x).ln_1p(),
    }
}

/// The error function, by its Maclaurin series near zero and by [`erfc`] elsewhere.
pub(crate) fn erf(x: f64) -> f64 {
    if x.abs() > 2.0 {
        return 1.0 - erfc(x);
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..60 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

/// `1 − erf(x)`, by the continued fraction of Laplace for large arguments.
pub(crate) fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x.abs() <= 2.0 {
        return 1.0 - erf(x);
    }
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    let mut fraction = x;
    for n in (1..200).rev() {
        fraction = x + f64::from(n) / 2.0 / fraction;
    }
    (-x * x).exp() / fraction / std::f64::consts::PI.sqrt()
}

/// Softmax of one row; a row of nothing but −∞ (every key masked) has no weights.
pub(super) fn softmax(row: &[f64]) -> Vec<f64> {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY && !row.iter().any(|v| v.is_nan()) {
        return vec![0.0; row.len()];
    }
    let weights: Vec<f64> = row.iter().map(|v| (v - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

/// Whether position `i` sees position `j`.
pub(super) fn sees(mask: AttentionMask, i: usize, j: usize) -> bool {
    match mask {
        AttentionMask::Full => true,
        AttentionMask::Causal => j <= i,
        AttentionMask::Window { reach } => i.abs_diff(j) <= reach,
    }
}

/// The slope of a head's linear bias, as the paper's authors define it: a geometric sequence that begins at its ratio.
/// For numbers of heads that are no powers of two, it is the sequence of the power below, followed by every other slope
/// of the power above.
pub(super) fn slope(head: usize, num_heads: usize) -> f64 {
    let below = (0..).map(|log2| 1 << log2).take_while(|&power| power <= num_heads).last().unwrap_or(1);
    let of_power = |power: usize, number: usize| 2f64.powf(-8.0 / power as f64).powi(number as i32 + 1);
    if head < below { of_power(below, head) } else { of_power(2 * below, 2 * (head - below)) }
}

/// The bucket of a relative position, by logarithms in `f64`; a tiny added term puts whole logarithms where they
/// belong.
pub(super) fn bucket(distance: isize, num_buckets: usize, max_distance: usize) -> usize {
    let of_side = num_buckets / 2;
    let exact = of_side / 2;
    let side = if distance > 0 { of_side } else { 0 };
    let distance = distance.unsigned_abs();
    if distance < exact {
        return side + distance;
    }
    let part = (distance as f64 / exact as f64).ln() / (max_distance as f64 / exact as f64).ln();
    let beyond = (part * (of_side - exact) as f64 + 1e-6).floor() as usize;
    side + (exact + beyond).min(of_side - 1)
}

/// The place of a relative position: distances up to half of the span, and beyond that steps of the logarithm, rounded
/// up; a tiny subtracted term leaves whole logarithms where they are.
pub(super) fn position(distance: isize, PositionBuckets { span, max_distance }: PositionBuckets) -> usize {
    let (half, far) = ((span / 2) as f64, distance.unsigned_abs() as f64);
    let steps = match max_distance {
        Some(most) if far > half => {
            let part = (far / half).ln() / ((most as f64 - 1.0) / half).ln();
            half + (part * (half - 1.0) - 1e-6).ceil()
        }
        _ => far,
    };
    let signed = if distance > 0 { -steps } else { steps };
    (signed + span as f64).clamp(0.0, 2.0 * span as f64 - 1.0) as usize
}

/// Layer norm of one row, without gain and offset.
pub(super) fn normalize(row: &[f64], epsilon: f64) -> Vec<f64> {
    let n = row.len() as f64;
    let mean = row.iter().sum::<f64>() / n;
    let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    row.iter().map(|v| (v - mean) / (variance + epsilon).sqrt()).collect()
}

/// RMS norm of one row, without gain.
pub(super) fn rms_normalize(row: &[f64], epsilon: f64) -> Vec<f64> {
    let mean = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
    row.iter().map(|v| v / (mean + epsilon).sqrt()).collect()
}

/// Rows of `[rows, columns]` as `f64`.
pub(super) fn rows(values: &[f32], columns: usize) -> impl Iterator<Item = Vec<f64>> {
    values.chunks_exact(columns).map(|row| row.iter().map(|&v| v.into()).collect())
}

#[cfg(test)]
mod tests {
    use super::{erf, erfc};

    /// Values of Abramowitz and Stegun, table 7.1, and of the asymptotic tail.
    #[test]
    fn the_error_function_agrees_with_its_table() {
        for (x, want) in [(0.5, 0.520_499_877_8), (1.0, 0.842_700_792_9), (2.0, 0.995_322_265_0)] {
            assert!((erf(x) - want).abs() < 1e-10, "erf({x}) = {}", erf(x));
            assert!((erf(-x) + want).abs() < 1e-10);
        }
        assert!((erfc(3.0) / 2.209_049_699_858_544e-5 - 1.0).abs() < 1e-12);
        assert!((erfc(5.0) / 1.537_459_794_428_035e-12 - 1.0).abs() < 1e-12);
        assert!((erf(2.0) - erf(2.0 + 1e-15)).abs() < 1e-13, "the two forms meet");
    }
}
