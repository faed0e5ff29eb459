//! Both forms of GELU by tables, where a vector can be looked up in two registers.
//!
//! `x · Φ(x) = max(x, 0) − g(|x|)`, and `g(t) = t · (1 − Φ(t))` is smooth, small and soon over: thirty-two short pieces of
//! low degree are all there is of it. The compiler computes their coefficients from the definitions below. Each piece
//! interpolates `g` at the Chebyshev nodes of its interval; behind the last one `g` is taken for zero.

use crate::simd::Simd;

/// Pieces of a table: what two registers of sixteen hold.
const PIECES: usize = 32;

/// Of degree 4 and a quarter wide: off by 5e-8, and 7e-11 at the end.
pub(super) static ERF: Table<5> = Table::new(Form::Erf, 0.25, &FIVE_NODES);
/// As [`ERF`].
pub(super) static TANH: Table<5> = Table::new(Form::Tanh, 0.25, &FIVE_NODES);
/// Of degree 2 and an eighth wide: off by 1e-5, and 3e-4 at the end.
pub(super) static ROUGH_ERF: Table<3> = Table::new(Form::Erf, 0.125, &THREE_NODES);
/// As [`ROUGH_ERF`].
pub(super) static ROUGH_TANH: Table<3> = Table::new(Form::Tanh, 0.125, &THREE_NODES);

/// Chebyshev nodes of −1..=1. The middle one makes `g(0)` exactly 0.
const THREE_NODES: [f64; 3] = [-0.866_025_403_784_438_6, 0.0, 0.866_025_403_784_438_6];
const FIVE_NODES: [f64; 5] = [
    -0.951_056_516_295_153_5,
    -0.587_785_252_292_473_1,
    0.0,
    0.587_785_252_292_473_1,
    0.951_056_516_295_153_5,
];

/// What stands for Φ.
#[derive(Clone, Copy)]
enum Form {
    /// The distribution function of the normal distribution.
    Erf,
    /// `(1 + tanh u) / 2` with `u = √(2/π) · (t + 0.044715·t³)`.
    Tanh,
}

/// `N` coefficients, lowest first, of each of the pieces; piece `i` is that of the numbers nearest to `i · step`.
#[repr(align(64))]
pub(super) struct Table<const N: usize> {
    coefficients: [[f32; PIECES]; N],
    /// A power of two.
    step: f32,
}

impl<const N: usize> Table<N> {
    const fn new(form: Form, step: f64, nodes: &[f64; N]) -> Table<N> {
        let mut coefficients = [[0.0; PIECES]; N];
        // the last piece is zero
        let mut piece = 0;
        while piece + 1 < PIECES {
            let of_piece = interpolate(form, piece as f64 * step, step / 2.0, nodes);
            let mut i = 0;
            while i < N {
                coefficients[i][piece] = of_piece[i] as f32;
                i += 1;
            }
            piece += 1;
        }
        Table { coefficients, step: step as f32 }
    }

    /// GELU of each lane, only where [`Simd::LOOKUP`]. NaN gives NaN, infinities give limits.
    #[inline(always)]
    pub(super) fn gelu<S: Simd>(&self, s: S, x: S::F32) -> S::F32 {
        let last = (PIECES - 1) as f32 * self.step;
        // floats of this size are multiples of `step`, and which of them it is stands in the lowest bits
        let multiples = s.splat(1.5 * (1 << 23) as f32 * self.step);
        // in this order NaN stays NaN
        let t = s.min(s.splat(last), s.abs(x));
        let nearest = s.add(t, multiples);
        let r = s.sub(t, s.sub(nearest, multiples));
        let piece = s.bits(nearest);
        let mut g = s.lookup(&self.coefficients[N - 1], piece);
        for coefficients in self.coefficients[..N - 1].iter().rev() {
            g = s.mul_add(g, r, s.lookup(coefficients, piece));
        }
        s.sub(s.max(s.splat(0.0), x), g)
    }
}

/// The polynomial in `t − middle` that meets `t · (1 − Φ(t))` at these nodes of `middle ± radius`: Newton's divided
/// differences, multiplied out.
const fn interpolate<const N: usize>(form: Form, middle: f64, radius: f64, nodes: &[f64; N]) -> [f64; N] {
    let mut differences = [0.0; N];
    let mut i = 0;
    while i < N {
        let t = middle + radius * nodes[i];
        differences[i] = t * complement(form, t);
        i += 1;
    }
    let mut order = 1;
    while order < N {
        let mut i = N - 1;
        while i >= order {
            differences[i] = (differences[i] - differences[i - 1]) / (radius * (nodes[i] - nodes[i - order]));
            i -= 1;
        }
        order += 1;
    }
    let mut coefficients = [0.0; N];
    let mut i = N;
    while i > 0 {
        i -= 1;
        // times (r − node), plus the difference
        let mut power = N - 1;
        while power > 0 {
            coefficients[power] = coefficients[power - 1] - radius * nodes[i] * coefficients[power];
            power -= 1;
        }
        coefficients[0] = differences[i] - radius * nodes[i] * coefficients[0];
    }
    coefficients
}

/// `1 − Φ(t)`.
const fn complement(form: Form, t: f64) -> f64 {
    match form {
        // Φ(t) = ½ + φ(t) · (t + t³/3 + t⁵/(3·5) + …), all of one sign
        Form::Erf => {
            const ROOT_TWO_PI: f64 = 2.506_628_274_631_000_7;
            let (mut sum, mut term, mut n) = (0.0, t, 1.0);
            while n < 300.0 {
                sum += term;
                n += 2.0;
                term *= t * t / n;
            }
            0.5 - sum / (exp(t * t / 2.0) * ROOT_TWO_PI)
        }
        Form::Tanh => {
            const ROOT_TWO_OVER_PI: f64 = 0.797_884_560_802_865_4;
            1.0 / (1.0 + exp(2.0 * ROOT_TWO_OVER_PI * (t + 0.044_715 * t * t * t)))
        }
    }
}

/// `eˣ` by its series, for `x` from −1 to 50.
const fn exp(x: f64) -> f64 {
    let (mut sum, mut term, mut n) = (0.0, 1.0, 0.0);
    while n < 200.0 {
        sum += term;
        n += 1.0;
        term *= x / n;
    }
    sum
}
