//! Norms of rows that lie in cache, for the kernels here and for embeddings.
//!
//! A row goes through several passes, each of which ends with a number that the next one waits for: additions across
//! the lanes of a vector, a root, a quotient. So a few rows go through each pass together, and one computes while
//! another waits. The result for a row does not depend on its neighbours.

use super::NormWeights;
use crate::{
    lanes,
    simd::{Kernel, Simd},
};

/// Rows that take each pass together.
const TOGETHER: usize = 4;

/// Normalises rows in place; gain and offset are as long as a row.
pub(crate) struct NormRows<'a> {
    pub(crate) rows: &'a mut [f32],
    pub(crate) weights: NormWeights<&'a [f32]>,
}

impl Kernel for NormRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        normalize(s, self.rows, self.weights);
    }
}

/// `row = (row − mean) / √(variance + ε) · gain + offset` for each row.
///
/// Two passes, corrected (Chan, Golub and LeVeque, The American Statistician 37, 1983): the mean of the first pass is
/// rounded to f32, and the mean of the differences of the second is what that rounding left out. Values of 1e4 ± 1 come
/// out as precise as those of 0 ± 1, and a row without spread comes out as `offset` up to that rounding.
#[inline(always)]
pub(crate) fn normalize<S: Simd>(s: S, rows: &mut [f32], weights: NormWeights<&[f32]>) {
    let hidden_size = weights.gain.len().max(1);
    for rows in rows.chunks_mut(TOGETHER * hidden_size) {
        let mut moments = [Moments::default(); TOGETHER];
        for (row, moments) in rows.chunks_exact(hidden_size).zip(&mut moments) {
            moments.mean = lanes::sum(s, row, 0.0, |x| x) / hidden_size as f32;
        }
        for (row, moments) in rows.chunks_exact(hidden_size).zip(&mut moments) {
            moments.look_again(s, row);
        }
        for (row, moments) in rows.chunks_exact_mut(hidden_size).zip(moments) {
            moments.normalize(s, row, weights);
        }
    }
}

/// What the passes find out about a row.
#[derive(Clone, Copy, Default)]
struct Moments {
    /// Rounded.
    mean: f32,
    /// What the rounding left out.
    left: f32,
    variance: f32,
}

impl Moments {
    /// The second pass: everything but the rounded mean.
    #[inline(always)]
    fn look_again<S: Simd>(&mut self, s: S, row: &[f32]) {
        let (center, zero) = (s.splat(self.mean), s.splat(0.0));
        let [differences, squares] = lanes::fold(
            s,
            row,
            self.mean,
            [zero; 2],
            |[differences, squares], x| {
                let d = s.sub(x, center);
                [s.add(differences, d), s.mul_add(d, d, squares)]
            },
            |a, b| [s.add(a[0], b[0]), s.add(a[1], b[1])],
        );
        let n = row.len() as f32;
        self.left = s.reduce_sum(differences) / n;
        // E[d²] − E[d]², where E[d] is a rounding: nothing cancels unless everything does
        let variance = s.reduce_sum(squares) / n - self.left * self.left;
        // not `f32::max`, which forgets NaN
        self.variance = if variance < 0.0 { 0.0 } else { variance };
    }

    #[inline(always)]
    fn normalize<S: Simd>(self, s: S, row: &mut [f32], weights: NormWeights<&[f32]>) {
        let center = s.splat(self.mean);
        let inverse = 1.0 / (self.variance + weights.epsilon).sqrt();
        let (factor, shift) = (s.splat(inverse), s.splat(-self.left * inverse));
        let unit = |x| s.mul_add(s.sub(x, center), factor, shift);
        match weights.offset {
            Some(offset) => lanes::update_with(s, row, [weights.gain, offset], |x, [gain, offset]| {
                s.mul_add(unit(x), gain, offset)
            }),
            None => lanes::update_with(s, row, [weights.gain], |x, [gain]| s.mul(unit(x), gain)),
        }
    }
}

/// `out = x / √(mean of x² + ε) · gain` for each row of the length of `gain`.
pub(crate) struct RmsRows<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) gain: &'a [f32],
    pub(crate) epsilon: f32,
    /// As long as `x`.
    pub(crate) out: &'a mut [f32],
}

impl Kernel for RmsRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let hidden_size = self.gain.len().max(1);
        let rows = self.x.chunks(TOGETHER * hidden_size);
        for (x, out) in rows.zip(self.out.chunks_mut(TOGETHER * hidden_size)) {
            let mut squares = [0.0; TOGETHER];
            for (x, squares) in x.chunks_exact(hidden_size).zip(&mut squares) {
                *squares = lanes::sum(s, x, 0.0, |x| s.mul(x, x));
            }
            let rows = x.chunks_exact(hidden_size).zip(out.chunks_exact_mut(hidden_size));
            for ((x, out), squares) in rows.zip(squares) {
                let inverse = s.splat(1.0 / (squares / hidden_size as f32 + self.epsilon).sqrt());
                lanes::map(s, [x, self.gain], 0.0, out, |[x, gain]| s.mul(s.mul(x, inverse), gain));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::supported;

    /// The variance is the difference of two squares, and both overflow.
    #[test]
    fn a_row_too_large_to_be_normalised_is_nan() {
        let weights = NormWeights { gain: &[1.0; 40][..], offset: Some(&[0.0; 40][..]), epsilon: 1e-12 };
        for isa in supported() {
            let mut row: Vec<f32> = (0..40).map(|i| (i * i) as f32 * 0.37e33).collect();
            isa.run(NormRows { rows: &mut row, weights });
            assert!(row.iter().all(|x| x.is_nan()), "{isa:?}: {row:?}");
        }
    }

    /// An offset that f32 adds to small values without rounding them leaves the result as precise as before.
    #[test]
    fn a_mean_far_from_zero_costs_nothing() {
        let small: Vec<f32> = (0..300).map(|i| ((i * 7919) % 256) as f32 / 128.0 - 1.0).collect();
        let (gain, offset) = (vec![1.0; 300], vec![0.0; 300]);
        let weights = NormWeights { gain: &gain[..], offset: Some(&offset[..]), epsilon: 1e-12 };
        for isa in supported() {
            let normalized = |center: f32| {
                let mut row: Vec<f32> = small.iter().map(|v| v + center).collect();
                isa.run(NormRows { rows: &mut row, weights });
                row
            };
            for (a, b) in normalized(0.0).iter().zip(normalized(8192.0)) {
                assert!((a - b).abs() < 1e-6, "{isa:?}: {a} and {b}");
            }
        }
    }
}
