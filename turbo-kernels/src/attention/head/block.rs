//! A block of queries and a stretch of keys: scores, their weights, and the sums of values.

use std::ops::Range;

use super::{
    Head, MOST_QUERY_ROWS, QueryRows, STRETCH_KEYS, Scratch, block_queries, query_lines,
    sums::{Factors, Lines, Sums},
};
use crate::{
    attention::{
        AttentionShape, Biases,
        ahead::Ahead,
        disentangled::{ByPosition, Meeting, WriteBiases},
        product::{RowOrder, multiply, words},
        tile_registers,
        weights::{LineBiases, MOST_QUERIES, ScoreGrid, State, Visible},
    },
    gemm::{RUN, TileRanges, TileRegisters, tile_values, with_rows},
    simd::{Kernel, Simd},
};

/// Queries in the lanes of one or two vectors, and a stretch of keys.
pub(super) struct QueryBlock<'a> {
    pub(super) query_rows: &'a QueryRows<'a>,
    /// Positions of the queries.
    pub(super) rows: Range<usize>,
    /// The number of the block among those of the rows.
    pub(super) number: usize,
    /// Positions of the keys.
    pub(super) keys: Range<usize>,
    /// How the keys are cut into strips.
    pub(super) key_strips: TileRanges,
    /// Whether some value is not finite, so that each row must keep to its own keys.
    pub(super) by_row: bool,
}

impl QueryBlock<'_> {
    /// Lets the queries attend to the keys.
    ///
    /// # Safety
    /// As for [`QueryRows::attend_to`].
    #[inline(always)]
    pub(super) unsafe fn attend<S: Simd, const VECTORS: usize>(
        &self,
        s: S,
        registers: &mut TileRegisters<S>,
        scratch: &mut Scratch<'_>,
        ahead: Ahead,
    ) {
        let QueryRows { head, scale, .. } = *self.query_rows;
        let (head_dim, mask, len) = (head.shape.head_dim, head.shape.mask, self.query_rows.tokens.len());
        let visible = mask.visible_to_any(self.rows.clone(), len);
        let seen = visible.start.max(self.keys.start)..visible.end.min(self.keys.end);
        if seen.is_empty() {
            return;
        }
        // at least as many lines as a register takes words, even where keys are fewer
        let lines = &mut scratch.weights[..self.keys.len().max(RUN) * VECTORS * S::LANES];
        let queries = &scratch.queries[self.number * block_queries::<S>() * query_lines(head_dim)..];
        let mut grid = ScoreGrid { lines, seen: seen.start - self.keys.start..seen.end - self.keys.start };
        let mut greatest = self.score::<S, VECTORS>(s, registers, (scratch.keys, queries), &mut grid);
        let sees_all = self.sees_all(&seen);
        if scale.comes_first() || !sees_all || seen != self.keys {
            let visible = Visible::new(mask, self.rows.start, self.keys.start, len);
            let biases = self.biases::<S, VECTORS>(s, &seen, scratch.biases);
            greatest = grid.adjust::<S, VECTORS>(s, scale, biases, (!sees_all).then_some(&visible));
        }
        let mut state = self.state::<S>(scratch.states);
        let before = grid.weigh::<S, VECTORS>(s, scale, &greatest, &mut state, ahead);
        let inverses = state.inverses(s);
        let factors = Factors {
            before: (visible.start < self.keys.start).then_some(&before),
            inverses: (visible.end <= self.keys.end).then_some(&inverses),
        };
        if S::HAS_TILE_REGISTERS {
            // SAFETY: the caller promises these rows.
            return unsafe {
                self.add_by_tile_registers(s, registers, grid, factors, (scratch.values, scratch.sums))
            };
        }
        let sums = Sums {
            block: self,
            weights: grid.lines,
            line: VECTORS * S::LANES,
            values: self.values::<S>(scratch.values),
            factors,
            sums: scratch.sums,
        };
        // SAFETY: the caller promises these rows.
        unsafe { sums.add(s, grid.seen) };
    }

    /// Whether every query sees all keys at the positions `seen`.
    #[inline(always)]
    fn sees_all(&self, seen: &Range<usize>) -> bool {
        let (mask, len) = (self.query_rows.head.shape.mask, self.query_rows.tokens.len());
        mask.visible(self.rows.start, len).end >= seen.end
            && mask.visible(self.rows.end - 1, len).start <= seen.start
    }

    /// The biases of the keys at the positions `seen`, if there are any, written to `to`.
    #[inline(always)]
    fn biases<'b, S: Simd, const VECTORS: usize>(
        &self,
        s: S,
        seen: &Range<usize>,
        to: &'b mut [f32],
    ) -> Option<LineBiases<'b>> {
        let head = self.query_rows.head;
        Some(match head.bias? {
            Biases::ByDistance(bias) => {
                let last = seen.end as isize - 1 - self.rows.start as isize;
                // of as many distances as there are between these keys and queries
                let values = &mut to[..seen.len() - 1 + VECTORS * S::LANES];
                bias.write_falling(head.head, last, values);
                LineBiases { values, line: 1 }
            }
            Biases::ByPosition(scores) => {
                self.write_biases::<S, VECTORS>(s, &scores, seen, to);
                LineBiases { values: to, line: VECTORS * S::LANES }
            }
        })
    }

    /// What is known of the queries so far.
    #[inline(always)]
    fn state<'s, S: Simd>(&self, states: &'s mut [f32]) -> State<'s> {
        let (greatest, totals) = states.split_at_mut(MOST_QUERY_ROWS);
        let of_block = self.number * block_queries::<S>()..(self.number + 1) * block_queries::<S>();
        State { greatest: &mut greatest[of_block.clone()], totals: &mut totals[of_block] }
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

    /// Adds, by tile registers, the values of the keys for which the grid has weights.
    ///
    /// # Safety
    /// As for [`QueryRows::attend_to`].
    #[inline(always)]
    unsafe fn add_by_tile_registers<S: Simd>(
        &self,
        s: S,
        registers: &mut TileRegisters<S>,
        ScoreGrid { lines: weights, seen }: ScoreGrid<'_>,
        factors: Factors<'_>,
        (values, sums): (&mut [f32], &mut [f32]),
    ) {
        let (query_rows, head_dim) = (self.query_rows, self.query_rows.head.shape.head_dim);
        let words = seen.start / 2..seen.end.div_ceil(2);
        let key_registers = words.start / RUN..words.end.div_ceil(RUN);
        weights[key_registers.start * RUN * MOST_QUERIES..words.start * MOST_QUERIES].fill(0.0);
        weights[words.end * MOST_QUERIES..key_registers.end * RUN * MOST_QUERIES].fill(0.0);
        let registers_of_values = self.keys.len().div_ceil(tile_registers::REGISTER_KEYS);
        let of_block = tile_registers::sum_lines(head_dim) * MOST_QUERIES;
        let sums = &mut sums[self.number * of_block..][..of_block];
        let (values, spare) = values.split_at_mut(tile_registers::column_words(head_dim, self.keys.len()));
        let mut add = |values: &[f32], sums: &mut [f32]| {
            for dimensions in tile_registers::Dimensions::of(head_dim) {
                let (key_registers, weights) = (key_registers.clone(), &*weights);
                tile_registers::AddValues {
                    dimensions,
                    values,
                    registers_of_values,
                    key_registers,
                    weights,
                    before: factors.before,
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
                tile_registers::hide_keys(
                    values,
                    (head_dim, self.keys.len()),
                    &self.visible(query, &seen),
                    shown,
                );
                of_query.copy_from_slice(sums);
                add(shown, of_query);
                let lanes = sums.iter_mut().zip(&*of_query).skip(query).step_by(MOST_QUERIES);
                lanes.for_each(|(to, sum)| *to = *sum);
            }
        } else {
            add(values, sums);
        }
        if let Some(factors) = factors.inverses {
            let queries = self.rows.len();
            let to = query_rows.out_rows(self.rows.start, queries, 0, head_dim);
            s.call(tile_registers::Rows { head_dim, queries, sums, factors, to });
        }
    }

    /// The keys among `seen` that one query sees.
    pub(super) fn visible(&self, query: usize, seen: &Range<usize>) -> Range<usize> {
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
            if S::HAS_TILE_REGISTERS {
                let queries = &queries[..tile_registers::query_words(head_dim) * MOST_QUERIES];
                let (count, greatest) = (range.len(), &mut greatest);
                tile_registers::Scores { keys, count, queries, lines, greatest }.compute(s, registers);
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
