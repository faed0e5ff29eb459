//! Attention of the heads that share one head of keys and values, within one sequence.
//!
//! ```text
//! keys   ─ transposed ─▶ panels [head_dim][W]     tile of queries · panel ─▶ tile of scores [keys]
//! values ─ rearranged ─▶ panels [keys][W]                                       │ exponentials, sums
//!                                                 tile of weights · panel ◀─────┘ ─▶ out [rows][head_dim] / sums
//! ```
//!
//! Both products are the tile kernel of [`crate::gemm`]: every value is one chain of fused multiply-adds over
//! ascending `k`, and lanes never meet. Which rows share a tile changes nothing in their chains: where one row of a
//! tile sees a key that another does not, the other's weight is 0, which adds nothing to a sum, as long as values are
//! finite. Where some value is not, rows go one by one, each over its own keys.
//!
//! The scores of a tile are whole rows: 14 rows of 512 keys are 28 KiB and stay in the first cache, of 8192 keys 448
//! KiB and stay in the second. An online softmax would save that memory and pay with rescaling at every tile; here the
//! maximum is exact before the first exponential.

use std::ops::Range;

use super::{AttentionMask, AttentionShape, ByDistance, weights::Scores};
use crate::{
    Columns,
    device::SharedMut,
    gemm::{EvenTiles, Places, RUN, Tile, multiply, pack_tile, panel_width, tile_rows, tile_values},
    lanes,
    simd::Simd,
};

/// Columns of a panel where vectors are longest.
const MOST_COLUMNS: usize = 32;
/// Rows of a tile where registers are most.
const MOST_ROWS: usize = 14;

/// The heads of queries that share one head of keys and values.
#[derive(Clone, Copy)]
pub(super) struct Group<'a> {
    pub(super) shape: AttentionShape,
    pub(super) kv_head: usize,
    pub(super) q: Columns<&'a [f32]>,
    pub(super) k: Columns<&'a [f32]>,
    pub(super) v: Columns<&'a [f32]>,
    pub(super) bias: Option<ByDistance<'a>>,
    /// `[rows, num_heads · head_dim]`.
    pub(super) out: SharedMut<'a, f32>,
}

/// Scratch that [`Group::attend`] needs for at most so many rows that see so many keys, whatever the instruction set.
pub(super) fn scratch_values(rows: usize, keys: usize, head_dim: usize) -> usize {
    // keys are taken from a multiple of the columns on
    let wide_keys = keys.next_multiple_of(MOST_COLUMNS) + MOST_COLUMNS;
    let wide_dim = head_dim.next_multiple_of(MOST_COLUMNS);
    let (queries, scores) = (tile_values(MOST_ROWS, head_dim), MOST_ROWS * wide_keys);
    rows + wide_keys + queries + scores + wide_keys * (head_dim + wide_dim)
}

impl Group<'_> {
    /// Writes the columns of this group's heads in the rows `queries`, which belong to the sequence of the rows
    /// `tokens` (or to the padding behind it).
    ///
    /// # Safety
    /// While this runs, nobody else uses these columns of the rows `queries` of `out`.
    #[inline(always)]
    pub(super) unsafe fn attend<S: Simd>(
        &self,
        s: S,
        queries: Range<usize>,
        tokens: Range<usize>,
        scratch: &mut [f32],
    ) {
        let AttentionShape { num_heads, num_kv_heads, head_dim, mask, .. } = self.shape;
        let columns = panel_width::<S>();
        let rows = queries.start - tokens.start..queries.end - tokens.start;
        let seen = mask.visible_to_any(rows.clone(), tokens.len());
        // from a whole panel on, so that a key has its place in a vector whatever rows are attended from
        let keys = seen.start / columns * columns..seen.end;
        let wide_keys = keys.len().next_multiple_of(columns);
        let (distances, scratch) = scratch.split_at_mut(rows.len() + wide_keys);
        let (key_panels, scratch) = scratch.split_at_mut(wide_keys * head_dim);
        let (value_panels, scratch) = scratch.split_at_mut(keys.len() * head_dim.next_multiple_of(columns));
        let (query_tile, scores) = scratch.split_at_mut(tile_values(tile_rows::<S>(), head_dim));
        let key_rows = tokens.start + keys.start..tokens.start + keys.end;
        self.arrange_keys(s, key_rows.clone(), key_panels);
        let finite = self.arrange_values(s, key_rows, value_panels);
        let rows_of_tile = if finite || mask == AttentionMask::Full { tile_rows::<S>() } else { 1 };
        let tiles = EvenTiles::new(rows.len(), rows_of_tile);
        let heads = num_heads / num_kv_heads;
        for head in self.kv_head * heads..(self.kv_head + 1) * heads {
            let last = rows.end - 1;
            let biases = self.bias.map(|bias| {
                bias.write(head, keys.start as isize - last as isize, distances);
                (&*distances, last)
            });
            let (tokens, keys) = (tokens.clone(), keys.clone());
            let block = Block { group: self, head, tokens, keys, key_panels, value_panels, biases };
            for tile in 0..tiles.count() {
                let tile = tiles.range(tile);
                let tile = rows.start + tile.start..rows.start + tile.end;
                // SAFETY: these rows are among `queries`, this head among the group's, and the caller promises both.
                unsafe { block.attend(s, tile, query_tile, scores) };
            }
        }
    }

    /// Panels of `[head_dim][columns]`, a key to a column. Columns behind the last key hold anything: nobody looks at
    /// their scores.
    #[inline(always)]
    fn arrange_keys<S: Simd>(&self, s: S, keys: Range<usize>, panels: &mut [f32]) {
        let (head_dim, columns) = (self.shape.head_dim, panel_width::<S>());
        let starts = keys.clone().step_by(columns);
        for (first, panel) in starts.zip(panels.chunks_exact_mut((head_dim * columns).max(1))) {
            let end = keys.end.min(first + columns);
            for row in (first..end).step_by(lanes::SQUARE) {
                let rows: [&[f32]; lanes::SQUARE] = std::array::from_fn(|i| {
                    self.k.part((row + i).min(end - 1), self.kv_head * head_dim, head_dim)
                });
                lanes::transpose(s, rows, &mut panel[row - first..], columns);
            }
        }
    }

    /// Panels of `[keys][columns]`, a dimension of the head to a column; columns behind the last are 0. Gives whether
    /// every value is finite.
    #[inline(always)]
    fn arrange_values<S: Simd>(&self, s: S, keys: Range<usize>, panels: &mut [f32]) -> bool {
        let (head_dim, columns) = (self.shape.head_dim, panel_width::<S>());
        let panel_values = keys.len() * columns;
        let mut difference = s.splat(0.0);
        for (i, row) in keys.enumerate() {
            let values = self.v.part(row, self.kv_head * head_dim, head_dim);
            for first in (0..head_dim.next_multiple_of(columns)).step_by(S::LANES) {
                let v = lanes::read(s, &values[first.min(head_dim)..], 0.0);
                // 0 unless v is infinite or NaN
                difference = s.add(difference, s.sub(v, v));
                s.store(v, &mut panels[first / columns * panel_values + i * columns + first % columns..]);
            }
        }
        s.reduce_sum(difference) == 0.0
    }
}

/// The arranged keys and values of one sequence, and a head that reads them.
struct Block<'a> {
    group: &'a Group<'a>,
    head: usize,
    /// Rows of the sequence.
    tokens: Range<usize>,
    /// Which of them are arranged, counted from the first.
    keys: Range<usize>,
    key_panels: &'a [f32],
    value_panels: &'a [f32],
    /// This head's biases by distance, and the row whose distance to the first key comes first.
    biases: Option<(&'a [f32], usize)>,
}

impl Block<'_> {
    /// Attends from the rows `rows` of the sequence, at most a tile of them.
    ///
    /// # Safety
    /// While this runs, nobody else uses this head's columns of these rows of `out`.
    #[inline(always)]
    unsafe fn attend<S: Simd>(&self, s: S, rows: Range<usize>, query_tile: &mut [f32], scores: &mut [f32]) {
        let AttentionShape { head_dim, scale, mask, .. } = self.group.shape;
        let columns = panel_width::<S>();
        let seen = mask.visible_to_any(rows.clone(), self.tokens.len());
        let first_panel = (seen.start - self.keys.start) / columns;
        // the first key of the tile of scores
        let first_key = self.keys.start + first_panel * columns;
        let first_row = self.tokens.start + rows.start;
        let queries = (first_row..first_row + rows.len())
            .map(|row| self.group.q.part(row, self.head * head_dim, head_dim));
        pack_tile(queries, head_dim, query_tile);
        let tile = Tile { first_row, rows: rows.len(), values: query_tile };
        let panels =
            self.key_panels[first_panel * head_dim * columns..].chunks_exact((head_dim * columns).max(1));
        let panels_seen = (seen.end - first_key).div_ceil(columns);
        let of_panel = scores.chunks_exact_mut(rows.len() * columns).take(panels_seen);
        for (panel, scores) in panels.zip(of_panel) {
            let half = if columns == RUN { S::LANES } else { rows.len() * RUN };
            multiply(s, tile, panel, head_dim, scores, Places { row: RUN, half });
        }
        let mut inverses = [0.0; MOST_ROWS];
        // where the product with the values begins: for one row exactly, else at a whole line of the tile
        let skipped =
            if rows.len() == 1 { seen.start - first_key } else { (seen.start - first_key) / RUN * RUN };
        let counted = skipped..seen.end - first_key;
        for (m, inverse) in inverses.iter_mut().enumerate().take(rows.len()) {
            let visible = mask.visible(rows.start + m, self.tokens.len());
            let visible = visible.start - first_key..visible.end - first_key;
            let biases = self
                .biases
                .map(|(biases, last)| &biases[last - (rows.start + m) + first_key - self.keys.start..]);
            let mut row = Scores { tile: scores, rows: rows.len(), row: m };
            *inverse = row.weigh(s, visible, counted.clone(), scale, biases);
        }
        let tile = Tile { first_row, rows: rows.len(), values: &scores[skipped * rows.len()..] };
        // SAFETY: the caller promises these rows.
        unsafe { self.sum_values(s, tile, first_key - self.keys.start + skipped, counted.len(), &inverses) };
    }

    /// Writes the sums of `keys` values from the arranged key `first` on, by the weights of a tile.
    ///
    /// # Safety
    /// As for [`Block::attend`].
    #[inline(always)]
    unsafe fn sum_values<S: Simd>(
        &self,
        s: S,
        tile: Tile<'_>,
        first: usize,
        keys: usize,
        inverses: &[f32; MOST_ROWS],
    ) {
        let AttentionShape { num_heads, head_dim, .. } = self.group.shape;
        let columns = panel_width::<S>();
        let mut sums = [0.0; MOST_ROWS * MOST_COLUMNS];
        for column in (0..head_dim).step_by(columns) {
            let panel = &self.value_panels[column * self.keys.len()..][first * columns..];
            multiply(s, tile, panel, keys, &mut sums, Places::rows::<S>());
            let width = columns.min(head_dim - column);
            for (m, sums) in sums.chunks_exact(columns).take(tile.rows).enumerate() {
                let start = ((tile.first_row + m) * num_heads + self.head) * head_dim + column;
                // SAFETY: this is a part of this head's columns in row `m` of the tile, which the caller promises.
                let out = unsafe { self.group.out.slice(start, width) };
                let inverse = s.splat(inverses[m]);
                for (out, sums) in out.chunks_mut(S::LANES).zip(sums.chunks_exact(S::LANES)) {
                    // adding 0 makes −0, which weights of 0 may or may not leave, one of both zeros
                    lanes::write(s, s.mul_add(s.load(sums), inverse, s.splat(0.0)), out);
                }
            }
        }
    }
}
