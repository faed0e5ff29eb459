//! Both forms of GELU by tables, where one instruction looks a vector up in two registers.
//!
//! A table has thirty-two short pieces of low degree, whose coefficients the compiler computes from the definitions
//! below. Each piece interpolates at the Chebyshev nodes of its interval.
//!
//! The accurate tables use `x · Φ(x) = max(x, 0) − g(|x|)`, where `g(t) = t · (1 − Φ(t))` is smooth, small and soon
//! over: the pieces cover all of it, and behind the last one it counts as zero. The pieces of the rough tables are GELU
//! itself on both sides of zero, and its limits behind them.

use crate::simd::Simd;

/// Pieces of a table: what two registers of sixteen hold.
const PIECES: usize = 32;
/// The width of a piece: a power of two.
const STEP: f32 = 0.25;

/// Off by 5e-8, and 7e-11 at the end.
pub(super) static ERF: Table = Table::new(Form::Erf);
/// As [`ERF`].
pub(super) static TANH: Table = Table::new(Form::Tanh);
/// Off by 7e-5, and by 1.5e-4 · |x| at the ends.
pub(super) static ROUGH_ERF: RoughTable = RoughTable::new(Form::Erf);
/// As [`ROUGH_ERF`].
pub(super) static ROUGH_TANH: RoughTable = RoughTable::new(Form::Tanh);

/// Chebyshev nodes of −1..=1. The middle one makes `g(0)` exactly 0.
const THREE_NODES: [f64; 3] = [-0.866_025_403_784_438_6, 0.0, 0.866_025_403_784_438_6];
const FIVE_NODES: [f64; 5] = [
    -0.951_056_516_295_153_5,
    -0.587_785_252_292_473_1,
    0.0,
    0.587_785_252_292_473_1,
    0.951_056_516_295_153_5,
];

/// The function that stands for Φ.
#[derive(Clone, Copy)]
enum Form {
    /// The distribution function of the normal distribution.
    Erf,
    /// `(1 + tanh u) / 2` with `u = √(2/π) · (t + 0.044715·t³)`.
    Tanh,
}

/// Coefficients of `g` by the distance from the middle of a piece, lowest degree first; piece `i` is for the numbers
/// nearest to `i · STEP`.
#[repr(align(64))]
pub(super) struct Table([[f32; PIECES]; 5]);

impl Table {
    const fn new(form: Form) -> Table {
        let mut coefficients = [[0.0; PIECES]; 5];
        // the last piece is zero
        let mut piece = 0;
        while piece + 1 < PIECES {
            let of_piece = interpolate(form, piece as f64 * STEP as f64, STEP as f64 / 2.0, &FIVE_NODES);
            let mut i = 0;
            while i < of_piece.len() {
                coefficients[i][piece] = of_piece[i] as f32;
                i += 1;
            }
            piece += 1;
        }
        Table(coefficients)
    }

    /// GELU of each lane, only where [`Simd::LOOKUP`] holds. NaN gives NaN, infinities give limits.
    #[inline(always)]
    pub(super) fn gelu<S: Simd>(&self, s: S, x: S::F32) -> S::F32 {
        let last = (PIECES - 1) as f32 * STEP;
        // in this order NaN stays NaN
        let t = s.min(s.splat(last), s.abs(x));
        let nearest = s.add(t, multiples(s));
        let r = s.sub(t, s.sub(nearest, multiples(s)));
        let piece = s.bits(nearest);
        let [lower @ .., highest] = &self.0;
        let mut g = s.lookup(highest, piece);
        for coefficients in lower.iter().rev() {
            g = s.mul_add(g, r, s.lookup(coefficients, piece));
        }
        s.sub(s.max(s.splat(0.0), x), g)
    }
}

/// Coefficients of GELU by `x`, lowest degree first; piece `i` is for the numbers nearest to `i · STEP`, and as many
/// `i` are negative as are not. The first piece is zero, the last one `x`.
#[repr(align(64))]
pub(super) struct RoughTable([[f32; PIECES]; 3]);

impl RoughTable {
    const FIRST: i32 = -(PIECES as i32) / 2;
    const LAST: i32 = PIECES as i32 / 2 - 1;

    const fn new(form: Form) -> RoughTable {
        let mut coefficients = [[0.0; PIECES]; 3];
        let mut number = Self::FIRST + 1;
        while number < Self::LAST {
            let middle = number as f64 * STEP as f64;
            let [a, b, c] = interpolate(form, middle, STEP as f64 / 2.0, &THREE_NODES);
            // x − (a + b·r + c·r²) with r = x − middle, at the index that the lowest bits of its number give
            let piece = number.rem_euclid(PIECES as i32) as usize;
            coefficients[0][piece] = (b * middle - c * middle * middle - a) as f32;
            coefficients[1][piece] = (1.0 - b + 2.0 * c * middle) as f32;
            coefficients[2][piece] = -c as f32;
            number += 1;
        }
        coefficients[1][Self::LAST as usize] = 1.0;
        RoughTable(coefficients)
    }

    /// As [`Table::gelu`], in half of the instructions.
    #[inline(always)]
    pub(super) fn gelu<S: Simd>(&self, s: S, x: S::F32) -> S::F32 {
        let [constant, linear, square] = &self.0;
        // in this order NaN stays NaN
        let x = s.max(s.splat(Self::FIRST as f32 * STEP), x);
        let t = s.min(s.splat(Self::LAST as f32 * STEP), x);
        let piece = s.bits(s.add(t, multiples(s)));
        // by `t`: an infinity times the 0 of the last piece would be NaN
        let slope = s.mul_add(s.lookup(square, piece), t, s.lookup(linear, piece));
        s.mul_add(slope, x, s.lookup(constant, piece))
    }
}

/// Floats of this size are multiples of [`STEP`], and the lowest bits of each say which one it is.
#[inline(always)]
fn multiples<S: Simd>(s: S) -> S::F32 {
    s.splat(1.5 * (1 << 23) as f32 * STEP)
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
