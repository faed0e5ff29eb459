//! Attention of one head, for some rows of queries of one sequence.
//!
//! ```text
//! queries ─ transposed ─▶ blocks [head_dim][lanes]
//! keys    ─ as they lie ▶ strips of keys · block ─▶ scores [keys][lanes] ─ exponentials ─▶ weights [keys][lanes]
//! values  ─ as they lie ▶ [keys][head_dim] · weights, a query to a row ─▶ sums [rows][head_dim] ─▶ / totals
//! ```
//!
//! Keys and values of f32 are read where they lie: copying them took as long as a product of a short sequence, and for
//! a long one copies cost what products of packed keys and values gain. Both are packed where products take words of
//! two bf16, and values also where a head does not end with a whole vector.
//!
//! Stretches of keys come in their order, and every block of queries sees each of them. A stretch meets a block in
//! strips, a strip being the keys of one product. The keys, values and weights of a stretch stay in the caches, however
//! long the sequence is, and memory is bounded. Where a sequence is longer than a stretch, sums wait in scratch for the
//! next one (see [`super::weights`]).
//!
//! While a block's weights are computed, its share of the next stretch is prefetched, or of the first stretch of the
//! next head. All stretches of a long sequence at once would drive each other out of the second-level cache, in which
//! rows that are whole pages apart share a few places.
//!
//! Every score is one chain of fused multiply-adds over ascending `k`, and every sum is one over ascending keys,
//! continued from stretch to stretch; lanes never mix. Where one query of a block sees a key that another does not, the
//! other's weight is 0, which adds nothing to a sum as long as values are finite. If a value is not finite, or would
//! not be once rounded to the bf16 that is multiplied, rows go one by one, each over its own keys.
//!
//! On an instruction set with bf16 dot products, the operands of both products are words of two bf16: two dimensions of
//! a query or a key; two keys, counted from the first of a stretch, of weights and values. Everything between is f32.
//! With tile registers, both products use them ([`super::tile_registers`]), and what they add up at once is a link of these
//! chains.

mod block;
mod sums;

use std::ops::Range;

use block::QueryBlock;

use super::{
    AttentionMask, AttentionShape, Biases,
    ahead::Ahead,
    arrange::{self, AreFinite, HeadRows, PackKeys, PackValues},
    disentangled::gathered_values,
    tile_registers,
    weights::{MOST_QUERIES, Scale},
};
use crate::{
    Columns,
    device::SharedMut,
    gemm::{EvenTiles, RUN, TileRegisters, held_rows, tile_values},
    simd::{LINE_VALUES, Simd, TILE_REGISTERS_SIDE},
};

/// Lanes of the longest vectors.
const MOST_LANES: usize = MOST_QUERIES / 2;
/// The most rows of queries that go through a stretch of keys together.
pub(super) const MOST_QUERY_ROWS: usize = 512;
/// Keys of a stretch: its weights take a third of a first-level cache, and twice as many made nothing faster.
const STRETCH_KEYS: usize = 128;
/// Keys of a stretch under a window, which sees little of any stretch.
const WINDOW_STRETCH_KEYS: usize = 64;

/// A head of queries, and the keys and values that it reads.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub(super) shape: AttentionShape,
    pub(super) head: usize,
    pub(super) q: Columns<&'a [f32]>,
    pub(super) k: Columns<&'a [f32]>,
    pub(super) v: Columns<&'a [f32]>,
    pub(super) bias: Option<Biases<'a>>,
    /// Whether no head over the same rows came before, which would have prefetched what this one reads.
    pub(super) is_first: bool,
    /// The head that probably comes next, over the same rows: what it reads first is prefetched while this one
    /// computes.
    pub(super) next: Option<usize>,
    /// `[rows, num_heads · head_dim]`.
    pub(super) out: SharedMut<'a, f32>,
}

/// Scratch of some rows of queries, cut into its parts.
struct Scratch<'a> {
    /// Blocks of queries, `[head_dim][lanes]` of values or fewer lines of words, each in [`query_lines`] lines.
    queries: &'a mut [f32],
    /// Strips, one after another, where keys are packed.
    keys: &'a mut [f32],
    /// `[keys][whole vectors]`, where values are packed; with tile registers, as [`tile_registers::PackColumns`] packs them,
    /// and behind that the sums and values for one query.
    values: &'a mut [f32],
    /// `[keys][lanes]`.
    weights: &'a mut [f32],
    /// By distance; or `[keys][lanes]`, and behind that the values that a square of queries gathers.
    biases: &'a mut [f32],
    /// Greatest scores and totals of each block.
    states: &'a mut [f32],
    /// `[rows][whole vectors]`; with tile registers `[dimensions][lanes]` for each block.
    sums: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    /// Values of each part, whatever the instruction set.
    fn sizes(head_dim: usize) -> [usize; 7] {
        let wide = head_dim.next_multiple_of(MOST_LANES);
        [
            MOST_QUERY_ROWS * query_lines(head_dim),
            tile_values(STRETCH_KEYS, head_dim),
            // twice the words of a stretch, of two keys each, and the sums of a block
            (STRETCH_KEYS + MOST_QUERIES) * wide,
            STRETCH_KEYS * MOST_QUERIES,
            STRETCH_KEYS * MOST_QUERIES + gathered_values(STRETCH_KEYS),
            // blocks of the shortest vectors have the longest states
            2 * MOST_QUERY_ROWS,
            MOST_QUERY_ROWS * wide,
        ]
    }

    fn cut(mut scratch: &'a mut [f32], head_dim: usize) -> Scratch<'a> {
        let [queries, keys, values, weights, biases, states, sums] = Self::sizes(head_dim).map(|len| {
            let (part, rest) = std::mem::take(&mut scratch).split_at_mut(len);
            scratch = rest;
            part
        });
        Scratch { queries, keys, values, weights, biases, states, sums }
    }
}

/// Scratch that [`Head::attend`] needs, whatever the instruction set.
pub(super) fn scratch_values(head_dim: usize) -> usize {
    Scratch::sizes(head_dim).into_iter().sum()
}

/// The most keys of a product.
#[inline(always)]
fn keys_of_product<S: Simd>() -> usize {
    if S::HAS_TILE_REGISTERS { TILE_REGISTERS_SIDE } else { held_rows::<S>() }
}

/// Whether a block of `queries` queries has lines of two vectors.
#[inline(always)]
fn is_wide<S: Simd>(queries: usize) -> bool {
    S::HAS_TILE_REGISTERS || queries > S::LANES
}

/// Lines of a block of queries, at least a run: tile registers load words of whole runs.
#[inline(always)]
fn query_lines(head_dim: usize) -> usize {
    head_dim.max(RUN)
}

/// Queries of a whole block.
#[inline(always)]
fn block_queries<S: Simd>() -> usize {
    2 * S::LANES
}

impl Head<'_> {
    /// Writes this head's columns of at most [`MOST_QUERY_ROWS`] rows, which begin at `first_row` in queries and
    /// result: the rows at the positions `rows` of the sequence whose keys and values are the rows `tokens` (or in the
    /// padding behind it).
    ///
    /// # Safety
    /// Nothing else uses these columns of these rows of `out` while this runs.
    #[inline(always)]
    pub(super) unsafe fn attend<S: Simd>(
        &self,
        s: S,
        rows: Range<usize>,
        first_row: usize,
        tokens: Range<usize>,
        scratch: &mut [f32],
    ) {
        let AttentionShape { head_dim, scale, mask, .. } = self.shape;
        let mut scratch = Scratch::cut(scratch, head_dim);
        let seen = mask.visible_to_any(rows.clone(), tokens.len());
        let stretches = KeyStretches::new::<S>(mask, seen.clone());
        if self.is_first {
            self.prefetch_own(s, first_row..first_row + rows.len(), tokens.start, stretches.keys(0));
        }
        self.arrange_queries(s, first_row..first_row + rows.len(), scratch.queries);
        let (greatest, totals) = scratch.states.split_at_mut(MOST_QUERY_ROWS);
        let lanes = rows.len().next_multiple_of(block_queries::<S>());
        greatest[..lanes].fill(f32::NEG_INFINITY);
        totals[..lanes].fill(0.0);
        let query_rows =
            QueryRows { head: self, tokens, rows, first_row, scale: Scale::new(scale, self.bias.is_some()) };
        for first in query_rows.rows.clone().step_by(block_queries::<S>()) {
            let block = first..query_rows.rows.end.min(first + block_queries::<S>());
            if mask.visible_to_any(block.clone(), query_rows.tokens.len()).is_empty() {
                // SAFETY: the caller promises these rows.
                unsafe { query_rows.write_zeros(block) };
            }
        }
        if seen.is_empty() {
            return;
        }
        // SAFETY: nothing else on this thread multiplies by tile registers while this runs.
        let mut registers = unsafe { TileRegisters::new(s) };
        for stretch in 0..stretches.count() {
            let (head, next) = if stretch + 1 < stretches.count() {
                (self.head, stretches.keys(stretch + 1))
            } else {
                self.next.map_or((self.head, 0..0), |next| (next, stretches.keys(0)))
            };
            // SAFETY: the caller promises these rows.
            unsafe {
                query_rows.attend_to(s, &mut registers, stretches.keys(stretch), (head, next), &mut scratch);
            }
        }
    }

    /// Arranges queries in blocks of `[head_dim][lanes]`, a query to a lane. Lanes behind the last query hold anything:
    /// their results are not read.
    #[inline(always)]
    fn arrange_queries<S: Simd>(&self, s: S, rows: Range<usize>, blocks: &mut [f32]) {
        let (head_dim, most) = (self.shape.head_dim, block_queries::<S>());
        let starts = rows.clone().step_by(most);
        for (first, to) in starts.zip(blocks.chunks_mut(query_lines(head_dim) * most)) {
            let count = most.min(rows.end - first);
            let rows = HeadRows::new(self.q, self.head, head_dim, first, count);
            // may lie behind the last value, but is only prefetched
            let next = self.next.map(|next| (next as isize - self.head as isize) * head_dim as isize);
            // a block of one vector has lines of one vector
            if is_wide::<S>(count) {
                s.call(arrange::PackQueries::<2> { rows, next, to });
            } else {
                s.call(arrange::PackQueries::<1> { rows, next, to });
            }
        }
    }

    /// Prefetches what this head reads of some rows of queries, and of the keys and values of a sequence that begins at
    /// row `tokens`. Each row lies in a page of its own, so the hardware prefetcher does not fetch it; fetching rows
    /// one by one would take most of the time of short sequences.
    #[inline(always)]
    fn prefetch_own<S: Simd>(&self, s: S, queries: Range<usize>, tokens: usize, keys: Range<usize>) {
        for row in queries {
            self.prefetch_query(s, self.head, row);
        }
        self.ahead(self.head, tokens + keys.start..tokens + keys.end).ask_for_rest(s);
    }

    /// Prefetches the query of a head in one row.
    #[inline(always)]
    fn prefetch_query<S: Simd>(&self, s: S, head: usize, row: usize) {
        let head_dim = self.shape.head_dim;
        let first = self.q.start(row, head * head_dim);
        for value in (first..first + head_dim).step_by(LINE_VALUES) {
            s.prefetch(self.q.rows.as_ptr().wrapping_add(value));
        }
    }

    /// The keys and values that `head` reads in some rows.
    #[inline(always)]
    fn ahead(&self, head: usize, rows: Range<usize>) -> Ahead {
        Ahead::new([self.k, self.v], self.shape.kv_head(head), self.shape.head_dim, rows)
    }

    /// Whether the values of a key fill whole vectors of the product, so that they need not be packed.
    #[inline(always)]
    fn values_are_lines<S: Simd>(&self) -> bool {
        !S::DOT_BF16 && self.shape.head_dim.is_multiple_of(S::LANES)
    }

    /// The head of keys and values.
    fn kv_head(&self) -> usize {
        self.shape.kv_head(self.head)
    }
}

/// The keys that some rows see, if any, in stretches that are counted from the start of the sequence.
#[derive(Clone, Copy)]
struct KeyStretches {
    start: usize,
    end: usize,
    keys_of_stretch: usize,
}

impl KeyStretches {
    #[inline(always)]
    fn new<S: Simd>(mask: AttentionMask, seen: Range<usize>) -> KeyStretches {
        let keys_of_stretch =
            if matches!(mask, AttentionMask::Window { .. }) { WINDOW_STRETCH_KEYS } else { STRETCH_KEYS };
        // begins where, whatever rows attend, the same two keys share a word, and the same words a register
        let shared = if S::HAS_TILE_REGISTERS { tile_registers::REGISTER_KEYS } else { 2 };
        KeyStretches { start: seen.start / shared * shared, end: seen.end, keys_of_stretch }
    }

    #[inline(always)]
    fn count(self) -> usize {
        self.end.div_ceil(self.keys_of_stretch) - self.start / self.keys_of_stretch
    }

    /// Positions of the keys of one stretch.
    #[inline(always)]
    fn keys(self, number: usize) -> Range<usize> {
        let first = (self.start / self.keys_of_stretch + number) * self.keys_of_stretch;
        self.start.max(first)..self.end.min(first + self.keys_of_stretch)
    }
}

/// A head and consecutive rows of a sequence.
struct QueryRows<'a> {
    head: &'a Head<'a>,
    /// Rows of the sequence.
    tokens: Range<usize>,
    /// Positions that attend.
    rows: Range<usize>,
    /// The row of the first of them in queries and result.
    first_row: usize,
    scale: Scale,
}

impl<'a> QueryRows<'a> {
    /// Lets every block attend to the keys of one stretch, and prefetches its share of the rows that are read next.
    ///
    /// # Safety
    /// Nothing else uses this head's columns of these rows of `out` while this runs.
    #[inline(always)]
    unsafe fn attend_to<S: Simd>(
        &self,
        s: S,
        registers: &mut TileRegisters<S>,
        keys: Range<usize>,
        (next_head, next): (usize, Range<usize>),
        scratch: &mut Scratch<'_>,
    ) {
        let key_strips = EvenTiles::new(keys.len(), keys_of_product::<S>()).ranges();
        let values = self.rows_of(self.head.v, &keys);
        if S::DOT_BF16 {
            let rows = self.rows_of(self.head.k, &keys);
            s.call(PackKeys { rows, key_strips: key_strips.clone(), to: scratch.keys });
        }
        if S::HAS_TILE_REGISTERS {
            s.call(tile_registers::PackColumns { rows: values, to: scratch.values });
        } else if !self.head.values_are_lines::<S>() {
            s.call(PackValues { rows: values, to: scratch.values });
        }
        let by_row = self.head.shape.mask != AttentionMask::Full && !s.call(AreFinite(values));
        let blocks = self.rows.len().div_ceil(block_queries::<S>());
        for (number, first) in self.rows.clone().step_by(block_queries::<S>()).enumerate() {
            let rows = first..self.rows.end.min(first + block_queries::<S>());
            let part = |number| self.tokens.start + next.start + next.len() * number / blocks;
            let ahead = self.head.ahead(next_head, part(number)..part(number + 1));
            let block = QueryBlock {
                query_rows: self,
                rows,
                number,
                keys: keys.clone(),
                key_strips: key_strips.clone(),
                by_row,
            };
            // SAFETY: these rows are among those that the caller promises.
            unsafe {
                if is_wide::<S>(block.rows.len()) {
                    block.attend::<S, 2>(s, registers, scratch, ahead);
                } else {
                    block.attend::<S, 1>(s, registers, scratch, ahead);
                }
            }
        }
    }

    /// Some keys of the sequence, or their values.
    #[inline(always)]
    fn rows_of(&self, columns: Columns<&'a [f32]>, keys: &Range<usize>) -> HeadRows<'a> {
        let Head { shape: AttentionShape { head_dim, .. }, .. } = *self.head;
        HeadRows::new(columns, self.head.kv_head(), head_dim, self.tokens.start + keys.start, keys.len())
    }

    /// Writes the result of rows that see no key.
    ///
    /// # Safety
    /// As for [`QueryRows::attend_to`].
    unsafe fn write_zeros(&self, rows: Range<usize>) {
        for row in rows {
            // SAFETY: the caller promises this row.
            unsafe { self.out(row, 0, self.head.shape.head_dim) }.fill(0.0);
        }
    }

    /// `len` of this head's columns from `column` on, in the row at position `row`.
    ///
    /// # Safety
    /// The row is one of these, nothing else uses its columns of this head, and no earlier result is still in use.
    #[inline(always)]
    unsafe fn out(&self, row: usize, column: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: columns of this head, in a row that the caller promises.
        unsafe { self.head.out.slice(self.start_of_out(row, column), len) }
    }

    /// Where `len` of this head's columns from `column` on begin, in the row at position `row`, and the distance to the
    /// next row; all of `rows` rows are there.
    #[inline(always)]
    fn out_rows(&self, row: usize, rows: usize, column: usize, len: usize) -> (*mut f32, usize) {
        let AttentionShape { num_heads, head_dim, .. } = self.head.shape;
        let stride = num_heads * head_dim;
        let part = self.head.out.part(self.start_of_out(row, column), (rows - 1) * stride + len);
        (part.as_mut_ptr(), stride)
    }

    #[inline(always)]
    fn start_of_out(&self, row: usize, column: usize) -> usize {
        let AttentionShape { num_heads, head_dim, .. } = self.head.shape;
        let row = self.first_row + row - self.rows.start;
        (row * num_heads + self.head.head) * head_dim + column
    }
}
