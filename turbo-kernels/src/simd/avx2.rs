//! [`Simd`] with AVX2 and FMA.

use std::arch::{asm, x86_64::*};

use super::{Kernel, Simd};

/// 256-bit vectors of 8 values, with FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The token, if the machine has the instructions.
    pub(crate) fn detect() -> Option<Avx2> {
        let found = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        found.then_some(Avx2(()))
    }
}

/// Runs `kernel` as code of this instruction set.
///
/// # Safety
/// [`Avx2::detect`] gave a token on this machine.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// [`run`], never inlined.
///
/// # Safety
/// As there.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// Methods that each are one expression over registers.
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

impl Simd for Avx2 {
    const LANES: usize = 8;
    const REGISTERS: usize = 16;
    type F32 = __m256;
    type I32 = __m256i;
    type Mask = __m256;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` exists, so the machine has the instructions.
        unsafe { call(kernel) }
    }

    #[inline(always)]
    fn load_partial(self, from: &[f32], fill: f32) -> __m256 {
        let mut lanes = [fill; 8];
        let len = from.len().min(8);
        lanes[..len].copy_from_slice(&from[..len]);
        self.load(&lanes)
    }

    #[inline(always)]
    fn store_partial(self, v: __m256, to: &mut [f32]) {
        let mut lanes = [0.0; 8];
        self.store(v, &mut lanes);
        let len = to.len().min(8);
        to[..len].copy_from_slice(&lanes[..len]);
    }

    #[inline(always)]
    unsafe fn load_ptr(self, from: *const f32) -> __m256 {
        // SAFETY: the caller passes a pointer that is valid for reading 8 values; no alignment is assumed.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store_ptr(self, v: __m256, to: *mut f32) {
        // SAFETY: the caller passes a pointer that is valid for writing 8 values; no alignment is assumed.
        unsafe { _mm256_storeu_ps(to, v) }
    }

    #[inline(always)]
    unsafe fn transpose_ptr(self, rows: [*const f32; 8], to: *mut f32, stride: usize) {
        // SAFETY: the caller keeps the contract; `self` exists, so the machine has the instructions.
        unsafe { transpose(rows, to, stride) }
    }

    #[inline(always)]
    fn prefetch(self, at: *const f32) {
        // SAFETY: `self` exists, so the machine has the instruction; a prefetch reads nothing and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }

    #[inline(always)]
    fn prefetch_to_write(self, at: *mut f32) {
        prefetch_to_write(at);
    }

    registers! {
        fn splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        fn add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        fn sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        fn mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        fn div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        fn max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        fn min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        fn abs(v: __m256) -> __m256 = _mm256_andnot_ps(_mm256_set1_ps(-0.0), v);
        fn copy_sign(magnitude: __m256, sign: __m256) -> __m256 = _mm256_or_ps(
            _mm256_andnot_ps(_mm256_set1_ps(-0.0), magnitude),
            _mm256_and_ps(_mm256_set1_ps(-0.0), sign));
        fn round(v: __m256) -> __m256 = _mm256_round_ps::<NEAREST>(v);
        fn pow2(n: __m256) -> __m256 = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(
            _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127))));
        fn exponent(v: __m256) -> __m256 = _mm256_cvtepi32_ps(_mm256_sub_epi32(
            _mm256_srli_epi32::<23>(_mm256_castps_si256(v)), _mm256_set1_epi32(127)));
        fn is_nan(v: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_UNORD_Q>(v, v);
        fn less(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
        fn select(mask: __m256, a: __m256, b: __m256) -> __m256 = _mm256_blendv_ps(b, a, mask);
        fn reduce_sum(v: __m256) -> f32 = sum(v);
        fn reduce_max(v: __m256) -> f32 = greatest(v);

        fn splat_i32(x: i32) -> __m256i = _mm256_set1_epi32(x);
        fn bits(v: __m256) -> __m256i = _mm256_castps_si256(v);
        fn float(v: __m256i) -> __m256 = _mm256_castsi256_ps(v);
        fn to_i32(v: __m256) -> __m256i = _mm256_cvtps_epi32(v);
        fn convert(v: __m256i) -> __m256 = _mm256_cvtepi32_ps(v);
        fn add_i32(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
        fn sub_i32(a: __m256i, b: __m256i) -> __m256i = _mm256_sub_epi32(a, b);
        fn mul_i32(a: __m256i, b: __m256i) -> __m256i = _mm256_mullo_epi32(a, b);
        fn max_i32(a: __m256i, b: __m256i) -> __m256i = _mm256_max_epi32(a, b);
        fn max_u32(a: __m256i, b: __m256i) -> __m256i = _mm256_max_epu32(a, b);
        fn reduce_max_i32(v: __m256i) -> i32 = greatest_i32(v);
        fn and(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
        fn or(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
        fn even_bytes(v: __m256i) -> __m256i = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(v));
        fn odd_bytes(v: __m256i) -> __m256i = _mm256_srai_epi16::<8>(v);
        fn dot_i16(a: __m256i, b: __m256i) -> __m256i = _mm256_madd_epi16(a, b);
    }

    #[inline(always)]
    fn shift_left<const N: u32>(self, v: __m256i) -> __m256i {
        // SAFETY: `self` exists, so the machine has the instruction; it touches registers only.
        unsafe { _mm256_sll_epi32(v, _mm_cvtsi32_si128(N as i32)) }
    }

    #[inline(always)]
    fn shift_right<const N: u32>(self, v: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_srl_epi32(v, _mm_cvtsi32_si128(N as i32)) }
    }
}

/// The sum of the lanes, by halves.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sum(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
}

/// Greatest of the lanes, by halves.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn greatest(v: __m256) -> f32 {
    let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
}

/// Greatest of the lanes, by halves.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn greatest_i32(v: __m256i) -> i32 {
    let v = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let v = _mm_max_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
    _mm_cvtsi128_si32(_mm_max_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
}

/// [`Simd::prefetch_to_write`]. Written in assembly, because the intrinsic becomes this instruction only in code that
/// may use a feature which stable Rust does not name; without it, a line that another core has written is requested
/// twice.
#[inline(always)]
pub(super) fn prefetch_to_write(at: *mut f32) {
    // SAFETY: a prefetch reads and writes nothing and cannot fault, whatever the address. 64-bit processors that do not
    // know the instruction execute it as a no-op.
    unsafe { asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}

/// [`Simd::transpose_ptr`]: pairs of rows are interleaved, then pairs of pairs, then halves.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn transpose(rows: [*const f32; 8], to: *mut f32, stride: usize) {
    // SAFETY: the caller promises 8 values in each row; no alignment is assumed.
    let row = rows.map(|row| unsafe { _mm256_loadu_ps(row) });
    let pair = |a: usize, b: usize| (_mm256_unpacklo_ps(row[a], row[b]), _mm256_unpackhi_ps(row[a], row[b]));
    let ((a, b), (c, d), (e, f), (g, h)) = (pair(0, 1), pair(2, 3), pair(4, 5), pair(6, 7));
    let low = |x, y| _mm256_shuffle_ps::<0b01_00_01_00>(x, y);
    let high = |x, y| _mm256_shuffle_ps::<0b11_10_11_10>(x, y);
    let first = [low(a, c), high(a, c), low(b, d), high(b, d)]; // rows 0..4 of columns k and k + 4
    let second = [low(e, g), high(e, g), low(f, h), high(f, h)]; // rows 4..8
    for k in 0..4 {
        let (near, far) = (
            _mm256_permute2f128_ps::<0x20>(first[k], second[k]),
            _mm256_permute2f128_ps::<0x31>(first[k], second[k]),
        );
        // SAFETY: the caller promises 8 values at each of the 8 strides.
        unsafe {
            _mm256_storeu_ps(to.add(k * stride), near);
            _mm256_storeu_ps(to.add((k + 4) * stride), far);
        }
    }
}
