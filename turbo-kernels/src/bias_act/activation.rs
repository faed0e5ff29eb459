//! Activations of one vector, for the kernels here and the epilogues of products.

use super::{Activation, table};
use crate::{math, simd::Simd};

/// How far an activation may be off: its absolute error is at most this times `max(1, |x|)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accuracy {
    /// 3e-7, a few roundings of f32.
    Full,
    /// 3e-4, a fraction of the error of sums of products of bf16 or of bytes.
    Rough,
}

/// An expression in which the activation is a constant, once for each activation: the compiler leaves a match inside a
/// loop over vectors, with a jump for every vector.
macro_rules! with_activation {
    ($activation:expr, $known:ident => $body:expr) => {
        $crate::bias_act::with_activation!(@ $activation, $known, $body, GeluErf GeluTanh Relu Silu Tanh Sigmoid Log1pRelu)
    };
    (@ $activation:expr, $known:ident, $body:expr, $($name:ident)*) => {
        match $activation {
            $($crate::Activation::$name => {
                const $known: $crate::Activation = $crate::Activation::$name;
                $body
            })*
        }
    };
}
pub(crate) use with_activation;

/// `activation(x)` in every lane; see [`with_activation`] for loops.
#[inline(always)]
pub(crate) fn apply<S: Simd>(s: S, accuracy: Accuracy, activation: Activation, x: S::F32) -> S::F32 {
    match activation {
        Activation::GeluErf if S::LOOKUP => match accuracy {
            Accuracy::Full => table::ERF.gelu(s, x),
            Accuracy::Rough => table::ROUGH_ERF.gelu(s, x),
        },
        Activation::GeluTanh if S::LOOKUP => match accuracy {
            Accuracy::Full => table::TANH.gelu(s, x),
            Accuracy::Rough => table::ROUGH_TANH.gelu(s, x),
        },
        Activation::GeluErf => gelu_erf(s, x),
        Activation::GeluTanh => gelu_tanh(s, x),
        // in this order NaN stays NaN
        Activation::Relu => s.max(s.splat(0.0), x),
        Activation::Silu => silu(s, x),
        Activation::Tanh => math::tanh(s, x),
        Activation::Sigmoid => math::sigmoid(s, x),
        Activation::Log1pRelu => math::ln_1p_nonnegative(s, s.max(s.splat(0.0), x)),
    }
}

/// `−|x|`, but at least `−most`: there `1 − Φ` is as good as 0, and an infinite magnitude would turn it into NaN.
#[inline(always)]
fn bounded<S: Simd>(s: S, x: S::F32, most: f32) -> S::F32 {
    // in this order NaN stays NaN
    s.max(s.splat(-most), s.copy_sign(x, s.splat(-1.0)))
}

/// `x · Φ(x) = max(x, 0) − |x| · (1 − Φ(|x|))` from `minus = −|x|` and an approximation of `1 − Φ(|x|)`.
///
/// The error of the approximation counts little: where `x` is large, it is far below `max(x, 0)`; where `x` is small,
/// it is multiplied by `x`.
#[inline(always)]
fn by_complement<S: Simd>(s: S, x: S::F32, minus: S::F32, complement: S::F32) -> S::F32 {
    s.mul_add(minus, complement, s.max(s.splat(0.0), x))
}

/// `x · Φ(x)`: the logarithm of `1 − Φ` is so smooth that a polynomial and an exponential suffice.
///
/// The polynomial is a minimax fit up to 8 in the measure of the result (`x` times the error of `1 − Φ(x)`, 6e-8),
/// found like those of [`crate::math`]. It takes half as much as the error function, and no division.
#[inline(always)]
fn gelu_erf<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let minus = bounded(s, x, 8.0);
    let log = math::polynomial(
        s,
        minus,
        [-1.0, 1.151_137_4, -0.458_970_3, 0.053_134_482, 0.007_891_644, 0.000_708_216_1, 0.000_025_688_512],
    );
    by_complement(s, x, minus, math::exp2_normal(s, log))
}

/// `x/2 · (1 + tanh u) = x · sigmoid(2u)` with `u = √(2/π) · (x + 0.044715·x³)`.
#[inline(always)]
fn gelu_tanh<S: Simd>(s: S, x: S::F32) -> S::F32 {
    const TWICE_ROOT_TWO_OVER_PI: f64 = 1.595_769_121_605_730_7;
    const LINEAR: f32 = (TWICE_ROOT_TWO_OVER_PI * std::f64::consts::LOG2_E) as f32;
    const CUBIC: f32 = (TWICE_ROOT_TWO_OVER_PI * std::f64::consts::LOG2_E * 0.044_715) as f32;
    let minus = bounded(s, x, 10.0);
    let log = s.mul(minus, s.mul_add(s.mul(minus, minus), s.splat(CUBIC), s.splat(LINEAR)));
    by_complement(s, x, minus, odds_to_chance(s, math::exp2_normal(s, log)))
}

/// `x · sigmoid(x)`.
#[inline(always)]
fn silu<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let minus = bounded(s, x, 87.0);
    let log = s.mul(minus, s.splat(std::f32::consts::LOG2_E));
    by_complement(s, x, minus, odds_to_chance(s, math::exp2_normal(s, log)))
}

/// `e / (1 + e)`.
#[inline(always)]
fn odds_to_chance<S: Simd>(s: S, e: S::F32) -> S::F32 {
    s.div(e, s.add(s.splat(1.0), e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lanes,
        simd::{Kernel, supported},
        suite::twin,
    };

    struct Apply<'a>(Accuracy, Activation, &'a [f32]);

    impl Kernel for Apply<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<f32> {
            let Apply(accuracy, activation, x) = self;
            let mut out = vec![0.0; x.len()];
            for (x, out) in x.chunks(S::LANES).zip(out.chunks_mut(S::LANES)) {
                lanes::write(s, apply(s, accuracy, activation, lanes::read(s, x, 0.0)), out);
            }
            out
        }
    }

    const BOUNDS: [(Accuracy, f64); 2] = [(Accuracy::Full, 3e-7), (Accuracy::Rough, 3e-4)];

    /// Every 257th f32 of a magnitude between 2⁻²² and 2⁵, every 65537th of any other, of both signs.
    fn arguments() -> Vec<f32> {
        let (low, high) = (2f32.powi(-22).to_bits(), 32f32.to_bits());
        let near = (low..high).step_by(257);
        let far = (0..low).step_by(65_537).chain((high..=f32::MAX.to_bits()).step_by(65_537));
        near.chain(far).flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)]).collect()
    }

    #[test]
    fn activations_are_within_their_bound() {
        let x = arguments();
        for activation in [Activation::GeluErf, Activation::GeluTanh, Activation::Silu] {
            let want: Vec<f64> = x.iter().map(|&x| twin::activate(activation, x.into())).collect();
            for (isa, (accuracy, bound)) in supported().flat_map(|isa| BOUNDS.map(|bound| (isa, bound))) {
                let got = isa.run(Apply(accuracy, activation, &x));
                for ((&x, &got), &want) in x.iter().zip(&got).zip(&want) {
                    let off = (f64::from(got) - want).abs();
                    let allowed = bound * f64::from(x.abs()).max(1.0);
                    assert!(
                        off <= allowed,
                        "{isa:?} {accuracy:?} {activation:?}({x:e}) = {got:e}, expected {want:e}"
                    );
                }
            }
        }
    }

    #[test]
    fn limits_and_nan_are_kept() {
        let x = [f32::INFINITY, f32::NEG_INFINITY, 0.0, f32::NAN];
        for (isa, (accuracy, _)) in supported().flat_map(|isa| BOUNDS.map(|bound| (isa, bound))) {
            for activation in [Activation::GeluErf, Activation::GeluTanh, Activation::Silu] {
                let out = isa.run(Apply(accuracy, activation, &x));
                assert!(out[0] == f32::INFINITY && out[1].abs() < 1e-12 && out[2] == 0.0, "{isa:?}: {out:?}");
                assert!(out[3].is_nan(), "{isa:?}: {out:?}");
            }
        }
    }
}
