//! [`Simd`] with arrays that the compiler turns into vectors, on any processor.

use super::{Kernel, Simd};

const LANES: usize = 8;

/// Arrays that the compiler turns into whatever vectors the target has.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

type Vector = [f32; LANES];
type Words = [i32; LANES];

/// The result of `f` for each number below `N`. This is a loop, since `std::array::from_fn` and `map` are chains of
/// functions, which the compiler may or may not inline, in particular when it makes code in several units.
#[inline(always)]
fn lanes<T: Copy + Default, const N: usize>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut lanes = [T::default(); N];
    for (i, lane) in lanes.iter_mut().enumerate() {
        *lane = f(i);
    }
    lanes
}

#[inline(always)]
fn map<T: Copy, U: Copy + Default, const N: usize>(v: [T; N], f: impl Fn(T) -> U) -> [U; N] {
    lanes(|i| f(v[i]))
}

#[inline(always)]
fn zip(a: Vector, b: Vector, f: impl Fn(f32, f32) -> f32) -> Vector {
    lanes(|i| f(a[i], b[i]))
}

#[inline(always)]
fn fold(v: Vector, f: impl Fn(f32, f32) -> f32) -> f32 {
    let v: [f32; 4] = lanes(|i| f(v[i], v[i + 4]));
    f(f(v[0], v[2]), f(v[1], v[3]))
}

#[inline(always)]
fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Whether a multiply-add rounds once: here `f32::mul_add` is an instruction; elsewhere it would be a slow library
/// call.
pub(crate) const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

#[inline(always)]
fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Applies `f` to both halves of each word, as i16.
#[inline(always)]
fn of_halves(v: Words, f: impl Fn(i16) -> i16) -> Words {
    // SAFETY: both are 32 bytes in which every bit pattern is a value.
    unsafe {
        let halves = map(std::mem::transmute::<Words, [i16; 2 * LANES]>(v), f);
        std::mem::transmute::<[i16; 2 * LANES], Words>(halves)
    }
}

/// Every x86-64 processor has an instruction for this, which the compiler does not find.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn dot_i16(a: Words, b: Words) -> Words {
    use std::arch::x86_64::{__m128i, _mm_madd_epi16};
    type Halves = [__m128i; 2];
    // SAFETY: both are 32 bytes in which every bit pattern is a value, and SSE2 belongs to the architecture.
    unsafe {
        let (a, b) = (std::mem::transmute::<Words, Halves>(a), std::mem::transmute::<Words, Halves>(b));
        std::mem::transmute::<Halves, Words>([_mm_madd_epi16(a[0], b[0]), _mm_madd_epi16(a[1], b[1])])
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn dot_i16(a: Words, b: Words) -> Words {
    lanes(|i| (a[i] << 16 >> 16) * (b[i] << 16 >> 16) + (a[i] >> 16) * (b[i] >> 16))
}

impl Simd for Portable {
    const LANES: usize = LANES;
    // 16 registers of 4 values on x86-64, 32 on aarch64
    const REGISTERS: usize = if cfg!(target_arch = "aarch64") { 16 } else { 8 };
    type F32 = Vector;
    type I32 = Words;
    type Mask = [bool; LANES];

    #[inline(never)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Vector {
        [x; LANES]
    }

    #[inline(always)]
    fn load_partial(self, from: &[f32], fill: f32) -> Vector {
        lanes(|i| from.get(i).copied().unwrap_or(fill))
    }

    #[inline(always)]
    fn store_partial(self, v: Vector, to: &mut [f32]) {
        to.iter_mut().zip(v).for_each(|(to, v)| *to = v);
    }

    #[inline(always)]
    unsafe fn load_ptr(self, from: *const f32) -> Vector {
        // SAFETY: the caller passes a pointer that is valid for reading `LANES` values; no alignment is assumed.
        unsafe { from.cast::<Vector>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_ptr(self, v: Vector, to: *mut f32) {
        // SAFETY: the caller passes a pointer that is valid for writing `LANES` values; no alignment is assumed.
        unsafe { to.cast::<Vector>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn transpose_ptr(self, rows: [*const f32; 8], to: *mut f32, stride: usize) {
        for (i, row) in rows.into_iter().enumerate() {
            for k in 0..8 {
                // SAFETY: the caller promises 8 values in each row, and 8 at each of the 8 strides of `to`.
                unsafe { *to.add(k * stride + i) = *row.add(k) };
            }
        }
    }

    #[inline(always)]
    fn prefetch(self, _: *const f32) {}

    #[inline(always)]
    fn prefetch_to_write(self, _: *mut f32) {}

    #[inline(always)]
    fn add(self, a: Vector, b: Vector) -> Vector {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Vector, b: Vector) -> Vector {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Vector, b: Vector) -> Vector {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Vector, b: Vector) -> Vector {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, a: Vector, b: Vector, c: Vector) -> Vector {
        lanes(|i| mul_add(a[i], b[i], c[i]))
    }

    #[inline(always)]
    fn max(self, a: Vector, b: Vector) -> Vector {
        zip(a, b, greater)
    }

    #[inline(always)]
    fn min(self, a: Vector, b: Vector) -> Vector {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn abs(self, v: Vector) -> Vector {
        map(v, f32::abs)
    }

    #[inline(always)]
    fn copy_sign(self, magnitude: Vector, sign: Vector) -> Vector {
        zip(magnitude, sign, f32::copysign)
    }

    #[inline(always)]
    fn round(self, v: Vector) -> Vector {
        // Adding 2²³ leaves no bits for a fraction, so the sum is rounded to an integer; from 2²³ on every f32 is one.
        // `round_ties_even` is a library call on x86-64 without SSE4.1.
        map(v, |x| {
            const MAGIC: f32 = 8_388_608.0;
            let rounded = ((x.abs() + MAGIC) - MAGIC).copysign(x);
            if x.abs() < MAGIC { rounded } else { x }
        })
    }

    #[inline(always)]
    fn pow2(self, n: Vector) -> Vector {
        map(n, |n| f32::from_bits((n as i32).wrapping_add(127).wrapping_shl(23) as u32))
    }

    #[inline(always)]
    fn exponent(self, v: Vector) -> Vector {
        map(v, |v| ((v.to_bits() >> 23) as i32 - 127) as f32)
    }

    #[inline(always)]
    fn is_nan(self, v: Vector) -> [bool; LANES] {
        map(v, f32::is_nan)
    }

    #[inline(always)]
    fn less(self, a: Vector, b: Vector) -> [bool; LANES] {
        lanes(|i| a[i] < b[i])
    }

    #[inline(always)]
    fn select(self, mask: [bool; LANES], a: Vector, b: Vector) -> Vector {
        lanes(|i| if mask[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn reduce_sum(self, v: Vector) -> f32 {
        fold(v, |a, b| a + b)
    }

    #[inline(always)]
    fn reduce_max(self, v: Vector) -> f32 {
        fold(v, greater)
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> Words {
        [x; LANES]
    }

    #[inline(always)]
    fn bits(self, v: Vector) -> Words {
        map(v, |v| v.to_bits() as i32)
    }

    #[inline(always)]
    fn float(self, v: Words) -> Vector {
        map(v, |v| f32::from_bits(v as u32))
    }

    #[inline(always)]
    fn to_i32(self, v: Vector) -> Words {
        map(self.round(v), |v| v as i32)
    }

    #[inline(always)]
    fn convert(self, v: Words) -> Vector {
        map(v, |v| v as f32)
    }

    #[inline(always)]
    fn add_i32(self, a: Words, b: Words) -> Words {
        lanes(|i| a[i].wrapping_add(b[i]))
    }

    #[inline(always)]
    fn sub_i32(self, a: Words, b: Words) -> Words {
        lanes(|i| a[i].wrapping_sub(b[i]))
    }

    #[inline(always)]
    fn mul_i32(self, a: Words, b: Words) -> Words {
        lanes(|i| a[i].wrapping_mul(b[i]))
    }

    #[inline(always)]
    fn max_i32(self, a: Words, b: Words) -> Words {
        lanes(|i| a[i].max(b[i]))
    }

    #[inline(always)]
    fn max_u32(self, a: Words, b: Words) -> Words {
        lanes(|i| (a[i] as u32).max(b[i] as u32) as i32)
    }

    #[inline(always)]
    fn reduce_max_i32(self, v: Words) -> i32 {
        v.into_iter().fold(i32::MIN, i32::max)
    }

    #[inline(always)]
    fn and(self, a: Words, b: Words) -> Words {
        lanes(|i| a[i] & b[i])
    }

    #[inline(always)]
    fn or(self, a: Words, b: Words) -> Words {
        lanes(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn shift_left<const N: u32>(self, v: Words) -> Words {
        map(v, |v| v << N)
    }

    #[inline(always)]
    fn shift_right<const N: u32>(self, v: Words) -> Words {
        map(v, |v| ((v as u32) >> N) as i32)
    }

    #[inline(always)]
    fn even_bytes(self, v: Words) -> Words {
        of_halves(v, |half| half << 8 >> 8)
    }

    #[inline(always)]
    fn odd_bytes(self, v: Words) -> Words {
        of_halves(v, |half| half >> 8)
    }

    #[inline(always)]
    fn dot_i16(self, a: Words, b: Words) -> Words {
        dot_i16(a, b)
    }
}
