//! [`Simd`] with AVX-512, with or without the dot products of bf16 and bytes and their tile registers.

use std::{arch::x86_64::*, mem::transmute};

use super::{
    Kernel, Simd,
    amx::{self, Operands, REGISTER_SIDE},
    processor::is_intel,
};

/// 512-bit vectors of 16 values; without dot products, or with those of [`BF16`] or [`VNNI`], with or without
/// [`TILE_REGISTERS`].
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const DOTS: u8 = 0>(());

/// AVX512-BF16.
const BF16: u8 = 1;
/// AVX512-VNNI.
const VNNI: u8 = 2;
/// AMX, together with one of the others.
const TILE_REGISTERS: u8 = 4;
const BF16_TILE_REGISTERS: u8 = BF16 | TILE_REGISTERS;
const VNNI_TILE_REGISTERS: u8 = VNNI | TILE_REGISTERS;

impl Avx512 {
    /// The token, if the machine has the instructions.
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

/// Whether a machine that has [`Avx512`] has [`BF16`] too, and is faster with it.
pub(super) fn has_bf16() -> bool {
    is_x86_feature_detected!("avx512bf16") && !has_slow_bf16()
}

/// Whether a machine has [`BF16`] but is slower with it than with the two equivalent multiply-adds of f32.
///
/// Seen on an Intel processor that multiplies bf16 with tiles (AMX), of family 6, model 207: with 128 rows, a thread
/// does 86.9 GFLOP/s in bf16, and 161 in f32. The same is assumed of all that have AVX512-FP16, which came with the
/// tiles, since a hypervisor may hide the tiles. Cooper Lake, their predecessor, has no AVX512-FP16.
pub(super) fn has_slow_bf16() -> bool {
    is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512fp16") && is_intel()
}

/// Whether a machine that has [`Avx512`] has [`VNNI`] too.
pub(super) fn has_vnni() -> bool {
    is_x86_feature_detected!("avx512vnni")
}

/// Runs `kernel` as code of this instruction set.
///
/// # Safety
/// [`Avx512::detect`] gave a token on this machine.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<0>(()))
}

/// [`run`] with dot products of bf16.
///
/// # Safety
/// As for [`run`], and the machine has AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
pub(super) unsafe fn run_bf16_vectors<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<BF16>(()))
}

/// [`run_bf16_vectors`] with tile registers.
///
/// # Safety
/// As there, and [`amx::is_there`] returned true.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
pub(super) unsafe fn run_bf16<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<BF16_TILE_REGISTERS>(()))
}

/// [`run_int8_vectors`] with tile registers.
///
/// # Safety
/// As there, and [`amx::is_there`] returned true.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
pub(super) unsafe fn run_int8<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<VNNI_TILE_REGISTERS>(()))
}

/// [`run`] with dot products of bytes.
///
/// # Safety
/// As for [`run`], and the machine has AVX512-VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
pub(super) unsafe fn run_int8_vectors<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<VNNI>(()))
}

/// [`run`], never inlined.
///
/// # Safety
/// As there.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<0>(()))
}

/// [`run_bf16_vectors`] or [`run_bf16`], never inlined.
///
/// # Safety
/// As there.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
unsafe fn call_bf16<const DOTS: u8, K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<DOTS>(()))
}

/// [`run_int8_vectors`] or [`run_int8`], never inlined.
///
/// # Safety
/// As there.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
unsafe fn call_int8<const DOTS: u8, K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<DOTS>(()))
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

/// A mask of the first `len` lanes.
#[inline(always)]
fn first(len: usize) -> __mmask16 {
    if len >= 16 { !0 } else { (1 << len) - 1 }
}

impl<const DOTS: u8> Simd for Avx512<DOTS> {
    const DOT_BF16: bool = DOTS & BF16 != 0;
    const DOT_INT8: bool = DOTS & VNNI != 0;
    const HAS_TILE_REGISTERS: bool = DOTS & TILE_REGISTERS != 0;
    const LOOKUP: bool = true;
    const LANES: usize = 16;
    const REGISTERS: usize = 32;
    type F32 = __m512;
    type I32 = __m512i;
    type Mask = __mmask16;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` exists, so the machine has the instructions.
        unsafe {
            match DOTS {
                BF16 | BF16_TILE_REGISTERS => call_bf16::<DOTS, K>(kernel),
                VNNI | VNNI_TILE_REGISTERS => call_int8::<DOTS, K>(kernel),
                _ => call(kernel),
            }
        }
    }

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

    #[inline(always)]
    fn prefetch_to_write(self, at: *mut f32) {
        super::avx2::prefetch_to_write(at);
    }

    #[inline(always)]
    fn lookup(self, table: &[f32; 32], number: __m512i) -> __m512 {
        let (low, high) = table.split_at(Self::LANES);
        // SAFETY: `self` exists, so the machine has the instruction; it touches registers only.
        unsafe { _mm512_permutex2var_ps(self.load(low), number, self.load(high)) }
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
        fn scale(v: __m512, n: __m512) -> __m512 = _mm512_scalef_ps(v, n);
        fn exponent(v: __m512) -> __m512 = _mm512_getexp_ps(v);
        fn is_nan(v: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        fn less(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
        fn select(mask: __mmask16, a: __m512, b: __m512) -> __m512 = _mm512_mask_blend_ps(mask, b, a);
        fn reduce_sum(v: __m512) -> f32 = super::avx2::sum(_mm256_add_ps(low(v), high(v)));
        fn reduce_max(v: __m512) -> f32 = super::avx2::greatest(_mm256_max_ps(low(v), high(v)));

        fn splat_i32(x: i32) -> __m512i = _mm512_set1_epi32(x);
        fn bits(v: __m512) -> __m512i = _mm512_castps_si512(v);
        fn float(v: __m512i) -> __m512 = _mm512_castsi512_ps(v);
        fn to_i32(v: __m512) -> __m512i = _mm512_cvtps_epi32(v);
        fn convert(v: __m512i) -> __m512 = _mm512_cvtepi32_ps(v);
        fn add_i32(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        fn sub_i32(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        fn mul_i32(a: __m512i, b: __m512i) -> __m512i = _mm512_mullo_epi32(a, b);
        fn max_i32(a: __m512i, b: __m512i) -> __m512i = _mm512_max_epi32(a, b);
        fn max_u32(a: __m512i, b: __m512i) -> __m512i = _mm512_max_epu32(a, b);
        fn reduce_max_i32(v: __m512i) -> i32 = _mm512_reduce_max_epi32(v);
        fn and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        fn or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        fn even_bytes(v: __m512i) -> __m512i = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(v));
        fn odd_bytes(v: __m512i) -> __m512i = _mm512_srai_epi16::<8>(v);
        fn dot_i16(a: __m512i, b: __m512i) -> __m512i = _mm512_madd_epi16(a, b);
    }

    #[inline(always)]
    fn shift_left<const N: u32>(self, v: __m512i) -> __m512i {
        // SAFETY: `self` exists, so the machine has the instruction; it touches registers only.
        unsafe { _mm512_slli_epi32::<N>(v) }
    }

    #[inline(always)]
    fn shift_right<const N: u32>(self, v: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_srli_epi32::<N>(v) }
    }

    #[inline(always)]
    fn dot_int8(self, x: __m512i, w: __m512i, sum: __m512i) -> __m512i {
        if Self::DOT_INT8 {
            // SAFETY: such a token is made only by functions here that enable the instruction, whose callers know that the
            // machine has it.
            unsafe { _mm512_dpbusd_epi32(sum, x, w) }
        } else {
            unreachable!("whoever calls this asks first whether it is an instruction")
        }
    }

    #[inline(always)]
    fn dot_bf16(self, x: __m512i, w: __m512i, sum: __m512) -> __m512 {
        if Self::DOT_BF16 {
            // SAFETY: such a token is made only by functions here that enable the instruction, whose callers know that the
            // machine has it; a vector of words and one of bf16 are the same bits.
            unsafe {
                _mm512_dpbf16_ps(sum, transmute::<__m512i, __m512bh>(x), transmute::<__m512i, __m512bh>(w))
            }
        } else {
            unreachable!("whoever calls this asks first whether it is an instruction")
        }
    }

    #[inline(always)]
    fn set_up_tiles(self, rows: usize) {
        assert!(Self::HAS_TILE_REGISTERS, "whoever calls this asks first whether there are any");
        // SAFETY: only `run_bf16` and `run_int8` make such a token, and their callers know of the tiles.
        unsafe { amx::configure(rows) }
    }

    #[inline(always)]
    fn release_tiles(self) {
        assert!(Self::HAS_TILE_REGISTERS, "whoever calls this asks first whether there are any");
        // SAFETY: as for `set_up_tiles`.
        unsafe { amx::release() }
    }

    #[inline(always)]
    unsafe fn zero_tiles(self, rows: usize) {
        // SAFETY: as for `set_up_tiles`, and the caller's promise.
        unsafe { amx::zero(rows > REGISTER_SIDE) }
    }

    #[inline(always)]
    unsafe fn load_tiles(self, rows: usize, from: *const f32, stride: usize) {
        // SAFETY: as for `zero_tiles`.
        unsafe { amx::load(from, stride * size_of::<f32>(), rows > REGISTER_SIDE) }
    }

    #[inline(always)]
    unsafe fn store_tiles(self, rows: usize, to: *mut f32, stride: usize) {
        // SAFETY: as for `zero_tiles`.
        unsafe { amx::store(to, stride * size_of::<f32>(), rows > REGISTER_SIDE) }
    }

    #[inline(always)]
    unsafe fn keep_tile_stores_awake(self, to: *mut f32) {
        // SAFETY: as for `zero_tiles`.
        unsafe { amx::keep_stores_awake(to) }
    }

    #[inline(always)]
    unsafe fn add_tile_products(self, rows: usize, x: *const f32, w: *const f32) {
        let operands = if Self::DOT_BF16 { Operands::Bf16 } else { Operands::Bytes };
        // SAFETY: as for `zero_tiles`.
        unsafe { amx::add_products(operands, x.cast(), w.cast(), rows > REGISTER_SIDE) }
    }

    #[inline(always)]
    fn pair_bf16(self, first: __m512, second: __m512) -> __m512i {
        if Self::DOT_BF16 {
            // SAFETY: as for `dot_bf16`.
            unsafe {
                let pairs = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first));
                _mm512_rol_epi32::<16>(pairs)
            }
        } else {
            unreachable!("whoever calls this asks first whether it is an instruction")
        }
    }

    #[inline(always)]
    fn join_bf16(self, upper: __m512, lower: __m512) -> __m512i {
        if Self::DOT_BF16 {
            // SAFETY: as for `dot_bf16`; an array of words and a vector are the same bits.
            unsafe {
                let halves = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(upper, lower));
                _mm512_permutexvar_epi16(transmute::<[u32; 16], __m512i>(JOINED), halves)
            }
        } else {
            unreachable!("whoever calls this asks first whether it is an instruction")
        }
    }
}

/// Indices that join sixteen bf16 and sixteen more as the lower and upper halves of words.
const JOINED: [u32; 16] = {
    let (mut joined, mut word) = ([0; 16], 0);
    while word < 16 {
        joined[word as usize] = (16 + word) << 16 | word;
        word += 1;
    }
    joined
};

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
