//! Products of the crate `gemm`, which share no code with ours.

// The crate offers its products as an unsafe function alone.
#![allow(unsafe_code)]

use gemm::Parallelism;

/// `[rows, out_features]` of `x`, `[rows, in_features]`, and `weight`, `[out_features, in_features]`: `x · weightᵀ` on
/// this thread.
///
/// # Panics
/// When a slice does not fit the sizes.
pub(crate) fn product<T: Number>(
    [rows, out_features, in_features]: [usize; 3],
    x: &[T],
    weight: &[T],
    out: &mut [T],
) {
    assert_eq!(
        [x.len(), weight.len(), out.len()],
        [rows * in_features, out_features * in_features, rows * out_features]
    );
    let (m, n, k) = (rows, out_features, in_features);
    let step = |len: usize| isize::try_from(len).expect("a slice of that length exists");
    // SAFETY: the lengths were checked above. The strides are those of the three row-major matrices, the weight's
    // swapped because its transpose is multiplied; `out` is borrowed alone and not read.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            step(n),
            false,
            x.as_ptr(),
            1,
            step(k),
            weight.as_ptr(),
            step(k),
            1,
            T::ZERO,
            T::ONE,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// Numbers that it multiplies.
pub(crate) trait Number: Copy + 'static {
    const ZERO: Self;
    const ONE: Self;
}

impl Number for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
}

impl Number for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
}

/// Values in −1..1 without a pattern that a kernel could share (SplitMix64; Steele et al., 2014).
pub(crate) fn values(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}
