//! Exponential, logarithm, error function, tanh and functions made of them, over the lanes of any [`Simd`].
//!
//! In and out: vectors of f32. NaN gives NaN, infinities give limits. Errors are in units in the last place of the
//! exact result, on every f32 argument that the tests visit; without FMA they are one unit larger:
//!
//! | function | error | method |
//! |---|---|---|
//! | [`exp2`] | 2.5 ulp | `2ⁿ · 2^r`, `r` within ±½, polynomial of degree 5 |
//! | [`rough_exp2`] | 2048 ulp, 2⁻¹³ | as [`exp2`], of degree 3: for what is rounded to bf16, which is off by 2⁻⁸ |
//! | [`exp_nonpositive`] | 1 ulp | `2ⁿ · e^r`, `r` within ±ln 2 / 2, polynomial of degree 6 |
//! | [`erf`] | 1 ulp | odd polynomial near 0; `1 − e^(−t·q(t))` beyond 0.925 |
//! | [`tanh`] | 1.5 ulp | odd polynomial near 0; `1 − 2e^(−2t) / (1 + e^(−2t))` beyond 0.625 |
//! | [`sigmoid`] | 2 ulp | by e to minus the magnitude of `x`, so nothing overflows |
//! | [`ln_1p_nonnegative`] | 2.5 ulp | `n · ln 2 + 2 · artanh`, and what `1 + x` rounded off, divided by it |
//!
//! The polynomials are minimax fits in the measure that the result needs (relative error of the function, not of the
//! polynomial), by iteratively reweighted least squares on 600 Chebyshev nodes; coefficients were rounded to f32 one
//! after another, from the low end, each time refitting those that follow. That of the logarithm interpolates at three
//! Chebyshev nodes, which is enough. The forms are the classical ones; that of `erf` fits `−ln(erfc t)/t`, which is
//! smooth and nearly linear.

use crate::simd::Simd;

/// `c₀ + c₁·x + c₂·x² + …` by Horner's rule.
#[inline(always)]
pub(crate) fn polynomial<S: Simd, const N: usize>(s: S, x: S::F32, coefficients: [f32; N]) -> S::F32 {
    let mut sum = s.splat(coefficients[N - 1]);
    for c in coefficients[..N - 1].iter().rev() {
        sum = s.mul_add(sum, x, s.splat(*c));
    }
    sum
}

// ln 2 in two parts. The first has nine bits, so that an exponent times it is exact, with or without FMA.
const LN_2_HIGH: f32 = 355.0 / 512.0;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// `eˣ` for `x ≤ 0`, which is all that softmax and the functions below need: nothing can overflow.
///
/// Results below 2⁻¹²⁶ are 0, so no later step meets a subnormal number.
#[inline(always)]
pub(crate) fn exp_nonpositive<S: Simd>(s: S, x: S::F32) -> S::F32 {
    const LEAST: f32 = -87.336_54; // ln 2⁻¹²⁶
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let r = s.mul_add(n, s.splat(-LN_2_HIGH), x);
    let r = s.mul_add(n, s.splat(-LN_2_LOW), r);
    let fraction = polynomial(
        s,
        r,
        [1.0, 1.0, 0.499_999_94, 0.166_665_21, 0.041_668_266, 0.008_368_677, 0.001_382_073_4],
    );
    s.select(s.less(x, s.splat(LEAST)), s.splat(0.0), s.scale(fraction, n))
}

/// `2ˣ` for `x ≤ 127`.
///
/// Results below 2⁻¹²⁶ are 0, so no later step meets a subnormal number.
#[inline(always)]
pub(crate) fn exp2<S: Simd>(s: S, x: S::F32) -> S::F32 {
    s.select(s.less(x, s.splat(-126.0)), s.splat(0.0), exp2_normal(s, x))
}

/// [`exp2`] of which only the upper bits are right.
#[inline(always)]
pub(crate) fn rough_exp2<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let power = exp2_by(s, x, [1.0, 0.693_282_9, 0.242_210_95, 0.055_009_045]);
    s.select(s.less(x, s.splat(-126.0)), s.splat(0.0), power)
}

/// `2ˣ` for `x` in `-126..=127`; nothing useful elsewhere, except that NaN stays NaN.
#[inline(always)]
pub(crate) fn exp2_normal<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let fraction = [1.0, std::f32::consts::LN_2, 0.240_222_83, 0.055_505_585, 0.009_669_66, 0.001_330_051_6];
    exp2_by(s, x, fraction)
}

/// `2ⁿ` times the polynomial of the rest of `x`.
#[inline(always)]
fn exp2_by<S: Simd, const N: usize>(s: S, x: S::F32, fraction: [f32; N]) -> S::F32 {
    let n = s.round(x);
    s.scale(polynomial(s, s.sub(x, n), fraction), n)
}

/// The error function.
#[inline(always)]
pub(crate) fn erf<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let t = s.abs(x);
    let square = s.mul(t, t);
    let near = polynomial(
        s,
        square,
        [0.128_379_15, -0.376_124_9, 0.112_817_31, -0.026_762_966, 0.004_987_352_5, -0.000_595_958_4],
    );
    let near = s.mul_add(near, t, t);
    // From 4 on the result rounds to 1, and the fit ends. NaN stays NaN: it is the second argument.
    let bounded = s.min(s.splat(4.0), t);
    let q = polynomial(
        s,
        bounded,
        [1.128_514_4, 0.635_718_17, 0.105_262_02, -0.022_890_063, 0.003_214_981_6, -0.000_213_987_44],
    );
    let complement = exp_nonpositive(s, s.mul(s.sub(s.splat(0.0), bounded), q));
    let far = s.sub(s.splat(1.0), complement);
    s.copy_sign(s.select(s.less(t, s.splat(0.925)), near, far), x)
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let t = s.abs(x);
    let square = s.mul(t, t);
    let near =
        polynomial(s, square, [-0.333_332_48, 0.133_305_18, -0.053_663_082, 0.020_392_139, -0.005_433_547_3]);
    let near = s.mul_add(s.mul(near, square), t, t);
    let e = exp_nonpositive(s, s.mul(s.splat(-2.0), t));
    let far = s.sub(s.splat(1.0), s.div(s.add(e, e), s.add(s.splat(1.0), e)));
    s.copy_sign(s.select(s.less(t, s.splat(0.625)), near, far), x)
}

/// `1 / (1 + e^(−x))`.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let one = s.splat(1.0);
    let e = exp_nonpositive(s, s.sub(s.splat(0.0), s.abs(x)));
    let above = s.select(s.less(x, s.splat(0.0)), e, one);
    s.div(above, s.add(one, e))
}

/// `ln(1 + x)` for `x ≥ 0`.
#[inline(always)]
pub(crate) fn ln_1p_nonnegative<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let one = s.splat(1.0);
    let u = s.add(one, x);
    // ln(1 + x) = ln u + ln((1 + x) / u), and the second term is what the sum lost, relative to u
    let lost = s.div(s.sub(x, s.sub(u, one)), u);
    // u = m · 2ⁿ with m between √½ and √2; halved first, so that 2⁻ⁿ stays normal
    let n = s.exponent(u);
    let m = s.mul(s.mul(u, s.splat(0.5)), s.pow2(s.sub(one, n)));
    let low = s.less(m, s.splat(std::f32::consts::SQRT_2));
    let n = s.select(low, n, s.add(n, one));
    let f = s.sub(s.select(low, m, s.mul(m, s.splat(0.5))), one);
    // ln m = 2 · artanh(f / (2 + f))
    let q = s.div(f, s.add(f, s.splat(2.0)));
    let square = s.mul(q, q);
    let beyond = polynomial(s, square, [0.666_666_87, 0.399_887_8, 0.295_799_5]);
    let ln_m = s.mul_add(s.mul(q, square), beyond, s.add(q, q));
    let low_part = s.mul_add(n, s.splat(LN_2_LOW), s.add(lost, ln_m));
    let ln = s.mul_add(n, s.splat(LN_2_HIGH), low_part);
    // infinity and NaN are their own logarithm
    s.select(s.less(x, s.splat(f32::INFINITY)), ln, x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        simd::{Isa, Kernel, supported},
        suite::twin,
    };

    #[derive(Clone, Copy, Debug)]
    enum Function {
        Exp2,
        RoughExp2,
        Exp,
        Erf,
        Tanh,
        Sigmoid,
        Ln1p,
    }

    struct Apply<'a>(Function, &'a [f32]);

    impl Kernel for Apply<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<f32> {
            let mut out = vec![0.0; self.1.len()];
            for (x, out) in self.1.chunks(S::LANES).zip(out.chunks_mut(S::LANES)) {
                let x = s.load_partial(x, 0.0);
                let y = match self.0 {
                    Function::Exp2 => exp2(s, x),
                    Function::RoughExp2 => rough_exp2(s, x),
                    Function::Exp => exp_nonpositive(s, x),
                    Function::Erf => erf(s, x),
                    Function::Tanh => tanh(s, x),
                    Function::Sigmoid => sigmoid(s, x),
                    Function::Ln1p => ln_1p_nonnegative(s, x),
                };
                s.store_partial(y, out);
            }
            out
        }
    }

    /// Every 4099th f32 whose magnitude lies in `from..=to`, negative (and positive, if `both`).
    fn arguments(from: f32, to: f32, both: bool) -> Vec<f32> {
        let magnitudes = (from.to_bits()..=to.to_bits()).step_by(4099).map(f32::from_bits);
        magnitudes.flat_map(|m| [Some(-m), both.then_some(m)]).flatten().collect()
    }

    /// The error in units in the last place of the exact result.
    fn ulps(got: f32, want: f64) -> f64 {
        let (exponent, least) = (want.abs().log2().floor(), -126.0);
        (f64::from(got) - want).abs() / (exponent.max(least) - 23.0).exp2()
    }

    /// Checks the table of the module doc; without FMA one unit more is allowed.
    fn check(function: Function, arguments: &[f32], twin: impl Fn(f64) -> f64, bound: f64) {
        for isa in supported() {
            let bound = bound + if isa.isa() == Isa::Portable { 1.0 } else { 0.0 };
            let got = isa.run(Apply(function, arguments));
            let (mut worst, mut at) = (0.0, 0.0);
            for (&x, &got) in arguments.iter().zip(&got) {
                let off = ulps(got, twin(x.into()));
                assert!(!off.is_nan(), "{isa:?} {function:?}({x:e}) = {got:e}");
                if off > worst {
                    (worst, at) = (off, x);
                }
            }
            assert!(worst <= bound, "{isa:?} {function:?}: {worst:.2} ulp at {at:e}, stated {bound}");
        }
    }

    #[test]
    fn exponentials_are_within_their_bound() {
        check(Function::Exp, &arguments(1e-9, 87.336, false), f64::exp, 1.0);
    }

    #[test]
    fn powers_of_two_are_within_their_bound() {
        check(Function::Exp2, &arguments(1e-9, 125.99, true), f64::exp2, 2.5);
        // a unit is 2⁻²⁴ of the greatest number of its exponent, and 2⁻²³ of the least
        check(Function::RoughExp2, &arguments(1e-9, 125.99, true), f64::exp2, 2048.0);
    }

    #[test]
    fn error_functions_are_within_their_bound() {
        check(Function::Erf, &arguments(1e-30, 20.0, true), twin::erf, 1.0);
    }

    #[test]
    fn tangents_are_within_their_bound() {
        check(Function::Tanh, &arguments(1e-30, 20.0, true), f64::tanh, 1.5);
    }

    #[test]
    fn sigmoids_are_within_their_bound() {
        check(Function::Sigmoid, &arguments(1e-9, 87.0, true), |x| 1.0 / (1.0 + (-x).exp()), 2.0);
    }

    #[test]
    fn logarithms_are_within_their_bound() {
        let positive = arguments(1e-30, f32::MAX, true).into_iter().filter(|x| *x > 0.0);
        check(Function::Ln1p, &positive.collect::<Vec<_>>(), f64::ln_1p, 2.5);
    }

    #[test]
    fn limits_and_nan_are_kept() {
        let inf = f32::INFINITY;
        for isa in supported() {
            let at = |function, x| isa.run(Apply(function, &[x]))[0];
            for (function, x, want) in [
                (Function::Exp2, 0.0, 1.0),
                (Function::Exp2, -126.0, f32::MIN_POSITIVE),
                (Function::Exp2, -126.01, 0.0),
                (Function::Exp2, -1e30, 0.0),
                (Function::Exp2, -inf, 0.0),
                (Function::RoughExp2, 0.0, 1.0),
                (Function::RoughExp2, -126.01, 0.0),
                (Function::RoughExp2, -inf, 0.0),
                (Function::Exp, 0.0, 1.0),
                (Function::Exp, -0.0, 1.0),
                (Function::Exp, -87.4, 0.0),
                (Function::Exp, -1e30, 0.0),
                (Function::Exp, -inf, 0.0),
                (Function::Erf, inf, 1.0),
                (Function::Erf, -inf, -1.0),
                (Function::Erf, -0.0, -0.0),
                (Function::Tanh, inf, 1.0),
                (Function::Tanh, -inf, -1.0),
                (Function::Tanh, -0.0, -0.0),
                (Function::Sigmoid, inf, 1.0),
                (Function::Sigmoid, -inf, 0.0),
                (Function::Sigmoid, 0.0, 0.5),
                (Function::Ln1p, 0.0, 0.0),
                (Function::Ln1p, inf, inf),
            ] {
                let got = at(function, x);
                assert_eq!(
                    got.to_bits(),
                    f32::to_bits(want),
                    "{isa:?} {function:?}({x}) = {got}, expected {want}"
                );
            }
            for function in [
                Function::Exp2,
                Function::RoughExp2,
                Function::Exp,
                Function::Erf,
                Function::Tanh,
                Function::Sigmoid,
                Function::Ln1p,
            ] {
                assert!(at(function, f32::NAN).is_nan(), "{isa:?} {function:?}(NaN)");
            }
        }
    }
}
