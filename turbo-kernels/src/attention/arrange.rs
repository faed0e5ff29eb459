//! Rows of a head, arranged as the products read them: queries side by side, keys and values of bf16 in words.
//!
//! Each of these is a function of its own: inlined where it is used, its addresses would live in memory.

use super::{
    product::{join, join_lines, words},
    tile_registers,
};
use crate::{
    Columns,
    gemm::{TileRanges, tile_values},
    lanes,
    simd::{Kernel, LINE_VALUES, Simd},
};

/// Consecutive rows, as one head reads them.
#[derive(Clone, Copy)]
pub(super) struct HeadRows<'a> {
    /// The first row and what follows.
    values: &'a [f32],
    /// Values from one row to the next.
    stride: usize,
    pub(super) count: usize,
    pub(super) head_dim: usize,
}

impl<'a> HeadRows<'a> {
    /// The `head_dim` values of head `head` in `count` rows from `first` on.
    #[inline(always)]
    pub(super) fn new(
        columns: Columns<&'a [f32]>,
        head: usize,
        head_dim: usize,
        first: usize,
        count: usize,
    ) -> HeadRows<'a> {
        let values = &columns.rows[columns.start(first, head * head_dim)..];
        HeadRows { values, stride: columns.row_stride, count, head_dim }
    }

    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> &'a [f32] {
        &self.values[row * self.stride..][..self.head_dim]
    }
}

/// Turns queries into lines of `VECTORS` vectors, with a query in each lane: lines of values, or of words where
/// products are of words, and behind them lines of 0 where tile registers load whole runs. Lanes behind the last query
/// hold anything.
pub(super) struct PackQueries<'a, const VECTORS: usize> {
    pub(super) rows: HeadRows<'a>,
    /// The distance from a query to that of the next head, which is prefetched.
    pub(super) next: Option<isize>,
    /// `[head_dim][queries]`, or as many lines of words.
    pub(super) to: &'a mut [f32],
}

impl<const VECTORS: usize> Kernel for PackQueries<'_, VECTORS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { rows: queries, next, to } = self;
        let (line, head_dim) = (VECTORS * S::LANES, queries.head_dim);
        for first in (0..queries.count).step_by(lanes::SQUARE) {
            let mut rows: [&[f32]; lanes::SQUARE] = [&[]; lanes::SQUARE];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = queries.row((first + i).min(queries.count - 1));
            }
            lanes::transpose(s, rows, &mut to[first..], line);
            if let Some(next) = next {
                for row in rows {
                    for value in (0..head_dim).step_by(LINE_VALUES) {
                        s.prefetch(row.as_ptr().wrapping_offset(next).wrapping_add(value));
                    }
                }
            }
        }
        if S::DOT_BF16 {
            join_lines(s, to, line, head_dim);
        }
        if S::HAS_TILE_REGISTERS {
            // registers load whole runs, and NaN times 0 is NaN
            to[head_dim.div_ceil(2) * line..tile_registers::query_words(head_dim) * line].fill(0.0);
        }
    }
}

/// Packs keys as words, strip by strip.
pub(super) struct PackKeys<'a> {
    pub(super) rows: HeadRows<'a>,
    pub(super) key_strips: TileRanges,
    pub(super) to: &'a mut [f32],
}

impl Kernel for PackKeys<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for range in self.key_strips {
            let strip = &mut self.to[tile_values(range.start, words::<S>(self.rows.head_dim))..];
            let line = range.len() * S::LANES;
            for (i, row) in range.enumerate() {
                let (runs, rest) =
                    self.rows.row(row).split_at(self.rows.head_dim / (2 * S::LANES) * 2 * S::LANES);
                for (number, run) in runs.chunks_exact(2 * S::LANES).enumerate() {
                    let pairs = s.pair_bf16(s.load(run), s.load(&run[S::LANES..]));
                    s.store(s.float(pairs), &mut strip[number * line + i * S::LANES..]);
                }
                if !rest.is_empty() {
                    let (first, second) = rest.split_at(rest.len().min(S::LANES));
                    let pairs = s.pair_bf16(lanes::read(s, first, 0.0), lanes::read(s, second, 0.0));
                    s.store(s.float(pairs), &mut strip[runs.len() / (2 * S::LANES) * line + i * S::LANES..]);
                }
            }
        }
    }
}

/// Packs values, `[keys][whole vectors]`, with 0 behind the last dimension; where products are of words, words of two
/// keys.
pub(super) struct PackValues<'a> {
    pub(super) rows: HeadRows<'a>,
    pub(super) to: &'a mut [f32],
}

impl Kernel for PackValues<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { rows, to } = self;
        let line = rows.head_dim.next_multiple_of(S::LANES).max(1);
        if !S::DOT_BF16 {
            for (key, to) in (0..rows.count).zip(to.chunks_exact_mut(line)) {
                for (from, to) in rows.row(key).chunks(S::LANES).zip(to.chunks_exact_mut(S::LANES)) {
                    s.store(lanes::read(s, from, 0.0), to);
                }
            }
            return;
        }
        for (key, to) in (0..rows.count).step_by(2).zip(to.chunks_exact_mut(line)) {
            let first = rows.row(key);
            if key + 1 < rows.count {
                let pairs = first.chunks(S::LANES).zip(rows.row(key + 1).chunks(S::LANES));
                for ((v, w), to) in pairs.zip(to.chunks_exact_mut(S::LANES)) {
                    s.store(join(s, lanes::read(s, v, 0.0), lanes::read(s, w, 0.0)), to);
                }
            } else {
                for (v, to) in first.chunks(S::LANES).zip(to.chunks_exact_mut(S::LANES)) {
                    s.store(join(s, lanes::read(s, v, 0.0), s.splat(0.0)), to);
                }
            }
        }
    }
}

/// More than rounding to bf16 enlarges a value: 2¹²⁷ · (2 − 2⁻⁸) and greater values become infinite.
const GROWTH: f32 = 1.0 + 1.0 / 256.0;

/// Whether all values are finite, and still are in the form that is multiplied.
pub(super) struct AreFinite<'a>(pub(super) HeadRows<'a>);

impl Kernel for AreFinite<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> bool {
        let mut zero = s.splat(0.0);
        for row in 0..self.0.count {
            // v · 0 is 0 unless v is infinite or NaN, or so large that it may be infinite as bf16
            let of_row = lanes::fold(
                s,
                self.0.row(row),
                0.0,
                s.splat(0.0),
                |sum, v| {
                    let v = if S::DOT_BF16 { s.mul(v, s.splat(GROWTH)) } else { v };
                    s.mul_add(v, s.splat(0.0), sum)
                },
                |a, b| s.add(a, b),
            );
            zero = s.add(zero, of_row);
        }
        s.reduce_sum(zero) == 0.0
    }
}
