//! Both products of attention by tile registers.
//!
//! ```text
//! scores  keys [keys][words of dimensions]     · queries [words of dimensions][lanes]  ─▶  [keys][lanes]
//! sums    values [dimensions][words of keys]   · weights [words of keys][lanes]        ─▶  [dimensions][lanes]
//! ```
//!
//! The right operands lie as they do for vectors, so queries are arranged and scores become weights by the same code.
//! Values are transposed while they are packed, and sums when they are done.
//!
//! A register takes sixteen words, which are 32 keys, counted from the beginning of the sequence: which keys add up
//! before they are added to a sum depends on nothing else. Keys of a register that no query sees have weights of 0.

use std::ops::Range;

use super::{arrange::HeadRows, product::join, weights::MOST_QUERIES};
use crate::{
    gemm::{RUN, TileRegisters},
    lanes,
    simd::{Kernel, Simd, TILE_REGISTERS_SIDE},
};

/// Keys that a register takes at once.
pub(super) const REGISTER_KEYS: usize = 2 * RUN;

const _: () =
    assert!(MOST_QUERIES == TILE_REGISTERS_SIDE, "registers hold the sums of a whole block of queries");

/// Words of the dimensions of a head, in whole runs.
pub(super) fn query_words(head_dim: usize) -> usize {
    head_dim.div_ceil(2).next_multiple_of(RUN)
}

/// Dimensions of a head in whole runs, as sums have them.
pub(super) fn sum_lines(head_dim: usize) -> usize {
    head_dim.next_multiple_of(RUN)
}

/// Scores of up to 32 keys, and the greatest of each query; run only by [`Scores::compute`].
pub(super) struct Scores<'a> {
    /// A run of words of each key, and then the next one.
    pub(super) keys: &'a [f32],
    /// The number of keys.
    pub(super) count: usize,
    /// [`query_words`] lines.
    pub(super) queries: &'a [f32],
    /// `[keys][queries]`.
    pub(super) lines: &'a mut [f32],
    /// The greatest so far, raised.
    pub(super) greatest: &'a mut [f32; MOST_QUERIES],
}

impl Scores<'_> {
    /// Computes the scores.
    #[inline(always)]
    pub(super) fn compute<S: Simd>(self, s: S, registers: &mut TileRegisters<S>) {
        registers.set_up(self.count);
        s.call(self);
    }
}

impl Kernel for Scores<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { keys, count, queries, lines, greatest } = self;
        let (queries, rest) = queries.as_chunks::<{ RUN * MOST_QUERIES }>();
        assert!(rest.is_empty() && keys.len() >= queries.len() * count * RUN);
        let lines = &mut lines[..count * MOST_QUERIES];
        // SAFETY: the registers are set up for `count` rows, of which each has all runs and a line.
        unsafe {
            s.zero_tiles(count);
            for (run, words) in queries.iter().enumerate() {
                s.add_tile_products(count, keys.as_ptr().add(run * count * RUN), words.as_ptr());
            }
            s.store_tiles(count, lines.as_mut_ptr(), MOST_QUERIES);
        }
        for (at, greatest) in greatest.chunks_exact_mut(S::LANES).enumerate() {
            let mut most = s.load(greatest);
            for line in lines.chunks_exact(MOST_QUERIES) {
                most = s.max(s.load(&line[at * S::LANES..]), most); // forgets NaN, which comes back as a weight
            }
            s.store(most, greatest);
        }
    }
}

/// Some dimensions of a head, as many as registers take.
#[derive(Clone, Copy)]
pub(super) struct Dimensions {
    pub(super) first: usize,
    /// 16 or 32, of which the last ones may lie behind the head.
    count: usize,
}

impl Dimensions {
    /// All dimensions of a head.
    #[inline(always)]
    pub(super) fn of(head_dim: usize) -> impl Iterator<Item = Dimensions> {
        let end = sum_lines(head_dim);
        (0..end)
            .step_by(TILE_REGISTERS_SIDE)
            .map(move |first| Dimensions { first, count: TILE_REGISTERS_SIDE.min(end - first) })
    }
}

/// Words that [`PackColumns`] writes for `keys` keys.
pub(super) fn column_words(head_dim: usize, keys: usize) -> usize {
    sum_lines(head_dim) * keys.div_ceil(REGISTER_KEYS) * RUN
}

/// Packs values for products in which a dimension is a row: for each [`Dimensions`], register by register, a row of
/// words of two keys, with 0 behind the last key and the last dimension.
pub(super) struct PackColumns<'a> {
    pub(super) rows: HeadRows<'a>,
    /// [`column_words`].
    pub(super) to: &'a mut [f32],
}

impl Kernel for PackColumns<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { rows, to } = self;
        let registers = rows.count.div_ceil(REGISTER_KEYS);
        for Dimensions { first, count } in Dimensions::of(rows.head_dim) {
            for (register, column) in
                (0..registers).flat_map(|register| (0..count).step_by(RUN).map(move |it| (register, it)))
            {
                let mut words = [[0.0; RUN]; RUN];
                for (word, line) in words.iter_mut().enumerate() {
                    let mut pair = [s.splat(0.0); 2];
                    for (key, values) in (register * REGISTER_KEYS + 2 * word..rows.count).zip(&mut pair) {
                        *values = lanes::read(s, rows.row(key).get(first + column..).unwrap_or(&[]), 0.0);
                    }
                    s.store(join(s, pair[0], pair[1]), line);
                }
                let to = &mut to[(first * registers + register * count + column) * RUN..][..RUN * RUN];
                for half in (0..RUN).step_by(lanes::SQUARE) {
                    let mut lines: [&[f32]; lanes::SQUARE] = [&[]; lanes::SQUARE];
                    for (line, words) in lines.iter_mut().zip(&words[half..]) {
                        *line = words;
                    }
                    lanes::transpose(s, lines, &mut to[half..], RUN);
                }
            }
        }
    }
}

/// Copies the words that [`PackColumns`] wrote for `keys` keys, with 0 for keys that are not `seen`.
pub(super) fn hide_keys(
    words: &[f32],
    (head_dim, keys): (usize, usize),
    seen: &Range<usize>,
    to: &mut [f32],
) {
    let registers = keys.div_ceil(REGISTER_KEYS);
    for Dimensions { first, count } in Dimensions::of(head_dim) {
        for register in 0..registers {
            let at = (first * registers + register * count) * RUN;
            let rows = words[at..at + count * RUN].iter().zip(&mut to[at..at + count * RUN]);
            for (number, (word, to)) in rows.enumerate() {
                let key = register * REGISTER_KEYS + 2 * (number % RUN);
                // the first of two is the upper half
                let upper = if seen.contains(&key) { 0xffff_0000 } else { 0 };
                let lower = if seen.contains(&(key + 1)) { 0xffff } else { 0 };
                *to = f32::from_bits(word.to_bits() & (upper | lower));
            }
        }
    }
}

/// Adds the values of some registers of keys, times the weights of a block's queries, to sums; run only by
/// [`AddValues::add`].
pub(super) struct AddValues<'a> {
    pub(super) dimensions: Dimensions,
    /// As [`PackColumns`] wrote them, and for how many registers.
    pub(super) values: &'a [f32],
    pub(super) registers_of_values: usize,
    /// The registers that count.
    pub(super) key_registers: Range<usize>,
    /// `[words of keys][queries]`, of all registers that count.
    pub(super) weights: &'a [f32],
    /// Factors on what the sums already hold, if anything.
    pub(super) before: Option<&'a [f32; MOST_QUERIES]>,
    /// `[dimensions of the head][queries]`.
    pub(super) sums: &'a mut [f32],
}

impl AddValues<'_> {
    /// Adds the values.
    #[inline(always)]
    pub(super) fn add<S: Simd>(self, s: S, registers: &mut TileRegisters<S>) {
        registers.set_up(self.dimensions.count);
        s.call(self);
    }
}

impl Kernel for AddValues<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            dimensions: Dimensions { first, count },
            registers_of_values,
            key_registers,
            weights,
            before,
            sums,
            ..
        } = self;
        let values = &self.values[first * registers_of_values * RUN..][..count * registers_of_values * RUN];
        let sums = &mut sums[first * MOST_QUERIES..][..count * MOST_QUERIES];
        assert!(
            key_registers.end <= registers_of_values
                && key_registers.end * RUN * MOST_QUERIES <= weights.len()
        );
        if let Some(before) = before {
            for line in sums.chunks_exact_mut(MOST_QUERIES) {
                for (sum, before) in line.chunks_exact_mut(S::LANES).zip(before.chunks_exact(S::LANES)) {
                    s.store(s.mul(s.load(sum), s.load(before)), sum);
                }
            }
        }
        // SAFETY: the registers are set up for `count` rows, and what they load is inside both operands.
        unsafe {
            if before.is_some() {
                s.load_tiles(count, sums.as_ptr(), MOST_QUERIES);
            } else {
                s.zero_tiles(count);
            }
            for register in key_registers {
                let (x, w) = (register * count * RUN, register * RUN * MOST_QUERIES);
                s.add_tile_products(count, values.as_ptr().add(x), weights.as_ptr().add(w));
            }
            s.store_tiles(count, sums.as_mut_ptr(), MOST_QUERIES);
        }
    }
}

/// Turns sums times their `factors` into rows of the result; made where the promise of
/// [`super::head::QueryRows::attend_to`] holds.
pub(super) struct Rows<'a> {
    pub(super) head_dim: usize,
    pub(super) queries: usize,
    /// `[dimensions][queries]`, overwritten.
    pub(super) sums: &'a mut [f32],
    pub(super) factors: &'a [f32; MOST_QUERIES],
    /// The first of `queries` rows of `head_dim` values, and how far it is from one to the next.
    pub(super) to: (*mut f32, usize),
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { head_dim, queries, sums, factors, to: (to, stride) } = self;
        let zero = s.splat(0.0);
        let sums = &mut sums[..sum_lines(head_dim) * MOST_QUERIES];
        for line in sums.chunks_exact_mut(MOST_QUERIES) {
            for (sum, factor) in line.chunks_exact_mut(S::LANES).zip(factors.chunks_exact(S::LANES)) {
                // weights of 0 may or may not leave −0; adding 0 makes both zeros the same
                s.store(s.mul_add(s.load(sum), s.load(factor), zero), sum);
            }
        }
        let squares = (0..queries.min(MOST_QUERIES))
            .step_by(lanes::SQUARE)
            .flat_map(|query| (0..head_dim).step_by(lanes::SQUARE).map(move |column| (query, column)));
        for (query, column) in squares {
            let mut lines = [sums.as_ptr(); lanes::SQUARE];
            for (line, dimension) in lines.iter_mut().zip(column..) {
                *line = line.wrapping_add(dimension * MOST_QUERIES + query);
            }
            let (rows, width) = (lanes::SQUARE.min(queries - query), lanes::SQUARE.min(head_dim - column));
            // SAFETY: a square of sums, whose lines come in whole runs; and a square of the result, or the part of one
            // that is there where the result ends before it.
            unsafe {
                let to = to.add(query * stride + column);
                if rows == lanes::SQUARE && width == lanes::SQUARE {
                    s.transpose_ptr(lines, to, stride);
                } else {
                    let mut square = [0.0f32; lanes::SQUARE * lanes::SQUARE];
                    s.transpose_ptr(lines, square.as_mut_ptr(), lanes::SQUARE);
                    for (row, values) in square.chunks_exact(lanes::SQUARE).enumerate().take(rows) {
                        let (values, to) = (values.as_ptr(), to.add(row * stride));
                        // one move instead of a call, where heads are whole squares
                        if width == lanes::SQUARE {
                            values.copy_to_nonoverlapping(to, lanes::SQUARE);
                        } else {
                            values.copy_to_nonoverlapping(to, width);
                        }
                    }
                }
            }
        }
    }
}
