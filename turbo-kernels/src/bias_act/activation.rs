//! Activations of one vector, for the kernels here and the epilogues of products.

use super::Activation;
use crate::{math, simd::Simd};

/// `activation(x)` in every lane. The absolute error is at most 3e-7 · max(1, |x|).
///
/// A match per vector: the compiler takes it out of loops over vectors.
#[inline(always)]
pub(crate) fn apply<S: Simd>(s: S, activation: Activation, x: S::F32) -> S::F32 {
    match activation {
        Activation::GeluErf => gelu_erf(s, x),
        Activation::GeluTanh => gelu_tanh(s, x),
        // in this order NaN stays NaN
        Activation::Relu => s.max(s.splat(0.0), x),
        Activation::Silu => s.mul(x, math::sigmoid(s, x)),
        Activation::Tanh => math::tanh(s, x),
        Activation::Sigmoid => math::sigmoid(s, x),
        Activation::Log1pRelu => math::ln_1p_nonnegative(s, s.max(s.splat(0.0), x)),
    }
}

/// `x/2 · (1 + erf(x/√2))`.
#[inline(always)]
fn gelu_erf<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let erf = math::erf(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2)));
    let half = s.mul(x, s.splat(0.5));
    s.mul_add(half, erf, half)
}

/// `x/2 · (1 + tanh u) = x · sigmoid(2u)` with `u = √(2/π) · (x + 0.044715·x³)`.
#[inline(always)]
fn gelu_tanh<S: Simd>(s: S, x: S::F32) -> S::F32 {
    const TWICE_ROOT_TWO_OVER_PI: f32 = 1.595_769;
    let cubic = s.mul_add(s.mul(x, x), s.splat(0.044_715), s.splat(1.0));
    let twice_u = s.mul(s.mul(x, s.splat(TWICE_ROOT_TWO_OVER_PI)), cubic);
    s.mul(x, math::sigmoid(s, twice_u))
}
