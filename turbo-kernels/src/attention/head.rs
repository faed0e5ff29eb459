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
//! With tile registers, both products use them ([`super::tiled`]), and what they add up at once is a link of these
//! chains.

use std::ops::Range;

use super::{
    AttentionMask, AttentionShape, Biases,
    ahead::Ahead,
    arrange::{self, AreFinite, HeadRows, PackKeys, PackValues},
    disentangled::{ByPosition, Meeting, WriteBiases, gathered_values},
    product::{RowOrder, multiply, step, words},
    tiled,
    weights::{LineBiases, MOST_QUERIES, Scale, ScoreGrid, State, Visible},
};
use crate::{
    Columns,
    device::SharedMut,
    gemm::{EvenTiles, RUN, TileRanges, TileRegisters, held_rows, tile_values, unrolled, with_rows},
    simd::{Kernel, LINE_VALUES, Simd, TILES_SIDE},
};

/// Lanes of the longest vectors.
const MOST_LANES: usize = MOST_QUERIES / 2;
/// The most rows of queries that go through a stretch of keys together.
pub(super) const MOST_QUERY_ROWS: usize = 512;
/// The second value of a word of two bf16.
const LOWER_HALF: i32 = 0xffff;
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
    /// `[keys][whole vectors]`, where values are packed; with tile registers, as [`tiled::PackColumns`] packs them, and
    /// behind that the sums and values for one query.
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
    if S::TILES { TILES_SIDE } else { held_rows::<S>() }
}

/// Whether a block of `queries` queries has lines of two vectors.
#[inline(always)]
fn is_wide<S: Simd>(queries: usize) -> bool {
    S::TILES || queries > S::LANES
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
        let shared = if S::TILES { tiled::REGISTER_KEYS } else { 2 };
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
        if S::TILES {
            s.call(tiled::PackColumns { rows: values, to: scratch.values });
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

/// Queries in the lanes of one or two vectors, and a stretch of keys.
struct QueryBlock<'a> {
    query_rows: &'a QueryRows<'a>,
    /// Positions of the queries.
    rows: Range<usize>,
    /// The number of the block among those of the rows.
    number: usize,
    /// Positions of the keys.
    keys: Range<usize>,
    /// How the keys are cut into strips.
    key_strips: TileRanges,
    /// Whether some value is not finite, so that each row must keep to its own keys.
    by_row: bool,
}

impl QueryBlock<'_> {
    /// # Safety
    /// As for [`QueryRows::attend_to`].
    #[inline(always)]
    unsafe fn attend<S: Simd, const VECTORS: usize>(
        &self,
        s: S,
        registers: &mut TileRegisters<S>,
        scratch: &mut Scratch<'_>,
        ahead: Ahead,
    ) {
        let QueryRows { head, scale, .. } = *self.query_rows;
        let (head_dim, mask, len) = (head.shape.head_dim, head.shape.mask, self.query_rows.tokens.len());
        let all = mask.visible_to_any(self.rows.clone(), len);
        let seen = all.start.max(self.keys.start)..all.end.min(self.keys.end);
        if seen.is_empty() {
            return;
        }
        // at least as many lines as a register takes words, even where keys are fewer
        let lines = &mut scratch.weights[..self.keys.len().max(RUN) * VECTORS * S::LANES];
        let queries = &scratch.queries[self.number * block_queries::<S>() * query_lines(head_dim)..];
        let mut grid = ScoreGrid { lines, seen: seen.start - self.keys.start..seen.end - self.keys.start };
        let mut greatest = self.score::<S, VECTORS>(s, registers, (scratch.keys, queries), &mut grid);
        let sees_all = mask.visible(self.rows.start, len).end >= seen.end
            && mask.visible(self.rows.end - 1, len).start <= seen.start;
        if scale.comes_first() || !sees_all || seen != self.keys {
            let visible = Visible::new(mask, self.rows.start, self.keys.start, len);
            let biases = head.bias.map(|bias| match bias {
                Biases::ByDistance(bias) => {
                    let last = seen.end as isize - 1 - self.rows.start as isize;
                    // of as many distances as there are between these keys and queries
                    let biases = &mut scratch.biases[..seen.len() - 1 + VECTORS * S::LANES];
                    bias.write_falling(head.head, last, biases);
                    LineBiases { values: biases, line: 1 }
                }
                Biases::ByPosition(scores) => {
                    self.write_biases::<S, VECTORS>(s, &scores, &seen, scratch.biases);
                    LineBiases { values: scratch.biases, line: VECTORS * S::LANES }
                }
            });
            greatest = grid.adjust::<S, VECTORS>(s, scale, biases, (!sees_all).then_some(&visible));
        }
        let (most, totals) = scratch.states.split_at_mut(MOST_QUERY_ROWS);
        let at = self.number * block_queries::<S>()..(self.number + 1) * block_queries::<S>();
        let mut state = State { greatest: &mut most[at.clone()], totals: &mut totals[at] };
        let before = grid.weigh::<S, VECTORS>(s, scale, &greatest, &mut state, ahead);
        let inverses = state.inverses(s);
        if S::TILES {
            let factors = [
                (all.start < self.keys.start).then_some(&before),
                (all.end <= self.keys.end).then_some(&inverses),
            ];
            // SAFETY: the caller promises these rows.
            return unsafe { self.add_by_tiles(s, registers, grid, factors, (scratch.values, scratch.sums)) };
        }
        let sums = Sums {
            block: self,
            weights: grid.lines,
            line: VECTORS * S::LANES,
            values: self.values::<S>(scratch.values),
            before: (all.start < self.keys.start).then_some(&before),
            inverses: (all.end <= self.keys.end).then_some(&inverses),
            sums: scratch.sums,
        };
        // SAFETY: the caller promises these rows.
        unsafe { sums.add(s, grid.seen) };
    }

    /// The biases of the keys at the positions `seen`, `[keys][lanes]`, the last key first.
    #[inline(always)]
    fn write_biases<S: Simd, const VECTORS: usize>(
        &self,
        s: S,
        scores: &ByPosition<'_>,
        seen: &Range<usize>,
        biases: &mut [f32],
    ) {
        let QueryRows { head, tokens, rows, first_row, .. } = self.query_rows;
        let row = first_row + self.rows.start - rows.start;
        let meeting = Meeting {
            head: head.head,
            query: (row, self.rows.start),
            key: (tokens.start + seen.start, seen.start),
        };
        let (to, gathered) = biases.split_at_mut(STRETCH_KEYS * MOST_QUERIES);
        let (queries, keys, line) = (self.rows.len(), seen.len(), VECTORS * S::LANES);
        s.call(WriteBiases { scores, meeting, queries, keys, to, line, gathered });
    }

    /// Adds, by tile registers, the values of the keys for which the grid has weights; `before` and `inverses` are
    /// those of [`Sums`].
    ///
    /// # Safety
    /// As for [`QueryRows::attend_to`].
    #[inline(always)]
    unsafe fn add_by_tiles<S: Simd>(
        &self,
        s: S,
        registers: &mut TileRegisters<S>,
        ScoreGrid { lines: weights, seen }: ScoreGrid<'_>,
        [before, inverses]: [Option<&[f32; MOST_QUERIES]>; 2],
        (values, sums): (&mut [f32], &mut [f32]),
    ) {
        let (query_rows, head_dim) = (self.query_rows, self.query_rows.head.shape.head_dim);
        let words = seen.start / 2..seen.end.div_ceil(2);
        let key_registers = words.start / RUN..words.end.div_ceil(RUN);
        weights[key_registers.start * RUN * MOST_QUERIES..words.start * MOST_QUERIES].fill(0.0);
        weights[words.end * MOST_QUERIES..key_registers.end * RUN * MOST_QUERIES].fill(0.0);
        let registers_of_values = self.keys.len().div_ceil(tiled::REGISTER_KEYS);
        let of_block = tiled::sum_lines(head_dim) * MOST_QUERIES;
        let sums = &mut sums[self.number * of_block..][..of_block];
        let (values, spare) = values.split_at_mut(tiled::column_words(head_dim, self.keys.len()));
        let mut add = |values: &[f32], sums: &mut [f32]| {
            for dimensions in tiled::Dimensions::of(head_dim) {
                let (key_registers, weights) = (key_registers.clone(), &*weights);
                tiled::AddValues {
                    dimensions,
                    values,
                    registers_of_values,
                    key_registers,
                    weights,
                    before,
                    sums,
                }
                .add(s, registers);
            }
        };
        if self.by_row {
            // each query by itself, with the keys hidden that it does not see
            let (of_query, shown) = spare.split_at_mut(of_block);
            let shown = &mut shown[..values.len()];
            for query in 0..self.rows.len() {
                tiled::hide_keys(values, (head_dim, self.keys.len()), &self.visible(query, &seen), shown);
                of_query.copy_from_slice(sums);
                add(shown, of_query);
                let lanes = sums.iter_mut().zip(&*of_query).skip(query).step_by(MOST_QUERIES);
                lanes.for_each(|(to, sum)| *to = *sum);
            }
        } else {
            add(values, sums);
        }
        if let Some(factors) = inverses {
            let queries = self.rows.len();
            let to = query_rows.out_rows(self.rows.start, queries, 0, head_dim);
            s.call(tiled::Rows { head_dim, queries, sums, factors, to });
        }
    }

    /// The keys among `seen` that one query sees.
    fn visible(&self, query: usize, seen: &Range<usize>) -> Range<usize> {
        let QueryBlock { query_rows, rows, keys, .. } = self;
        let visible = query_rows.head.shape.mask.visible(rows.start + query, query_rows.tokens.len());
        let start = visible.start.saturating_sub(keys.start).max(seen.start);
        let end = visible.end.saturating_sub(keys.start).min(seen.end);
        if start < end { start..end } else { 0..0 }
    }

    /// The values of the stretch, either packed or where they lie.
    #[inline(always)]
    fn values<'s, S: Simd>(&'s self, packed: &'s [f32]) -> Lines<'s> {
        let head = self.query_rows.head;
        if !head.values_are_lines::<S>() {
            return Lines { values: packed, line: head.shape.head_dim.next_multiple_of(S::LANES) };
        }
        let first = head
            .v
            .start(self.query_rows.tokens.start + self.keys.start, head.kv_head() * head.shape.head_dim);
        Lines { values: &head.v.rows[first..], line: head.v.row_stride }
    }

    /// Computes the scores of the strips that hold a seen key; gives the greatest of each query over these strips.
    #[inline(always)]
    fn score<S: Simd, const VECTORS: usize>(
        &self,
        s: S,
        registers: &mut TileRegisters<S>,
        (keys, queries): (&[f32], &[f32]),
        grid: &mut ScoreGrid<'_>,
    ) -> [f32; MOST_QUERIES] {
        let Head { k, shape: AttentionShape { head_dim, .. }, .. } = *self.query_rows.head;
        let mut greatest = [f32::NEG_INFINITY; MOST_QUERIES];
        for range in self.key_strips.clone() {
            if range.end <= grid.seen.start || range.start >= grid.seen.end {
                continue;
            }
            let keys = if S::DOT_BF16 {
                &keys[tile_values(range.start, words::<S>(head_dim))..]
            } else {
                let row = self.query_rows.tokens.start + self.keys.start + range.start;
                &k.rows[k.start(row, self.query_rows.head.kv_head() * head_dim)..]
            };
            let lines = &mut grid.lines[range.start * VECTORS * S::LANES..];
            if S::TILES {
                let queries = &queries[..tiled::query_words(head_dim) * MOST_QUERIES];
                let (count, greatest) = (range.len(), &mut greatest);
                tiled::Scores { keys, count, queries, lines, greatest }.compute(s, registers);
                continue;
            }
            with_rows!(S, range.len(), ROWS => {
                let (stride, k, greatest) = (k.row_stride, words::<S>(head_dim), &mut greatest);
                s.call(Score::<VECTORS, ROWS> { keys, stride, queries, k, lines, greatest });
            });
        }
        greatest
    }
}

/// Scores of `ROWS` keys with the queries in the lanes of `VECTORS` vectors.
struct Score<'a, const VECTORS: usize, const ROWS: usize> {
    /// A packed strip where products are of words, otherwise the first key and what follows.
    keys: &'a [f32],
    /// Values from one key to the next where keys are not packed.
    stride: usize,
    /// `[k][queries]`.
    queries: &'a [f32],
    k: usize,
    /// `[keys][queries]`.
    lines: &'a mut [f32],
    /// The greatest so far, raised.
    greatest: &'a mut [f32; MOST_QUERIES],
}

impl<const VECTORS: usize, const ROWS: usize> Kernel for Score<'_, VECTORS, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let line = VECTORS * S::LANES;
        let zeros = [[s.splat(0.0); VECTORS]; ROWS];
        let keys =
            (self.keys, if S::DOT_BF16 { RowOrder::packed(ROWS) } else { RowOrder::rows(self.stride) });
        let scores: [[S::F32; VECTORS]; ROWS] = multiply(s, keys, (self.queries, line), self.k, zeros);
        let mut greatest = [s.splat(0.0); VECTORS];
        for (i, greatest) in greatest.iter_mut().enumerate() {
            *greatest = s.load(&self.greatest[i * S::LANES..]);
        }
        for (scores, to) in scores.into_iter().zip(self.lines[..ROWS * line].chunks_exact_mut(line)) {
            for (i, score) in scores.into_iter().enumerate() {
                s.store(score, &mut to[i * S::LANES..]);
                greatest[i] = s.max(score, greatest[i]); // forgets NaN, which comes back as a weight
            }
        }
        for (i, greatest) in greatest.into_iter().enumerate() {
            s.store(greatest, &mut self.greatest[i * S::LANES..]);
        }
    }
}

/// The values of keys, line by line.
#[derive(Clone, Copy)]
struct Lines<'a> {
    /// The first line and what follows.
    values: &'a [f32],
    /// Values from one line to the next.
    line: usize,
}

/// The second product: weights of a block's queries times the values of a stretch of keys.
struct Sums<'a> {
    block: &'a QueryBlock<'a>,
    /// `[keys][queries]`, lines of `line` values.
    weights: &'a [f32],
    line: usize,
    /// The values of the stretch of keys.
    values: Lines<'a>,
    /// Factors on what earlier stretches of keys left in `sums`, if there were any.
    before: Option<&'a [f32; MOST_QUERIES]>,
    /// Factors on the result, if this is the last stretch of keys.
    inverses: Option<&'a [f32; MOST_QUERIES]>,
    /// Sums of all rows between stretches of keys, `[rows][whole vectors]`.
    sums: &'a mut [f32],
}

impl Sums<'_> {
    /// Adds the values of the keys `seen`, counted from the first of the stretch.
    ///
    /// # Safety
    /// As for [`QueryRows::attend_to`].
    #[inline(always)]
    unsafe fn add<S: Simd>(mut self, s: S, seen: Range<usize>) {
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

/// `VECTORS` vectors of the sums of `ROWS` queries; made where the promise of [`QueryRows::attend_to`] holds.
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
        if let Some(before) = of.before {
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
        let Some(inverses) = of.inverses else {
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
