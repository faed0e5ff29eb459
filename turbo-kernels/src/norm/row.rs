//! Norms of one row that lies in cache, for the kernels here and for embeddings.

use super::NormWeights;
use crate::{
    lanes,
    simd::{Kernel, Simd},
};

/// Normalises `row` in place; gain and offset have its length.
pub(crate) struct NormRow<'a> {
    pub(crate) row: &'a mut [f32],
    pub(crate) weights: NormWeights<&'a [f32]>,
}

impl Kernel for NormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        normalize(s, self.row, self.weights);
    }
}

/// `row = (row − mean) / √(variance + ε) · gain + offset`.
///
/// Two passes, corrected (Chan, Golub and LeVeque, The American Statistician 37, 1983): the mean of the first is
/// rounded to f32, and what the rounding left out is the mean of the differences of the second. Values of 1e4 ± 1 come
/// out as precise as those of 0 ± 1, and a row without spread comes out as `offset` up to that rounding.
#[inline(always)]
pub(crate) fn normalize<S: Simd>(s: S, row: &mut [f32], weights: NormWeights<&[f32]>) {
    let n = row.len() as f32;
    let mean = lanes::sum(s, row, 0.0, |x| x) / n;
    let center = s.splat(mean);
    let (differences, squares) = differences(s, row, mean);
    let left = differences / n;
    let left_over = s.splat(left);
    let centered = |x| s.sub(s.sub(x, center), left_over);
    // E[d²] − E[d]², where E[d] is a rounding: nothing cancels unless everything does
    let variance = (squares / n - left * left).max(0.0);
    let inverse = s.splat(1.0 / (variance + weights.epsilon).sqrt());
    let parts = row.chunks_mut(S::LANES).zip(weights.gain.chunks(S::LANES));
    match weights.offset {
        Some(offset) => {
            for ((part, gain), offset) in parts.zip(offset.chunks(S::LANES)) {
                let unit = s.mul(centered(lanes::read(s, part, 0.0)), inverse);
                let y = s.mul_add(unit, lanes::read(s, gain, 0.0), lanes::read(s, offset, 0.0));
                lanes::write(s, y, part);
            }
        }
        None => {
            for (part, gain) in parts {
                let unit = s.mul(centered(lanes::read(s, part, 0.0)), inverse);
                lanes::write(s, s.mul(unit, lanes::read(s, gain, 0.0)), part);
            }
        }
    }
}

/// `Σ d` and `Σ d²` with `d = row[i] − mean`, in one pass: two chains each, even and odd vectors.
#[inline(always)]
fn differences<S: Simd>(s: S, row: &[f32], mean: f32) -> (f32, f32) {
    let center = s.splat(mean);
    let mut sums = [s.splat(0.0); 2];
    let mut squares = [s.splat(0.0); 2];
    let mut pairs = row.chunks_exact(2 * S::LANES);
    for pair in &mut pairs {
        for (i, (sum, square)) in sums.iter_mut().zip(&mut squares).enumerate() {
            let d = s.sub(s.load(&pair[i * S::LANES..]), center);
            *sum = s.add(*sum, d);
            *square = s.mul_add(d, d, *square);
        }
    }
    let rest = pairs.remainder();
    for (i, (sum, square)) in sums.iter_mut().zip(&mut squares).enumerate() {
        if i * S::LANES < rest.len() {
            let d = s.sub(lanes::read(s, &rest[i * S::LANES..], mean), center);
            *sum = s.add(*sum, d);
            *square = s.mul_add(d, d, *square);
        }
    }
    (s.reduce_sum(s.add(sums[0], sums[1])), s.reduce_sum(s.add(squares[0], squares[1])))
}

/// `out = x / √(mean of x² + ε) · gain`, all of one length.
pub(crate) struct RmsRow<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) gain: &'a [f32],
    pub(crate) epsilon: f32,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for RmsRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mean = lanes::sum(s, self.x, 0.0, |x| s.mul(x, x)) / self.x.len() as f32;
        let inverse = s.splat(1.0 / (mean + self.epsilon).sqrt());
        lanes::zip(s, self.x, self.gain, self.out, |x, gain| s.mul(s.mul(x, inverse), gain));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::supported;

    /// An offset that f32 adds to small values without rounding them leaves the answer as precise as it was.
    #[test]
    fn a_mean_far_from_zero_costs_nothing() {
        let small: Vec<f32> = (0..300).map(|i| ((i * 7919) % 256) as f32 / 128.0 - 1.0).collect();
        let (gain, offset) = (vec![1.0; 300], vec![0.0; 300]);
        let weights = NormWeights { gain: &gain[..], offset: Some(&offset[..]), epsilon: 1e-12 };
        for isa in supported() {
            let normalized = |center: f32| {
                let mut row: Vec<f32> = small.iter().map(|v| v + center).collect();
                isa.run(NormRow { row: &mut row, weights });
                row
            };
            for (a, b) in normalized(0.0).iter().zip(normalized(8192.0)) {
                assert!((a - b).abs() < 1e-6, "{isa:?}: {a} and {b}");
            }
        }
    }
}
