//! Products of bytes: weights are symmetric with a scale per column, activations have a scale and a zero point per row,
//! found while they are packed; sums are exact.
//!
//! ```text
//! weight      w ≈ column_scale · q,              q = round(w · 127 / max |w|)            in -127..=127
//! activation  x ≈ row_scale · (p - zero),        p = round(x · 254 / range) + zero       in 0..=255
//! product     Σ x · w ≈ row_scale · column_scale · (Σ p · q - zero · Σ q)
//! ```
//!
//! `range` reaches from the least to the greatest value of the row, 0 included, so that 0 is exact. Both of its ends
//! are rounded, so 254 steps may take all 256 bytes, but never more: nothing has to be clamped. Σ q is kept behind the
//! panel. The steps of quantisation are the same correctly rounded operations on every instruction set, and the sums
//! are integers, so the products have the same bits on all of them.
//!
//! # Error
//! `p` errs by at most half of 1/254 of the row's range, and `q` by at most half of 1/127 of the column's greatest
//! magnitude. A product errs by `Σ |x - x̂| · |w| + |x̂| · |w - ŵ|` ≤
//! `k · (range / 508 · max |w| + max |x̂| · max |w| / 254)` at worst, and about `√k` of that where errors are
//! independent. One large value among small ones costs the small ones their precision.
//!
//! # NaN, infinities and zeros
//! A row or column that holds a NaN or an infinity, or whose range is more than f32 holds, gives NaN. A row whose
//! range, or a column whose greatest magnitude, is below [`LEAST`] counts as zeros. Where the product of the two scales
//! is more than f32 holds, a sum gives an infinity, as it would in any order, except a sum of 0, which gives NaN.

use std::{ops::Range, slice};

use super::{
    format::Format,
    sizes::{MOST_WIDTH, RUN, panel_width},
    tile::TileRows,
    words::{self, Words},
};
use crate::{bias_act::Accuracy, lanes, simd::Simd};

/// Bytes, four to a word.
///
/// Which of a run's values share a word is free as long as both operands agree: of `n` words, word `i` holds the values
/// `i`, `i + n`, `i + 2n` and `i + 3n`, so that packing takes no shuffles.
#[derive(Clone, Copy)]
pub(crate) struct Int8;

/// The most values of `k` whose sum of products surely fits an i32.
pub(super) const MOST_FEATURES: usize = 1 << 16;

/// Steps in the range of a row.
const ROW_STEPS: f32 = 254.0;

/// Floats of this size are integers: a number added to it is rounded, halves to even, and stands in its lowest bits.
const INTEGERS: f32 = 1.5 * (1 << 23) as f32;

/// The least range or magnitude that does not count as zero: the inverse of a smaller one may overflow.
const LEAST: f32 = 1e-30;

impl Words for Int8 {
    const ROWS_ARE_TILES: bool = false;
    const PER_WORD: usize = 4;
    /// For a row, its scale and its negated zero point; for a column, its scale and the sum of its weights.
    const PARAMETERS: usize = 2;
    const ORDERED: bool = false;
    type Sum<S: Simd> = S::I32;

    #[inline(always)]
    fn parts<S: Simd>() -> usize {
        if S::DOT_INT8 { 1 } else { 2 }
    }

    #[inline(always)]
    fn place<S: Simd>(word: usize, part: usize) -> usize {
        part * RUN + word
    }

    #[inline(always)]
    fn part<S: Simd>(s: S, words: S::I32, part: usize) -> S::I32 {
        match part {
            _ if S::DOT_INT8 => words,
            0 => s.even_bytes(words),
            _ => s.odd_bytes(words),
        }
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, a: S::I32, b: S::I32) -> S::I32 {
        s.add_i32(a, b)
    }

    #[inline(always)]
    fn dot<S: Simd>(s: S, x: S::I32, weight: S::I32, sum: S::I32) -> S::I32 {
        if S::DOT_INT8 { s.dot_int8(x, weight, sum) } else { s.add_i32(sum, s.dot_i16(x, weight)) }
    }

    /// The negative of what the zero point adds to the products, so that the final sums are rid of it.
    #[inline(always)]
    fn start<S: Simd>(s: S, [_, minus_zero]: [f32; 2], [_, sums]: [S::F32; 2]) -> S::I32 {
        s.mul_i32(s.splat_i32(minus_zero.to_bits() as i32), s.bits(sums))
    }

    #[inline(always)]
    fn resume<S: Simd>(s: S, stored: S::F32) -> S::I32 {
        s.bits(stored)
    }

    #[inline(always)]
    fn value<S: Simd>(
        s: S,
        sum: S::I32,
        [scale, _]: [f32; 2],
        [scales, _]: [S::F32; 2],
        bias: S::F32,
    ) -> S::F32 {
        // rounded twice, as every instruction set can
        s.add(s.mul(s.convert(sum), s.mul(s.splat(scale), scales)), bias)
    }
}

/// How the values of a row become bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Quantizer {
    /// The size of one step.
    scale: f32,
    /// Steps in a range of 1.
    inverse: f32,
    zero: f32,
}

impl Quantizer {
    /// Whatever is multiplied by this becomes NaN.
    const NOTHING: Quantizer = Quantizer { scale: f32::NAN, inverse: 0.0, zero: 0.0 };
    const ZEROS: Quantizer = Quantizer { scale: 0.0, inverse: 0.0, zero: 0.0 };

    /// For values from `least` to `greatest`, NaN if one of them is; 0 lies between.
    fn of_row(least: f32, greatest: f32) -> Quantizer {
        let range = greatest - least;
        if !range.is_finite() {
            Quantizer::NOTHING
        } else if range < LEAST {
            Quantizer::ZEROS
        } else {
            let inverse = ROW_STEPS / range;
            Quantizer { scale: range / ROW_STEPS, inverse, zero: (-least * inverse).round_ties_even() }
        }
    }

    /// For values of a column, as [`Quantizer::of_row`].
    fn of_column(least: f32, greatest: f32) -> Quantizer {
        let most = greatest.max(-least);
        if !(greatest - least).is_finite() {
            Quantizer::NOTHING
        } else if most < LEAST {
            Quantizer::ZEROS
        } else {
            Quantizer { scale: most / 127.0, inverse: 127.0 / most, zero: 0.0 }
        }
    }
}

/// Rows whose quantisers are found together: each has to wait for its own least and greatest values, and two quotients.
const TOGETHER: usize = 4;

/// Chains of a fold: each step waits for the one before it.
const CHAINS: usize = 4;

/// The least and the greatest of a row's values and 0; NaN if one of the values is, an infinity if one of them is.
///
/// Their bits are compared as integers: of positive floats the greatest has the greatest bits; of negative ones the
/// least has, if the bits are unsigned. NaNs lie beyond both infinities, so they need no search of their own.
#[inline(always)]
fn extremes<S: Simd>(s: S, row: &[f32]) -> (f32, f32) {
    let (mut positive, mut negative) = ([s.splat_i32(0); CHAINS], [s.splat_i32(0); CHAINS]);
    let mut blocks = row.chunks_exact(CHAINS * S::LANES);
    for block in &mut blocks {
        for i in 0..CHAINS {
            let v = s.bits(s.load(&block[i * S::LANES..]));
            (positive[i], negative[i]) = (s.max_i32(v, positive[i]), s.max_u32(v, negative[i]));
        }
    }
    for part in blocks.remainder().chunks(S::LANES) {
        let v = s.bits(lanes::read(s, part, 0.0));
        (positive[0], negative[0]) = (s.max_i32(v, positive[0]), s.max_u32(v, negative[0]));
    }
    let positive = s.max_i32(s.max_i32(positive[0], positive[1]), s.max_i32(positive[2], positive[3]));
    let negative = s.max_u32(s.max_u32(negative[0], negative[1]), s.max_u32(negative[2], negative[3]));
    // the greatest unsigned number is the greatest signed one, if both are moved by half of the range
    let negative = s.reduce_max_i32(s.add_i32(negative, s.splat_i32(i32::MIN))).wrapping_add(i32::MIN);
    let least = if negative < 0 { f32::from_bits(negative as u32) } else { 0.0 };
    (least, f32::from_bits(s.reduce_max_i32(positive) as u32))
}

impl Format for Int8 {
    const VALUE_BY_VALUE: bool = false;
    const ACCURACY: Accuracy = Accuracy::Rough;

    #[inline(always)]
    fn pack_panel<S: Simd>(s: S, columns: &[f32], in_features: usize, panel: &mut [f32]) {
        let width = panel_width::<S>();
        let (panel, kept) = panel.split_at_mut(words::words::<Self>(in_features) * width);
        let (scales, sums) = kept.split_at_mut(width);
        let mut inverses = [0.0; MOST_WIDTH];
        for (column, values) in columns.chunks_exact(in_features).enumerate() {
            let (least, greatest) = extremes(s, values);
            let quantizer = Quantizer::of_column(least, greatest);
            (scales[column], inverses[column]) = (quantizer.scale, quantizer.inverse);
        }
        words::pack_columns::<S, Self>(s, columns, in_features, panel, |lines, words| {
            let count = words.len() / width;
            for (i, words) in words.chunks_exact_mut(width).enumerate() {
                for at in (0..width).step_by(S::LANES) {
                    let inverse = s.load(&inverses[at..]);
                    let mut word = s.splat_i32(0);
                    let mut sum = s.bits(s.load(&sums[at..]));
                    for j in 0..4 {
                        let value = s.load(&lines[(i + j * count) * width + at..]);
                        // NaN times 0 is NaN, and no integer
                        let q =
                            s.to_i32(s.min(s.max(s.mul(value, inverse), s.splat(-127.0)), s.splat(127.0)));
                        sum = s.add_i32(sum, q);
                        word = s.or(word, byte(s, q, j));
                    }
                    s.store(s.float(word), &mut words[at..]);
                    s.store(s.float(sum), &mut sums[at..]);
                }
            }
        });
    }

    fn words_of<S: Simd>(_: usize, _: usize, _: usize) -> Range<usize> {
        unreachable!("a value alone does not say which byte it becomes")
    }

    fn put<S: Simd>(_: S, _: S::F32, _: &mut [f32]) {
        unreachable!("a value alone does not say which byte it becomes")
    }

    /// Row by row: what a byte stands for is known only when the whole row has been seen.
    #[inline(always)]
    fn pack_rows<S: Simd>(s: S, rows: &[&[f32]], to: &mut TileRows<'_>) {
        let (k, of_run, run_words) = (rows[0].len(), RUN * Self::PER_WORD, RUN * Self::parts::<S>());
        assert!(rows.iter().all(|row| row.len() == k));
        let whole = k / of_run;
        let places = to.runs(rows.len(), whole, run_words);
        for (part, rows) in rows.chunks(TOGETHER).enumerate() {
            let mut quantizers = [Quantizer::ZEROS; TOGETHER];
            for (quantizer, values) in quantizers.iter_mut().zip(rows) {
                let (least, greatest) = extremes(s, values);
                *quantizer = Quantizer::of_row(least, greatest);
            }
            for (row, (values, quantizer)) in (part * TOGETHER..).zip(rows.iter().zip(quantizers)) {
                let kept = to.kept(row, (k.div_ceil(of_run), run_words), Self::PARAMETERS);
                kept.copy_from_slice(&[quantizer.scale, f32::from_bits(-quantizer.zero as i32 as u32)]);
                // while this row is quantised, memory delivers the row that takes its place in the next part
                let next = values.as_ptr().wrapping_add(TOGETHER * k);
                // whole runs in a loop of their own, with lengths that are constants
                for run in 0..whole {
                    for word in 0..Self::PER_WORD {
                        s.prefetch(next.wrapping_add((run * Self::PER_WORD + word) * RUN));
                    }
                    // SAFETY: one of the whole runs of `k` values.
                    let values = unsafe { slice::from_raw_parts(values.as_ptr().add(run * of_run), of_run) };
                    // SAFETY: there is room for it, runs do not overlap, and nothing else uses these rows.
                    let words = unsafe { slice::from_raw_parts_mut(places.place(row, run), run_words) };
                    quantize(s, quantizer, values, words);
                }
                if whole * of_run < k {
                    quantize(s, quantizer, &values[whole * of_run..], to.run(row, whole, run_words));
                }
            }
        }
    }

    fn pack_run<S: Simd>(_: S, _: &[f32], _: &mut [f32]) {
        unreachable!("a run alone does not say which bytes it becomes")
    }
}

/// Quantises a run of a row.
#[inline(always)]
fn quantize<S: Simd>(s: S, quantizer: Quantizer, values: &[f32], words: &mut [f32]) {
    let count = values.len().div_ceil(Int8::PER_WORD);
    // whole runs in a loop of their own, in which nothing is left to decide
    if values.len() == RUN * Int8::PER_WORD {
        for at in (0..RUN).step_by(S::LANES) {
            let mut read = [s.splat(0.0); Int8::PER_WORD];
            for (j, v) in read.iter_mut().enumerate() {
                *v = s.load(&values[j * RUN + at..]);
            }
            store_bytes(s, quantizer, read, at, words);
        }
        return;
    }
    for at in (0..count).step_by(S::LANES) {
        let mut read = [s.splat(0.0); Int8::PER_WORD];
        for (j, v) in read.iter_mut().enumerate() {
            *v = lanes::read(s, values.get(j * count + at..).unwrap_or(&[]), 0.0);
        }
        store_bytes(s, quantizer, read, at, words);
    }
}

/// Quantises the four values of each word from `at` on.
#[inline(always)]
fn store_bytes<S: Simd>(s: S, quantizer: Quantizer, values: [S::F32; 4], at: usize, words: &mut [f32]) {
    let (inverse, zero) = (s.splat(quantizer.inverse), s.splat(INTEGERS + quantizer.zero));
    let mut bytes = [s.splat_i32(0); 4];
    for (value, q) in values.iter().zip(&mut bytes) {
        *q = s.bits(s.add(s.mul(*value, inverse), zero));
    }
    // by sums, so that what stands above the bytes adds up to a constant, which is taken away at once
    const ABOVE: i32 = INTEGERS.to_bits() as i32;
    let [a, b, c, d] = bytes;
    let even = s.add_i32(a, s.shift_left::<16>(c));
    let odd = s.add_i32(b, s.shift_left::<16>(d));
    if S::DOT_INT8 {
        let word = s.add_i32(even, s.shift_left::<8>(odd));
        s.store(s.float(s.sub_i32(word, s.splat_i32(ABOVE.wrapping_add(ABOVE << 8)))), &mut words[at..]);
    } else {
        s.store(s.float(s.sub_i32(even, s.splat_i32(ABOVE))), &mut words[at..]);
        s.store(s.float(s.sub_i32(odd, s.splat_i32(ABOVE))), &mut words[RUN + at..]);
    }
}

/// The lowest byte of `v` as byte `j` of a word.
#[inline(always)]
fn byte<S: Simd>(s: S, v: S::I32, j: usize) -> S::I32 {
    let byte = s.and(v, s.splat_i32(0xff));
    match j {
        0 => byte,
        1 => s.shift_left::<8>(byte),
        2 => s.shift_left::<16>(byte),
        _ => s.shift_left::<24>(byte),
    }
}
