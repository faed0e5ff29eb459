//! The second product of attention: weights times values.

use std::ops::Range;

use super::block::QueryBlock;
use crate::{
    attention::{
        product::{RowOrder, multiply, step},
        weights::MOST_QUERIES,
    },
    gemm::{EvenTiles, held_rows, unrolled, with_rows},
    simd::{Kernel, Simd},
};

/// The second value of a word of two bf16.
const LOWER_HALF: i32 = 0xffff;

/// The values of keys, line by line.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a> {
    /// The first line and what follows.
    pub(super) values: &'a [f32],
    /// Values from one line to the next.
    pub(super) line: usize,
}

/// Factors on the sums of a block's queries.
#[derive(Clone, Copy)]
pub(super) struct Factors<'a> {
    /// On what earlier stretches of keys left in the sums, if there were any.
    pub(super) before: Option<&'a [f32; MOST_QUERIES]>,
    /// On the result, if this is the last stretch of keys.
    pub(super) inverses: Option<&'a [f32; MOST_QUERIES]>,
}

/// The second product: weights of a block's queries times the values of a stretch of keys.
pub(super) struct Sums<'a> {
    pub(super) block: &'a QueryBlock<'a>,
    /// `[keys][queries]`, lines of `line` values.
    pub(super) weights: &'a [f32],
    pub(super) line: usize,
    /// The values of the stretch of keys.
    pub(super) values: Lines<'a>,
    pub(super) factors: Factors<'a>,
    /// Sums of all rows between stretches of keys, `[rows][whole vectors]`.
    pub(super) sums: &'a mut [f32],
}

impl Sums<'_> {
    /// Adds the values of the keys `seen`, counted from the first of the stretch.
    ///
    /// # Safety
    /// As for [`super::QueryRows::attend_to`].
    #[inline(always)]
    pub(super) unsafe fn add<S: Simd>(mut self, s: S, seen: Range<usize>) {
        let QueryBlock { query_rows, rows, by_row, .. } = self.block;
        let head_dim = query_rows.head.shape.head_dim;
        let query_strips = EvenTiles::new(rows.len(), if *by_row { 1 } else { held_rows::<S>() }).ranges();
        // by columns first, so that what all strips of queries read of values and weights stays in a first-level cache
        for column in (0..head_dim).step_by(2 * S::LANES) {
            for queries in query_strips.clone() {
                let keys = if *by_row { self.block.visible(queries.start, &seen) } else { seen.clone() };
                let of = &mut self;
                let query = queries.start;
                with_rows!(S, queries.len(), ROWS => if head_dim - column > S::LANES {
                    s.call(SumValues::<2, ROWS> { of, query, keys, column });
                } else {
                    s.call(SumValues::<1, ROWS> { of, query, keys, column });
                });
            }
        }
    }

    /// Adds the values of one key of a word to `sums`; those of the other are not for this query, and may not be
    /// finite.
    #[inline(always)]
    fn add_half<S: Simd, const VECTORS: usize>(
        &self,
        s: S,
        (word, query): (usize, usize),
        column: usize,
        half: i32,
        mut sums: [S::F32; VECTORS],
    ) -> [S::F32; VECTORS] {
        let Lines { values, line } = self.values;
        let weight = s.splat(self.weights[word * self.line + query]);
        for (i, sum) in sums.iter_mut().enumerate() {
            let values = s.load(&values[word * line + column + i * S::LANES..]);
            *sum = step(s, weight, s.float(s.and(s.bits(values), s.splat_i32(half))), *sum);
        }
        sums
    }
}

/// `VECTORS` vectors of the sums of `ROWS` queries; made where the promise of [`super::QueryRows::attend_to`] holds.
struct SumValues<'a, 'b, const VECTORS: usize, const ROWS: usize> {
    of: &'a mut Sums<'b>,
    /// The first query of the block.
    query: usize,
    /// Keys of the stretch.
    keys: Range<usize>,
    /// The first dimension of the head.
    column: usize,
}

impl<const VECTORS: usize, const ROWS: usize> Kernel for SumValues<'_, '_, VECTORS, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { of, query, keys, column } = self;
        let QueryBlock { query_rows, rows, .. } = of.block;
        let head_dim = query_rows.head.shape.head_dim;
        let line = head_dim.next_multiple_of(S::LANES);
        // of all rows
        let first = rows.start - query_rows.rows.start + query;
        // Addresses are checked once for all rows: checking those of each row took 3 to 5 % of attention's time.
        let kept = &mut of.sums[first * line + column..];
        assert!(kept.len() >= (ROWS - 1) * line + VECTORS * S::LANES);
        let kept = kept.as_mut_ptr();
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        if let Some(before) = of.factors.before {
            let before = &before[query..query + ROWS];
            unrolled!(ROWS, row => {
                let factor = s.splat(before[row]);
                for (i, sum) in sums[row].iter_mut().enumerate() {
                    // SAFETY: a vector of a row that the assertion covers.
                    *sum = s.mul(unsafe { s.load_ptr(kept.add(row * line + i * S::LANES)) }, factor);
                }
            });
        }
        let by_halves = S::DOT_BF16 && of.block.by_row;
        let words = match (S::DOT_BF16, by_halves) {
            (false, _) => keys.clone(),
            (true, false) => keys.start / 2..keys.end.div_ceil(2),
            (true, true) => keys.start.div_ceil(2)..(keys.end / 2).max(keys.start.div_ceil(2)),
        };
        if by_halves && keys.start % 2 == 1 {
            sums[0] = of.add_half(s, (keys.start / 2, query), column, LOWER_HALF, sums[0]);
        }
        let weights = (&of.weights[words.start * of.line + query..], RowOrder::columns(of.line));
        let Lines { values, line: of_key } = of.values;
        let values = (&values[words.start * of_key + column..], of_key);
        let mut sums: [[S::F32; VECTORS]; ROWS] = multiply(s, weights, values, words.len(), sums);
        if by_halves && keys.end % 2 == 1 {
            sums[0] = of.add_half(s, (keys.end / 2, query), column, !LOWER_HALF, sums[0]);
        }
        // Row by row without a loop, as in the products of weights (see `gemm`): sums would otherwise live in memory.
        macro_rules! store {
            (|$sum:ident, $row:ident| $value:expr, $to:expr, $stride:expr) => {
                unrolled!(ROWS, $row => {
                    for (i, $sum) in sums[$row].into_iter().enumerate() {
                        // SAFETY: a vector of a row that is there.
                        unsafe { s.store_ptr($value, $to.add($row * $stride + i * S::LANES)) };
                    }
                })
            };
        }
        let Some(inverses) = of.factors.inverses else {
            store!(|sum, row| sum, kept, line);
            return;
        };
        let inverses = &inverses[query..query + ROWS];
        // weights of 0 may or may not leave −0; adding 0 makes both zeros the same
        let zero = s.splat(0.0);
        let width = (head_dim - column).min(VECTORS * S::LANES);
        let (to, stride) = query_rows.out_rows(rows.start + query, ROWS, column, width);
        if width == VECTORS * S::LANES {
            store!(|sum, row| s.mul_add(sum, s.splat(inverses[row]), zero), to, stride);
            return;
        }
        store!(|sum, row| s.mul_add(sum, s.splat(inverses[row]), zero), kept, line);
        for row in 0..ROWS {
            // SAFETY: `width` values of a row, in scratch and in the result; the creator of `self` was promised this
            // part of both.
            unsafe { std::ptr::copy_nonoverlapping(kept.add(row * line), to.add(row * stride), width) };
        }
    }
}
