//! Vectors of f32: each algorithm is written once over [`Simd`] and compiled once per instruction set.
//!
//! ```text
//! Kernel::run<S: Simd>(self, simd: S)  ──SupportedIsa::run──▶  Avx512 (16 lanes; with tile registers or without) · Avx2 (8, FMA) · Portable (8)
//! ```
//!
//! A kernel is a struct of its arguments that implements [`Kernel`]; [`SupportedIsa::run`] is the only place where an
//! instruction set is chosen. A value of a `Simd` type is a token: it exists only where the machine has the
//! instructions, so its methods are safe.
//!
//! Every function between `Kernel::run` and the methods of `Simd` must be `#[inline(always)]` (closures too, by being
//! called directly). Code that is not inlined into the dispatched function is compiled without the instructions:
//! correct but slow.
//!
//! # Which numbers depend on the instruction set
//! * [`Simd::mul_add`] rounds once with FMA; the portable path on x86-64 multiplies, then adds, and rounds twice, unless
//!   the build enables FMA.
//! * The dot product of bf16 is one instruction on some sets, which treats subnormal numbers as zeros; tile registers
//!   add up 32 products before they add the result to a sum.
//! * GELU comes from tables where [`Simd::lookup`] is an instruction, and from an exponential elsewhere.
//! * [`Simd::reduce_sum`] adds the lanes by halves in a fixed tree, so sums along a row depend on `LANES`.
//!
//! Everything else is correctly rounded in each lane and the same everywhere.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod amx_emulator;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod isa;
mod portable;
mod processor;

pub use isa::Isa;
pub(crate) use isa::SupportedIsa;
#[cfg(test)]
pub(crate) use isa::supported;
pub(crate) use portable::FUSED as PORTABLE_IS_FUSED;
pub(crate) use processor::is_intel;

/// Bytes of a cache line, and the f32 values in them.
pub(crate) const LINE_BYTES: usize = 64;
pub(crate) const LINE_VALUES: usize = LINE_BYTES / size_of::<f32>();

/// Rows, and columns, of a product that tile registers hold at once.
pub(crate) const TILE_REGISTERS_SIDE: usize = 32;

/// Work that is compiled for each instruction set; the struct holds the arguments.
pub(crate) trait Kernel {
    /// The result of the work.
    type Output;

    /// Does the work. Implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// The vector operations that the kernels need. Implementations exist only where their instructions do.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// Values in one vector, a power of two.
    const LANES: usize;
    /// Vectors that the register file holds.
    const REGISTERS: usize;
    /// One vector.
    type F32: Copy;
    /// One truth value per lane.
    type Mask: Copy;

    /// Runs `kernel` as a function of its own, compiled with these instructions: for code that is too large to inline
    /// wherever it is used.
    fn call<K: Kernel>(self, kernel: K) -> K::Output;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::F32;

    /// The first `LANES` values of `from`.
    ///
    /// # Panics
    /// When there are fewer.
    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::F32 {
        assert!(from.len() >= Self::LANES);
        // SAFETY: `from` holds at least `LANES` initialised values for the length of this call.
        unsafe { self.load_ptr(from.as_ptr()) }
    }

    /// The first `min(from.len(), LANES)` values of `from`; the other lanes hold `fill`.
    fn load_partial(self, from: &[f32], fill: f32) -> Self::F32;

    /// Writes `v` to the first `LANES` values of `to`.
    ///
    /// # Panics
    /// When there are fewer.
    #[inline(always)]
    fn store(self, v: Self::F32, to: &mut [f32]) {
        assert!(to.len() >= Self::LANES);
        // SAFETY: `to` is borrowed for writing and holds at least `LANES` values.
        unsafe { self.store_ptr(v, to.as_mut_ptr()) }
    }

    /// Writes the first `min(to.len(), LANES)` lanes of `v` to `to`.
    fn store_partial(self, v: Self::F32, to: &mut [f32]);

    /// Loads `LANES` values from `from` on, aligned or not.
    ///
    /// # Safety
    /// `from` is valid for reading `LANES` initialised values.
    unsafe fn load_ptr(self, from: *const f32) -> Self::F32;

    /// Writes `LANES` values from `to` on, aligned or not.
    ///
    /// # Safety
    /// `to` is valid for writing `LANES` values.
    unsafe fn store_ptr(self, v: Self::F32, to: *mut f32);

    /// Transposes a square of 8 × 8 values: value `k` of row `i` goes to `to[k · stride + i]`.
    ///
    /// # Safety
    /// Each of `rows` is valid for reading 8 initialised values, and `to` for writing `7 · stride + 8`; none of them
    /// overlap.
    unsafe fn transpose_ptr(self, rows: [*const f32; 8], to: *mut f32, stride: usize);

    /// Prefetches the cache line of `at` into the second-level cache; any address is allowed.
    fn prefetch(self, at: *const f32);

    /// Prefetches the cache line of `at` into the caches as one that will be written; any address is allowed.
    fn prefetch_to_write(self, at: *mut f32);

    /// `a + b`.
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a − b`.
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a · b`.
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a / b`.
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a · b + c`, rounded once where there is FMA.
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// `if a > b { a } else { b }`: a NaN in either gives `b`.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `if a < b { a } else { b }`: a NaN in either gives `b`.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `|v|`.
    fn abs(self, v: Self::F32) -> Self::F32;
    /// `|magnitude|` with the sign bit of `sign`.
    fn copy_sign(self, magnitude: Self::F32, sign: Self::F32) -> Self::F32;
    /// The nearest integer, halves to even.
    fn round(self, v: Self::F32) -> Self::F32;
    /// `2ⁿ` for integral `n` in `-126..=127`; unspecified elsewhere.
    fn pow2(self, n: Self::F32) -> Self::F32;
    /// `v · 2ⁿ` for integral `n` in `-126..=127`; unspecified elsewhere, except that NaN in `v` stays NaN.
    #[inline(always)]
    fn scale(self, v: Self::F32, n: Self::F32) -> Self::F32 {
        self.mul(v, self.pow2(n))
    }
    /// `⌊log₂ v⌋` for normal `v > 0`; unspecified elsewhere.
    fn exponent(self, v: Self::F32) -> Self::F32;
    /// Whether each lane is NaN.
    fn is_nan(self, v: Self::F32) -> Self::Mask;
    /// `a < b`, false for NaN.
    fn less(self, a: Self::F32, b: Self::F32) -> Self::Mask;
    /// `if mask { a } else { b }`.
    fn select(self, mask: Self::Mask, a: Self::F32, b: Self::F32) -> Self::F32;

    /// Whether [`Simd::lookup`] is an instruction.
    const LOOKUP: bool = false;
    /// For each lane, the value of `table` at the index in the lane's lowest five bits; only where [`Simd::LOOKUP`].
    #[inline(always)]
    fn lookup(self, _table: &[f32; 32], _number: Self::I32) -> Self::F32 {
        unreachable!("whoever calls this asks first whether it is an instruction")
    }

    /// The sum of all lanes: first lane `i` plus lane `i + LANES / 2`, then the same with the remaining half, and so
    /// on.
    fn reduce_sum(self, v: Self::F32) -> f32;
    /// The greatest of all lanes, by halves as in [`Simd::reduce_sum`], each step a [`Simd::max`].
    fn reduce_max(self, v: Self::F32) -> f32;

    /// Whether [`Simd::dot_bf16`] is an instruction.
    const DOT_BF16: bool = false;
    /// Whether [`Simd::dot_int8`] is an instruction.
    const DOT_INT8: bool = false;
    /// Whether there are tile registers that multiply the words of [`Simd::dot_bf16`] or [`Simd::dot_int8`], whichever
    /// is an instruction: up to [`TILE_REGISTERS_SIDE`] rows and columns at once, sixteen words of `k` at a time.
    const HAS_TILE_REGISTERS: bool = false;
    /// `LANES` words of 32 bits: integers, pairs of bf16 or i16, or four bytes each.
    type I32: Copy;

    /// `x` in every lane.
    fn splat_i32(self, x: i32) -> Self::I32;

    /// Loads `LANES` words from `from` on, aligned or not.
    ///
    /// # Safety
    /// `from` is valid for reading `LANES` initialised words.
    #[inline(always)]
    unsafe fn load_i32_ptr(self, from: *const i32) -> Self::I32 {
        // SAFETY: the caller's promise; every word is an f32 too.
        self.bits(unsafe { self.load_ptr(from.cast()) })
    }

    /// The bits of each lane.
    fn bits(self, v: Self::F32) -> Self::I32;
    /// The floats with these bits.
    fn float(self, v: Self::I32) -> Self::F32;
    /// The nearest integers, halves to even; unspecified outside of `i32`.
    fn to_i32(self, v: Self::F32) -> Self::I32;
    /// The nearest floats.
    fn convert(self, v: Self::I32) -> Self::F32;
    /// `a + b`, wrapping.
    fn add_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a − b`, wrapping.
    fn sub_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a · b`, wrapping.
    fn mul_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// The greater of the two values in each lane.
    fn max_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// The greater of the two values in each lane, as unsigned numbers.
    fn max_u32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// The greatest of all lanes.
    fn reduce_max_i32(self, v: Self::I32) -> i32;
    /// `a & b`.
    fn and(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a | b`.
    fn or(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `v · 2ᴺ`, wrapping.
    fn shift_left<const N: u32>(self, v: Self::I32) -> Self::I32;
    /// `v` as unsigned words, divided by `2ᴺ`.
    fn shift_right<const N: u32>(self, v: Self::I32) -> Self::I32;

    /// Bytes 0 and 2 of each word as a pair of i16.
    fn even_bytes(self, v: Self::I32) -> Self::I32;
    /// Bytes 1 and 3 of each word as a pair of i16.
    fn odd_bytes(self, v: Self::I32) -> Self::I32;
    /// In each lane, the sum of the two products of the pairs of i16.
    fn dot_i16(self, a: Self::I32, b: Self::I32) -> Self::I32;

    /// `sum` plus the products of the four u8 in `x` with the four i8 in `w`, wrapping; only where [`Simd::DOT_INT8`].
    #[inline(always)]
    fn dot_int8(self, _x: Self::I32, _w: Self::I32, _sum: Self::I32) -> Self::I32 {
        unreachable!("whoever calls this asks first whether it is an instruction")
    }

    /// The bf16 in the upper half of each word.
    #[inline(always)]
    fn upper_bf16(self, v: Self::I32) -> Self::F32 {
        self.float(self.and(v, self.splat_i32(!0xffff)))
    }

    /// The bf16 in the lower half of each word.
    #[inline(always)]
    fn lower_bf16(self, v: Self::I32) -> Self::F32 {
        self.float(self.shift_left::<16>(v))
    }

    /// `lower(x) · lower(w) + (upper(x) · upper(w) + sum)`, as two [`Simd::mul_add`] that treat subnormal arguments and
    /// results as zeros; only where [`Simd::DOT_BF16`].
    #[inline(always)]
    fn dot_bf16(self, _x: Self::I32, _w: Self::I32, _sum: Self::F32) -> Self::F32 {
        unreachable!("whoever calls this asks first whether it is an instruction")
    }

    /// Sets up the tile registers of this thread for `rows` rows, 1 to [`TILE_REGISTERS_SIDE`]. This and the other
    /// methods on tiles are only for sets with [`Simd::HAS_TILE_REGISTERS`].
    #[inline(always)]
    fn set_up_tiles(self, _rows: usize) {
        unreachable!("whoever calls this asks first whether there are any")
    }

    /// Gives the tile registers back.
    #[inline(always)]
    fn release_tiles(self) {
        unreachable!("whoever calls this asks first whether there are any")
    }

    /// Sets the sums of `rows` rows to zero.
    ///
    /// # Safety
    /// The tiles of this thread are set up for `rows` rows.
    #[inline(always)]
    unsafe fn zero_tiles(self, _rows: usize) {
        unreachable!("whoever calls this asks first whether there are any")
    }

    /// Loads stored sums of `rows` rows, `stride` values from row to row, to continue from them.
    ///
    /// # Safety
    /// The tiles of this thread are set up for `rows` rows, and `from` is valid for reading [`TILE_REGISTERS_SIDE`]
    /// values of each.
    #[inline(always)]
    unsafe fn load_tiles(self, _rows: usize, _from: *const f32, _stride: usize) {
        unreachable!("whoever calls this asks first whether there are any")
    }

    /// Stores the sums of `rows` rows, `stride` words from row to row.
    ///
    /// # Safety
    /// The tiles of this thread are set up for `rows` rows, and `to` is valid for writing [`TILE_REGISTERS_SIDE`] words
    /// of each.
    #[inline(always)]
    unsafe fn store_tiles(self, _rows: usize, _to: *mut f32, _stride: usize) {
        unreachable!("whoever calls this asks first whether there are any")
    }

    /// Stores values that nobody reads, so that [`Simd::store_tiles`] need not wait for the tile stores to wake up.
    ///
    /// # Safety
    /// The tiles of this thread are set up, and `to` is valid for writing [`TILE_REGISTERS_SIDE`] / 2 rows of a vector
    /// each.
    #[inline(always)]
    unsafe fn keep_tile_stores_awake(self, _to: *mut f32) {
        unreachable!("whoever calls this asks first whether there are any")
    }

    /// Adds the products of sixteen words of each of `rows` rows, row behind row at `x`, with sixteen lines of
    /// [`TILE_REGISTERS_SIDE`] words at `w`. For bf16, the sums of the words' two halves are added to each other, and
    /// the result to the sum.
    ///
    /// # Safety
    /// The tiles of this thread are set up for `rows` rows, and `x` and `w` are valid for reading all these words.
    #[inline(always)]
    unsafe fn add_tile_products(self, _rows: usize, _x: *const f32, _w: *const f32) {
        unreachable!("whoever calls this asks first whether there are any")
    }

    /// The nearest bf16 of each lane, ties to even, as f32.
    #[inline(always)]
    fn round_bf16(self, v: Self::F32) -> Self::F32 {
        let bits = self.bits(v);
        let last = self.and(self.shift_right::<16>(bits), self.splat_i32(1));
        let up = self.add_i32(bits, self.add_i32(last, self.splat_i32(0x7fff)));
        // rounding up could carry the payload of a NaN into its sign
        let quiet = self.float(self.or(bits, self.splat_i32(0x0040_0000)));
        let rounded = self.select(self.is_nan(v), quiet, self.float(up));
        self.upper_bf16(self.bits(rounded))
    }

    /// Converts two vectors of consecutive values to pairs of bf16: the first of each pair in the upper half, so that
    /// [`Simd::dot_bf16`] takes it first; subnormal numbers become zeros. Only where [`Simd::DOT_BF16`].
    #[inline(always)]
    fn pair_bf16(self, _first: Self::F32, _second: Self::F32) -> Self::I32 {
        unreachable!("whoever calls this asks first whether it is an instruction")
    }

    /// Converts two vectors to bf16, lane by lane: the value of `upper` goes to the upper half of each word, that of
    /// `lower` to the lower half; subnormal numbers become zeros. Only where [`Simd::DOT_BF16`].
    #[inline(always)]
    fn join_bf16(self, _upper: Self::F32, _lower: Self::F32) -> Self::I32 {
        unreachable!("whoever calls this asks first whether it is an instruction")
    }
}

/// Returns `at`, but hides from the compiler how far it lies from other addresses. The compiler would otherwise compute
/// each address from the one before, addition after addition, rather than keep a few.
#[inline(always)]
#[cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(clippy::pointers_in_nomem_asm_block, reason = "the block looks at nothing behind the pointer")
)]
pub(crate) fn opaque(at: *const i32) -> *const i32 {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    let at = {
        let mut at = at;
        // SAFETY: no instruction at all.
        unsafe { std::arch::asm!("/* {} */", inout(reg) at, options(pure, nomem, nostack, preserves_flags)) };
        at
    };
    at
}

#[cfg(test)]
mod tests {
    use super::{Kernel, Simd, supported};

    /// Every operation on two vectors, as rows of a table.
    struct Table<'a>(&'a [f32], &'a [f32]);

    impl Kernel for Table<'_> {
        type Output = Vec<(&'static str, Vec<f32>)>;

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Output {
            let (a, b) = (s.load(self.0), s.load(self.1));
            let row = |name, v| {
                let mut out = vec![0.0; S::LANES];
                s.store(v, &mut out);
                (name, out)
            };
            vec![
                row("add", s.add(a, b)),
                row("sub", s.sub(a, b)),
                row("mul", s.mul(a, b)),
                row("div", s.div(a, b)),
                row("max", s.max(a, b)),
                row("min", s.min(a, b)),
                row("abs", s.abs(a)),
                row("copy_sign", s.copy_sign(a, b)),
                row("round", s.round(a)),
                row("select", s.select(s.less(a, b), a, b)),
                row("pow2", s.pow2(s.round(s.min(s.max(a, s.splat(-126.0)), s.splat(127.0))))),
                row("exponent", s.exponent(s.max(s.min(s.abs(a), s.splat(1e38)), s.splat(1e-30)))),
                row("is_nan", s.select(s.is_nan(b), a, b)),
                row("splat", s.splat(3.5)),
            ]
        }
    }

    fn expected(name: &str, a: f32, b: f32) -> f32 {
        match name {
            "add" => a + b,
            "sub" => a - b,
            "mul" => a * b,
            "div" => a / b,
            "max" => {
                if a > b {
                    a
                } else {
                    b
                }
            }
            "min" => {
                if a < b {
                    a
                } else {
                    b
                }
            }
            "abs" => a.abs(),
            "copy_sign" => a.copysign(b),
            "round" => a.round_ties_even(),
            "select" => {
                if a < b {
                    a
                } else {
                    b
                }
            }
            "pow2" => {
                let low = if a > -126.0 { a } else { -126.0 };
                f64::from(if low < 127.0 { low } else { 127.0 }).round_ties_even().exp2() as f32
            }
            "exponent" => {
                let most = if a.abs() < 1e38 { a.abs() } else { 1e38 };
                f64::from(if most > 1e-30 { most } else { 1e-30 }).log2().floor() as f32
            }
            "is_nan" => {
                if b.is_nan() {
                    a
                } else {
                    b
                }
            }
            "splat" => 3.5,
            other => panic!("no twin for {other}"),
        }
    }

    #[test]
    fn lanes_round_like_scalars() {
        let a = [
            0.0,
            -0.0,
            0.5,
            1.5,
            2.5,
            -2.5,
            1e30,
            -1e30,
            f32::NAN,
            7.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            127.0,
            -126.0,
            0.1,
            3.0,
        ];
        let b = [
            -0.0,
            0.0,
            -1.0,
            2.0,
            f32::NAN,
            2.5,
            -1e30,
            1e-30,
            1.0,
            -7.0,
            1.0,
            2.0,
            3.0,
            4.0,
            0.3,
            f32::INFINITY,
        ];
        for isa in supported() {
            for (name, row) in isa.run(Table(&a, &b)) {
                for (lane, got) in row.into_iter().enumerate() {
                    let want = expected(name, a[lane], b[lane]);
                    let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
                    assert!(same, "{isa:?} {name}({}, {}) = {got}, expected {want}", a[lane], b[lane]);
                }
            }
        }
    }

    struct Partial<'a>(&'a [f32], &'a mut [f32]);

    impl Kernel for Partial<'_> {
        type Output = (f32, f32, usize);

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Output {
            let v = s.load_partial(self.0, -1.0);
            s.store_partial(v, self.1);
            (s.reduce_sum(v), s.reduce_max(v), S::LANES)
        }
    }

    #[test]
    fn tails_stay_inside_their_slices() {
        let values: Vec<f32> = (1..=20u8).map(f32::from).collect();
        for isa in supported() {
            for len in 0..=20 {
                let mut out = [0.0; 20];
                let (sum, max, lanes) = isa.run(Partial(&values[..len], &mut out[..len]));
                let taken = len.min(lanes);
                assert_eq!(out[..taken], values[..taken]);
                assert!(out[taken..].iter().all(|v| *v == 0.0));
                let want: f32 = values[..taken].iter().sum::<f32>() - (lanes - taken) as f32;
                assert_eq!(sum, want);
                assert_eq!(max, if taken == 0 { -1.0 } else { taken as f32 });
            }
        }
    }

    struct Square<'a>(&'a [f32], usize, &'a mut [f32]);

    impl Kernel for Square<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let rows = std::array::from_fn(|i| self.0[i * 8..][..8].as_ptr());
            let to = &mut self.2[..7 * self.1 + 8];
            // SAFETY: the rows hold 8 values each, the target all that is written, and both are slices.
            unsafe { s.transpose_ptr(rows, to.as_mut_ptr(), self.1) };
        }
    }

    #[test]
    fn squares_are_transposed() {
        let from: Vec<f32> = (0..64u8).map(f32::from).collect();
        for isa in supported() {
            for stride in [8, 11, 32] {
                let mut to = vec![-1.0; 7 * stride + 8];
                isa.run(Square(&from, stride, &mut to));
                for (at, got) in to.into_iter().enumerate() {
                    let (k, i) = (at / stride, at % stride);
                    assert_eq!(got, if i < 8 { from[i * 8 + k] } else { -1.0 }, "{isa:?}, stride {stride}");
                }
            }
        }
    }

    #[test]
    fn sums_follow_the_documented_tree() {
        // magnitudes are so far apart that another order gives another sum
        let values: Vec<f32> = (0..16).map(|i| [1e8, 1.0, -1e8, 0.5][i % 4] * (i as f32 + 1.0)).collect();
        for isa in supported() {
            let (sum, _, lanes) = isa.run(Partial(&values, &mut [0.0; 16]));
            let mut tree = values[..lanes].to_vec();
            while tree.len() > 1 {
                let half = tree.len() / 2;
                tree = (0..half).map(|i| tree[i] + tree[i + half]).collect();
            }
            assert_eq!(sum.to_bits(), tree[0].to_bits());
        }
    }
}
