use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// 512-bit vectors of 16 values.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The token, where the machine has the instructions.
    pub(crate) fn detect() -> Option<Avx512> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma");
        found.then_some(Avx512(()))
    }
}

/// Runs `kernel` as code of this instruction set.
///
/// # Safety
/// [`Avx512::detect`] gave a token on this machine.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

/// Methods that are one expression over registers each.
macro_rules! registers {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: $type),*) -> $out {
            // SAFETY: `self` exists, so the machine has the instructions; they touch registers only.
            unsafe { $body }
        }
    )*};
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// The first `len` lanes.
#[inline(always)]
fn first(len: usize) -> __mmask16 {
    if len >= 16 { !0 } else { (1 << len) - 1 }
}

impl Simd for Avx512 {
    const LANES: usize = 16;
    const REGISTERS: usize = 32;
    type F32 = __m512;
    type Mask = __mmask16;

    #[inline(always)]
    fn load_partial(self, from: &[f32], fill: f32) -> __m512 {
        // SAFETY: the mask selects no lane past the end of `from`, and lanes that are not selected are not read.
        unsafe { _mm512_mask_loadu_ps(self.splat(fill), first(from.len()), from.as_ptr()) }
    }

    #[inline(always)]
    fn store_partial(self, v: __m512, to: &mut [f32]) {
        // SAFETY: the mask selects no lane past the end of `to`, and lanes that are not selected are not written.
        unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), first(to.len()), v) }
    }

    #[inline(always)]
    unsafe fn load_ptr(self, from: *const f32) -> __m512 {
        // SAFETY: the caller passes a pointer that is valid for reading 16 values; no alignment is assumed.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store_ptr(self, v: __m512, to: *mut f32) {
        // SAFETY: the caller passes a pointer that is valid for writing 16 values; no alignment is assumed.
        unsafe { _mm512_storeu_ps(to, v) }
    }

    #[inline(always)]
    unsafe fn transpose_ptr(self, rows: [*const f32; 8], to: *mut f32, stride: usize) {
        // SAFETY: the caller keeps the contract; `self` exists, so the machine has the instructions.
        unsafe { super::avx2::transpose(rows, to, stride) }
    }

    #[inline(always)]
    fn prefetch(self, at: *const f32) {
        // SAFETY: `self` exists, so the machine has the instruction; a prefetch reads nothing and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }

    registers! {
        fn splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        fn add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fn min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        fn abs(v: __m512) -> __m512 = _mm512_abs_ps(v);
        fn copy_sign(magnitude: __m512, sign: __m512) -> __m512 =
            _mm512_or_ps(_mm512_abs_ps(magnitude), _mm512_and_ps(sign, _mm512_set1_ps(-0.0)));
        fn round(v: __m512) -> __m512 = _mm512_roundscale_ps::<NEAREST>(v);
        fn pow2(n: __m512) -> __m512 = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(
            _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127))));
        fn exponent(v: __m512) -> __m512 = _mm512_getexp_ps(v);
        fn is_nan(v: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        fn less(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
        fn select(mask: __mmask16, a: __m512, b: __m512) -> __m512 = _mm512_mask_blend_ps(mask, b, a);
        fn reduce_sum(v: __m512) -> f32 = super::avx2::sum(_mm256_add_ps(low(v), high(v)));
        fn reduce_max(v: __m512) -> f32 = super::avx2::greatest(_mm256_max_ps(low(v), high(v)));
    }
}

/// Lanes 0 to 7.
#[inline]
#[target_feature(enable = "avx512f")]
fn low(v: __m512) -> __m256 {
    _mm512_castps512_ps256(v)
}

/// Lanes 8 to 15.
#[inline]
#[target_feature(enable = "avx512dq")]
fn high(v: __m512) -> __m256 {
    _mm512_extractf32x8_ps::<1>(v)
}
