//! Attention of the heads that share one head of keys and values, within one sequence.
//!
//! ```text
//! keys   ─ transposed ─▶ panels [head_dim][W]     queries (M rows) · panel ─▶ scores [M][keys]
//! values ─ rearranged ─▶ panels [keys][W]                                       │ exponentials, sums
//!                                                  weights (M rows) · panel ◀───┘ ─▶ out [M][head_dim] / sums
//! ```
//!
//! Both products are one routine: `M` rows times a panel of `W` columns, two vectors wide, so that every value is one
//! chain of fused multiply-adds over ascending `k` and lanes never meet. Which rows share a block changes nothing in
//! their chains.
//!
//! The scores of a block are whole rows: eight rows of 512 keys are 16 KiB and stay in the first cache, of 8192 keys
//! 256 KiB and stay in the second. An online softmax would save that memory and pay with rescaling at every tile; here
//! the maximum is exact before the first exponential.

use std::ops::Range;

use super::{AttentionShape, ByDistance};
use crate::{
    Columns,
    device::SharedMut,
    lanes,
    simd::Simd,
    softmax::{exponentials, exponentials_with_bias, inverse_or_zero},
};

/// Vectors side by side in a panel.
const VECTORS: usize = 2;
/// Columns of a panel where vectors are longest.
const MOST_COLUMNS: usize = VECTORS * 16;
/// Rows of a block where registers are most.
const MOST_ROWS: usize = 8;

/// Keys and dimensions that are transposed at once.
const SQUARE: usize = 8;

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

/// Scratch that [`Group::attend`] needs for at most so many rows and keys, whatever the instruction set.
pub(super) fn scratch_values(rows: usize, keys: usize, head_dim: usize) -> usize {
    let wide_keys = keys.next_multiple_of(MOST_COLUMNS);
    let wide_dim = head_dim.next_multiple_of(MOST_COLUMNS);
    rows + keys + wide_keys * head_dim + keys * wide_dim + MOST_ROWS * score_stride(wide_keys)
}

/// From one row of scores to the next: never a multiple of 4 KiB, where all rows would share a few lines of the cache.
fn score_stride(wide_keys: usize) -> usize {
    wide_keys + 16
}

impl Group<'_> {
    /// Writes the columns of this group's heads in the rows `queries`, which belong to the sequence of the rows `tokens`
    /// (or to the padding behind it).
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
        let rows = queries.start - tokens.start..queries.end - tokens.start;
        let keys = mask.visible_to_any(rows.clone(), tokens.len());
        let columns = VECTORS * S::LANES;
        let wide_keys = keys.len().next_multiple_of(columns);
        let (distances, scratch) = scratch.split_at_mut(rows.len() + keys.len());
        let (key_panels, scratch) = scratch.split_at_mut(wide_keys * head_dim);
        let (value_panels, scores) = scratch.split_at_mut(keys.len() * head_dim.next_multiple_of(columns));
        let key_rows = tokens.start + keys.start..tokens.start + keys.end;
        self.arrange_keys(key_rows.clone(), columns, key_panels);
        self.arrange_values(key_rows, columns, value_panels);
        let heads = num_heads / num_kv_heads;
        for head in self.kv_head * heads..(self.kv_head + 1) * heads {
            let bias = self.bias.map(|bias| {
                bias.write(head, keys.start as isize - (rows.end - 1) as isize, distances);
                (&*distances, rows.end - 1)
            });
            let keys = keys.clone();
            let block =
                Block { group: self, head, tokens: tokens.clone(), keys, key_panels, value_panels, bias };
            let mut row = rows.start;
            while row < rows.end {
                // SAFETY: these rows are among `queries`, this head among the group's, and the caller promises both.
                row += unsafe {
                    match rows.end - row {
                        8.. if S::REGISTERS >= 32 => block.attend::<S, 8>(s, row, scores),
                        4.. => block.attend::<S, 4>(s, row, scores),
                        2.. => block.attend::<S, 2>(s, row, scores),
                        _ => block.attend::<S, 1>(s, row, scores),
                    }
                };
            }
        }
    }

    /// Panels of `[head_dim][columns]`, a key to a column. Columns behind the last key hold anything: nobody looks at
    /// their scores.
    #[inline(always)]
    fn arrange_keys(&self, keys: Range<usize>, columns: usize, panels: &mut [f32]) {
        let head_dim = self.shape.head_dim;
        let starts = keys.clone().step_by(columns);
        for (first, panel) in starts.zip(panels.chunks_exact_mut((head_dim * columns).max(1))) {
            let end = keys.end.min(first + columns);
            for row in (first..end).step_by(SQUARE) {
                let rows: [&[f32]; SQUARE] = std::array::from_fn(|i| {
                    self.k.part((row + i).min(end - 1), self.kv_head * head_dim, head_dim)
                });
                transpose(rows, &mut panel[row - first..], columns);
            }
        }
    }

    /// Panels of `[keys][columns]`, a dimension of the head to a column; columns behind the last are 0.
    #[inline(always)]
    fn arrange_values(&self, keys: Range<usize>, columns: usize, panels: &mut [f32]) {
        let head_dim = self.shape.head_dim;
        let starts = (0..head_dim).step_by(columns);
        for (first, panel) in starts.zip(panels.chunks_exact_mut((keys.len() * columns).max(1))) {
            let width = columns.min(head_dim - first);
            for (row, line) in keys.clone().zip(panel.chunks_exact_mut(columns)) {
                line[..width].copy_from_slice(self.v.part(row, self.kv_head * head_dim + first, width));
                line[width..].fill(0.0);
            }
        }
    }
}

/// `to[k · stride + i] = rows[i][k]` for rows of one length.
#[inline(always)]
fn transpose(rows: [&[f32]; SQUARE], to: &mut [f32], stride: usize) {
    let len = rows[0].len();
    let rows = rows.map(|row| &row[..len]);
    // Whole squares in straight code: a loop over values becomes scatters, which are several times slower.
    let whole = len - len % SQUARE;
    for k in (0..whole).step_by(SQUARE) {
        let square = rows.map(|row| <[f32; SQUARE]>::try_from(&row[k..k + SQUARE]).expect("its length"));
        for i in 0..SQUARE {
            to[(k + i) * stride..][..SQUARE].copy_from_slice(&square.map(|row| row[i]));
        }
    }
    for k in whole..len {
        to[k * stride..][..SQUARE].copy_from_slice(&rows.map(|row| row[k]));
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
    bias: Option<(&'a [f32], usize)>,
}

impl Block<'_> {
    /// Attends from rows `first..first + M` of the sequence; gives `M`.
    ///
    /// # Safety
    /// While this runs, nobody else uses this head's columns of these rows of `out`.
    #[inline(always)]
    unsafe fn attend<S: Simd, const M: usize>(&self, s: S, first: usize, scores: &mut [f32]) -> usize {
        let AttentionShape { num_heads, head_dim, scale, .. } = self.group.shape;
        let columns = VECTORS * S::LANES;
        let stride = score_stride(self.keys.len().next_multiple_of(columns));
        let visible: [Range<usize>; M] = std::array::from_fn(|m| self.visible(first + m));
        let any = visible[0].start..visible[M - 1].end;
        self.score::<S, M>(s, first, any.clone(), scores);
        let mut inverses = [0.0; M];
        // a loop: what is passed to `array::from_fn` is compiled apart, without the vector instructions
        for (m, inverse) in inverses.iter_mut().enumerate() {
            let row = &mut scores[m * stride..][visible[m].clone()];
            let sum = match self.bias {
                None => exponentials(s, row, scale),
                Some((biases, last)) => {
                    let biases = &biases[last - (first + m) + visible[m].start..];
                    exponentials_with_bias(s, row, scale, biases)
                }
            };
            *inverse = inverse_or_zero(sum);
        }
        let weights: [&[f32]; M] = std::array::from_fn(|m| &scores[m * stride..][..any.end]);
        for column in (0..head_dim).step_by(columns) {
            let panel = &self.value_panels[column * self.keys.len()..][..columns * self.keys.len()];
            let width = columns.min(head_dim - column);
            for (m, [low, high]) in weighted(s, weights, &visible, panel).into_iter().enumerate() {
                let row = self.tokens.start + first + m;
                let start = (row * num_heads + self.head) * head_dim + column;
                // SAFETY: this is a part of this head's columns in row `first + m`, which the caller promises.
                let out = unsafe { self.group.out.slice(start, width) };
                let inverse = s.splat(inverses[m]);
                lanes::write(s, s.mul(low, inverse), out);
                if width > S::LANES {
                    lanes::write(s, s.mul(high, inverse), &mut out[S::LANES..]);
                }
            }
        }
        M
    }

    /// The arranged keys that a row sees, counted from the first that is arranged.
    #[inline(always)]
    fn visible(&self, row: usize) -> Range<usize> {
        let keys = self.group.shape.mask.visible(row, self.tokens.len());
        keys.start - self.keys.start..keys.end - self.keys.start
    }

    /// Products of the queries with the panels that hold the keys `any`.
    #[inline(always)]
    fn score<S: Simd, const M: usize>(&self, s: S, first: usize, any: Range<usize>, scores: &mut [f32]) {
        let head_dim = self.group.shape.head_dim;
        let columns = VECTORS * S::LANES;
        let stride = score_stride(self.keys.len().next_multiple_of(columns));
        let queries: [&[f32]; M] = std::array::from_fn(|m| {
            self.group.q.part(self.tokens.start + first + m, self.head * head_dim, head_dim)
        });
        for i in any.start / columns..any.end.div_ceil(columns) {
            let panel = &self.key_panels[i * head_dim * columns..][..head_dim * columns];
            let products = product(s, queries, panel);
            for (m, [low, high]) in products.into_iter().enumerate() {
                let to = &mut scores[m * stride + i * columns..][..columns];
                s.store(low, to);
                s.store(high, &mut to[S::LANES..]);
            }
        }
    }
}

/// `rows · panel` for `M` rows and a panel of `[rows[m].len()][VECTORS · LANES]`, each value one chain from 0.
#[inline(always)]
fn product<S: Simd, const M: usize>(s: S, rows: [&[f32]; M], panel: &[f32]) -> [[S::F32; VECTORS]; M] {
    let mut sums = [[s.splat(0.0); VECTORS]; M];
    add_products(s, rows, panel, &mut sums);
    sums
}

/// [`product`] where row `m` takes only the lines `visible[m]`: lines that a row does not take are not multiplied by 0,
/// which would keep a NaN. Both ends of the ranges ascend with `m`.
#[inline(always)]
fn weighted<S: Simd, const M: usize>(
    s: S,
    rows: [&[f32]; M],
    visible: &[Range<usize>; M],
    panel: &[f32],
) -> [[S::F32; VECTORS]; M] {
    let width = VECTORS * S::LANES;
    let mut sums = [[s.splat(0.0); VECTORS]; M];
    // what all rows take lies between two ragged edges; without it there is one edge
    let common = visible[M - 1].start.min(visible[0].end)..visible[0].end;
    add_ragged(s, rows, visible, visible[0].start..common.start, panel, &mut sums);
    let lines = &panel[common.start * width..common.end * width];
    add_products(s, rows.map(|row| &row[common.clone()]), lines, &mut sums);
    add_ragged(s, rows, visible, common.end..visible[M - 1].end, panel, &mut sums);
    sums
}

/// `sums += rows · panel`, continuing each chain.
#[inline(always)]
fn add_products<S: Simd, const M: usize>(
    s: S,
    rows: [&[f32]; M],
    panel: &[f32],
    sums: &mut [[S::F32; VECTORS]; M],
) {
    let lines = panel.chunks_exact(VECTORS * S::LANES);
    assert!(rows.iter().all(|row| row.len() == lines.len()));
    for (k, line) in lines.enumerate() {
        let (low, high) = (s.load(line), s.load(&line[S::LANES..]));
        for (sum, row) in sums.iter_mut().zip(&rows) {
            // SAFETY: `k` counts the lines of the panel, and each row has as many values. With a check per value the
            // rows' pointers and lengths do not fit the registers, and the loop waits for the stack.
            let x = s.splat(unsafe { *row.get_unchecked(k) });
            sum[0] = s.mul_add(x, low, sum[0]);
            sum[1] = s.mul_add(x, high, sum[1]);
        }
    }
}

/// The lines `lines` of [`weighted`], each to the rows that take it: at most as many lines as a block has rows, twice.
#[inline(always)]
fn add_ragged<S: Simd, const M: usize>(
    s: S,
    rows: [&[f32]; M],
    visible: &[Range<usize>; M],
    lines: Range<usize>,
    panel: &[f32],
    sums: &mut [[S::F32; VECTORS]; M],
) {
    for k in lines {
        let line = &panel[k * VECTORS * S::LANES..][..VECTORS * S::LANES];
        let (low, high) = (s.load(line), s.load(&line[S::LANES..]));
        for ((sum, row), visible) in sums.iter_mut().zip(&rows).zip(visible) {
            if visible.contains(&k) {
                let x = s.splat(row[k]);
                sum[0] = s.mul_add(x, low, sum[0]);
                sum[1] = s.mul_add(x, high, sum[1]);
            }
        }
    }
}
