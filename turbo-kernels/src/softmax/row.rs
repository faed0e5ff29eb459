//! Softmax of one row.

use crate::{lanes, math, simd::Simd};

/// Replaces a row of scores by `e^(scale·score − greatest)` and returns the sum of the new values.
///
/// The sum is 0 exactly when the row has no key that counts (it is empty, or all −∞): the row is then all 0. Sums are
/// taken in a fixed order from the start of the row, so the bits depend on nothing but the row.
#[inline(always)]
fn exponentials<S: Simd>(s: S, row: &mut [f32], scale: f32) -> f32 {
    let most = scale_and_find_greatest(s, row, scale);
    // −∞ − −∞ is NaN, so a row without keys ends here; `max` forgets NaN, and a row with a NaN must not end here
    if most == f32::NEG_INFINITY && !row.iter().any(|v| v.is_nan()) {
        row.fill(0.0);
        return 0.0;
    }
    let most = s.splat(most);
    let mut sum = s.splat(0.0);
    for part in row.chunks_mut(S::LANES) {
        // e^−∞ behind the end, which is 0
        let x = lanes::read(s, part, f32::NEG_INFINITY);
        let e = math::exp_nonpositive(s, s.sub(x, most));
        lanes::write(s, e, part);
        sum = s.add(sum, e);
    }
    s.reduce_sum(sum)
}

/// [`exponentials`] of `scale·score + bias`, with two roundings; there are at least as many biases as scores.
#[inline(always)]
fn exponentials_with_bias<S: Simd>(s: S, row: &mut [f32], scale: f32, biases: &[f32]) -> f32 {
    let factor = s.splat(scale);
    for (part, biases) in row.chunks_mut(S::LANES).zip(biases.chunks(S::LANES)) {
        let scaled = s.mul(lanes::read(s, part, 0.0), factor);
        lanes::write(s, s.add(scaled, lanes::read(s, biases, 0.0)), part);
    }
    exponentials(s, row, 1.0)
}

#[inline(always)]
fn scale_and_find_greatest<S: Simd>(s: S, row: &mut [f32], scale: f32) -> f32 {
    let factor = s.splat(scale);
    let mut most = s.splat(f32::NEG_INFINITY);
    let mut parts = row.chunks_exact_mut(S::LANES);
    for part in &mut parts {
        let x = s.mul(s.load(part), factor);
        s.store(x, part);
        most = s.max(most, x);
    }
    let tail = parts.into_remainder();
    lanes::write(s, s.mul(lanes::read(s, tail, 0.0), factor), tail);
    // read again: what lies behind the end is −∞ after scaling, whatever the scale
    s.reduce_max(s.max(most, lanes::read(s, tail, f32::NEG_INFINITY)))
}

/// Softmax of `scale·score + bias`, in place; a row without keys is all 0.
#[inline(always)]
pub(crate) fn softmax<S: Simd>(s: S, row: &mut [f32], scale: f32, biases: Option<&[f32]>) {
    let sum = match biases {
        None => exponentials(s, row, scale),
        Some(biases) => exponentials_with_bias(s, row, scale, biases),
    };
    let inverse = s.splat(inverse_or_zero(sum));
    lanes::update(s, row, 0.0, |e| s.mul(e, inverse));
}

/// The factor on the exponentials. Their sum is at least 1, unless no key counts.
#[inline(always)]
fn inverse_or_zero(sum: f32) -> f32 {
    if sum == 0.0 { 0.0 } else { 1.0 / sum }
}
