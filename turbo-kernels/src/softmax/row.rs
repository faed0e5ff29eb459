//! Softmax of one row, for the kernel here and for attention.

use crate::{lanes, math, simd::Simd};

/// Replaces a row of scores by `e^(scale·score − greatest)` and gives the sum of what is there then.
///
/// The sum is 0 exactly when the row has no key that counts (it is empty, or all −∞): the row is then all 0. Sums are
/// taken in a fixed order from the start of the row, so the bits depend on nothing but the row.
#[inline(always)]
pub(crate) fn exponentials<S: Simd>(s: S, row: &mut [f32], scale: f32) -> f32 {
    let factor = s.splat(scale);
    let least = s.splat(f32::NEG_INFINITY);
    // scaled first, in place: what lies behind the end can then be −∞ whatever the scale
    lanes::update(s, row, 0.0, |x| s.mul(x, factor));
    let most = s.reduce_max(lanes::fold(
        s,
        row,
        f32::NEG_INFINITY,
        least,
        |most, v| s.max(most, v),
        |a, b| s.max(a, b),
    ));
    // −∞ − −∞ is NaN, so a row without keys ends here; `max` forgets NaN, which must not end with the others
    if most == f32::NEG_INFINITY && !row.iter().any(|v| v.is_nan()) {
        row.fill(0.0);
        return 0.0;
    }
    let most = s.splat(most);
    for part in row.chunks_mut(S::LANES) {
        let x = lanes::read(s, part, f32::NEG_INFINITY);
        lanes::write(s, math::exp_nonpositive(s, s.sub(x, most)), part);
    }
    lanes::sum(s, row, 0.0, |e| e)
}

/// Softmax of a row of scores, in place; a row without keys is all 0.
#[inline(always)]
pub(crate) fn softmax<S: Simd>(s: S, row: &mut [f32], scale: f32) {
    let sum = exponentials(s, row, scale);
    let inverse = s.splat(inverse_or_zero(sum));
    lanes::update(s, row, 0.0, |e| s.mul(e, inverse));
}

/// What the exponentials are multiplied by. Their sum is at least 1, unless no key counts.
#[inline(always)]
pub(crate) fn inverse_or_zero(sum: f32) -> f32 {
    if sum == 0.0 { 0.0 } else { 1.0 / sum }
}
