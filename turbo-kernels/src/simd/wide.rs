//! What the dot products of narrow values give, by wider instructions that every set has.

use super::Simd;

/// [`Simd::dot_int8`].
#[inline(always)]
pub(super) fn dot_int8<S: Simd>(s: S, x: S::I32, w: S::I32, sum: S::I32) -> S::I32 {
    let bytes = s.splat_i32(0x00ff_00ff);
    let even = s.dot_i16(s.and(x, bytes), s.even_bytes(w));
    let odd = s.dot_i16(s.and(s.shift_right::<8>(x), bytes), s.odd_bytes(w));
    s.add_i32(sum, s.add_i32(even, odd))
}

/// [`Simd::dot_bf16`].
#[inline(always)]
pub(super) fn dot_bf16<S: Simd>(s: S, x: S::I32, w: S::I32, sum: S::F32) -> S::F32 {
    let sum = s.mul_add(s.upper_bf16(x), s.upper_bf16(w), sum);
    s.mul_add(s.lower_bf16(x), s.lower_bf16(w), sum)
}

/// [`Simd::pair_bf16`].
#[inline(always)]
pub(super) fn pair_bf16<S: Simd>(s: S, first: S::F32, second: S::F32) -> S::I32 {
    let mut values = [0; 32];
    assert!(2 * S::LANES <= values.len());
    let (first, second) = (s.bits(s.round_bf16(first)), s.bits(s.round_bf16(second)));
    // SAFETY: there is room for two vectors, as was just asserted.
    unsafe {
        s.store_i32_ptr(first, values.as_mut_ptr());
        s.store_i32_ptr(second, values.as_mut_ptr().add(S::LANES));
    }
    for i in 0..S::LANES {
        values[i] = values[2 * i] | ((values[2 * i + 1] as u32) >> 16) as i32;
    }
    // SAFETY: as above.
    unsafe { s.load_i32_ptr(values.as_ptr()) }
}
