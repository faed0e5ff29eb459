//! Products of bfloat16: operands are rounded to 8 bits of precision, nearest even; sums are f32.
//!
//! Each product is one chain of multiply-adds over ascending `k`, as with f32 operands, and to the same bits on every
//! instruction set with FMA. The dot product of AVX512-BF16 takes the upper halves of its words first, so that is where
//! even `k` lie. It differs in one point, which no model meets: it takes subnormal numbers as zeros. Tile registers add
//! in another order, as [`super::registers`] says.
//!
//! # Error
//! Rounding changes an operand by at most 2⁻⁸ of it, so a product by at most 2⁻⁷ · Σ |x · w|, plus what the chain adds.

use std::ops::Range;

use super::{
    format::Format,
    sizes::{RUN, panel_width},
    words::{self, Words},
};
use crate::{bias_act::Accuracy, lanes, simd::Simd};

/// Pairs of bfloat16.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

impl Words for Bf16 {
    const ROWS_ARE_TILES: bool = false;
    const PER_WORD: usize = 2;
    const PARAMETERS: usize = 0;
    const ORDERED: bool = true;
    type Sum<S: Simd> = S::F32;

    #[inline(always)]
    fn parts<S: Simd>() -> usize {
        if S::DOT_BF16 { 1 } else { 2 }
    }

    #[inline(always)]
    fn place<S: Simd>(word: usize, part: usize) -> usize {
        word * Self::parts::<S>() + part
    }

    #[inline(always)]
    fn part<S: Simd>(s: S, words: S::I32, part: usize) -> S::I32 {
        match part {
            _ if S::DOT_BF16 => words,
            0 => s.bits(s.upper_bf16(words)),
            _ => s.bits(s.lower_bf16(words)),
        }
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, a: S::F32, b: S::F32) -> S::F32 {
        s.add(a, b)
    }

    #[inline(always)]
    fn dot<S: Simd>(s: S, x: S::I32, weight: S::I32, sum: S::F32) -> S::F32 {
        if S::DOT_BF16 { s.dot_bf16(x, weight, sum) } else { s.mul_add(s.float(x), s.float(weight), sum) }
    }

    #[inline(always)]
    fn start<S: Simd>(s: S, _: [f32; 2], _: [S::F32; 2]) -> S::F32 {
        s.splat(0.0)
    }

    #[inline(always)]
    fn resume<S: Simd>(_: S, stored: S::F32) -> S::F32 {
        stored
    }

    #[inline(always)]
    fn value<S: Simd>(s: S, sum: S::F32, _: [f32; 2], _: [S::F32; 2], bias: S::F32) -> S::F32 {
        s.add(sum, bias)
    }
}

impl Format for Bf16 {
    const VALUE_BY_VALUE: bool = true;
    const ACCURACY: Accuracy = Accuracy::Rough;

    #[inline(always)]
    fn pack_panel<S: Simd>(s: S, columns: &[f32], in_features: usize, panel: &mut [f32]) {
        let width = panel_width::<S>();
        words::pack_columns::<S, Self>(s, columns, in_features, panel, |lines, words| {
            for (pair, words) in lines.chunks_exact(2 * width).zip(words.chunks_exact_mut(width)) {
                for at in (0..width).step_by(S::LANES) {
                    // not by a closure, which would be compiled without the instruction set
                    let even = s.bits(s.round_bf16(s.load(&pair[at..])));
                    let odd = s.bits(s.round_bf16(s.load(&pair[width + at..])));
                    s.store(s.float(s.or(even, s.shift_right::<16>(odd))), &mut words[at..]);
                }
            }
        });
    }

    #[inline(always)]
    fn words_of<S: Simd>(rows: usize, row: usize, column: usize) -> Range<usize> {
        let run = RUN * Self::parts::<S>();
        let of_values = |values: usize| values / Self::PER_WORD * Self::parts::<S>();
        let values = RUN * Self::PER_WORD;
        let first = (column / values * rows + row) * run + of_values(column % values);
        first..first + of_values(S::LANES)
    }

    #[inline(always)]
    fn put<S: Simd>(s: S, values: S::F32, words: &mut [f32]) {
        if S::DOT_BF16 {
            lanes::write(s, s.float(s.pair_bf16(values, values)), words);
        } else {
            s.store(s.round_bf16(values), words);
        }
    }

    #[inline(always)]
    fn pack_run<S: Simd>(s: S, values: &[f32], words: &mut [f32]) {
        if S::DOT_BF16 {
            for (pairs, words) in values.chunks(2 * S::LANES).zip(words.chunks_exact_mut(S::LANES)) {
                let first = lanes::read(s, pairs, 0.0);
                let second = lanes::read(s, &pairs[pairs.len().min(S::LANES)..], 0.0);
                s.store(s.float(s.pair_bf16(first, second)), words);
            }
        } else {
            for (values, words) in values.chunks(S::LANES).zip(words.chunks_exact_mut(S::LANES)) {
                s.store(s.round_bf16(lanes::read(s, values, 0.0)), words);
            }
        }
    }
}
