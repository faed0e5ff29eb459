//! Attention of one head within one sequence.
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

use super::AttentionShape;
use crate::{
    device::SharedMut,
    lanes,
    simd::Simd,
    softmax::{exponentials, inverse_or_zero},
};

/// Vectors side by side in a panel.
const VECTORS: usize = 2;
/// Columns of a panel where vectors are longest.
const MOST_COLUMNS: usize = VECTORS * 16;
/// Rows of a block where registers are most.
const MOST_ROWS: usize = 8;

/// Keys and dimensions that are transposed at once.
const SQUARE: usize = 8;

/// One head of a batch.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub(super) shape: AttentionShape,
    pub(super) head: usize,
    /// `[rows, 3 · hidden_size]`.
    pub(super) qkv: &'a [f32],
    /// `[rows, hidden_size]`.
    pub(super) out: SharedMut<'a, f32>,
}

/// Which third of a row of `qkv`.
#[derive(Clone, Copy)]
enum Third {
    Query,
    Key,
    Value,
}

/// Scratch that [`Head::attend`] needs for at most `keys` keys, whatever the instruction set.
pub(super) fn scratch_values(keys: usize, head_dim: usize) -> usize {
    let wide_keys = keys.next_multiple_of(MOST_COLUMNS);
    let wide_dim = head_dim.next_multiple_of(MOST_COLUMNS);
    wide_keys * head_dim + keys * wide_dim + MOST_ROWS * score_stride(wide_keys)
}

/// From one row of scores to the next: never a multiple of 4 KiB, where all rows would share a few lines of the cache.
fn score_stride(wide_keys: usize) -> usize {
    wide_keys + 16
}

impl Head<'_> {
    /// Writes this head's part of the rows `queries`, which attend to the rows `keys`.
    ///
    /// # Safety
    /// While this runs, nobody else uses this head's columns of the rows `queries` of `out`.
    #[inline(always)]
    pub(super) unsafe fn attend<S: Simd>(
        &self,
        s: S,
        queries: Range<usize>,
        keys: Range<usize>,
        scratch: &mut [f32],
    ) {
        let head_dim = self.shape.head_dim;
        let columns = VECTORS * S::LANES;
        let wide_keys = keys.len().next_multiple_of(columns);
        let (key_panels, scratch) = scratch.split_at_mut(wide_keys * head_dim);
        let (value_panels, scratch) = scratch.split_at_mut(keys.len() * head_dim.next_multiple_of(columns));
        self.arrange_keys(keys.clone(), columns, key_panels);
        self.arrange_values(keys.clone(), columns, value_panels);
        let block = Block { head: self, keys: keys.len(), key_panels, value_panels };
        let mut row = queries.start;
        while row < queries.end {
            // SAFETY: these rows are among `queries`, and the caller promises their columns.
            row += unsafe {
                match queries.end - row {
                    8.. if S::REGISTERS >= 32 => block.attend::<S, 8>(s, row, scratch),
                    4.. => block.attend::<S, 4>(s, row, scratch),
                    2.. => block.attend::<S, 2>(s, row, scratch),
                    _ => block.attend::<S, 1>(s, row, scratch),
                }
            };
        }
    }

    /// This head's query, key or value of a row.
    #[inline(always)]
    fn part(&self, third: Third, row: usize) -> &[f32] {
        let AttentionShape { num_heads, head_dim, .. } = self.shape;
        let first = (row * 3 + third as usize) * num_heads * head_dim + self.head * head_dim;
        &self.qkv[first..first + head_dim]
    }

    /// Panels of `[head_dim][columns]`, a key to a column. Columns behind the last key hold anything: nobody looks at
    /// their scores.
    #[inline(always)]
    fn arrange_keys(&self, keys: Range<usize>, columns: usize, panels: &mut [f32]) {
        let starts = keys.clone().step_by(columns);
        for (first, panel) in starts.zip(panels.chunks_exact_mut(self.shape.head_dim * columns)) {
            let end = keys.end.min(first + columns);
            for row in (first..end).step_by(SQUARE) {
                let rows: [&[f32]; SQUARE] =
                    std::array::from_fn(|i| self.part(Third::Key, (row + i).min(end - 1)));
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
                line[..width].copy_from_slice(&self.part(Third::Value, row)[first..first + width]);
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

/// The arranged keys and values of one sequence.
struct Block<'a> {
    head: &'a Head<'a>,
    keys: usize,
    key_panels: &'a [f32],
    value_panels: &'a [f32],
}

impl Block<'_> {
    /// Attends from rows `first..first + M`; gives `M`.
    ///
    /// # Safety
    /// While this runs, nobody else uses this head's columns of these rows of `out`.
    #[inline(always)]
    unsafe fn attend<S: Simd, const M: usize>(&self, s: S, first: usize, scratch: &mut [f32]) -> usize {
        let AttentionShape { num_heads, head_dim, scale } = self.head.shape;
        let columns = VECTORS * S::LANES;
        let stride = score_stride(self.keys.next_multiple_of(columns));
        let queries: [&[f32]; M] = std::array::from_fn(|m| self.head.part(Third::Query, first + m));
        for (i, panel) in self.key_panels.chunks_exact(head_dim * columns).enumerate() {
            let scores = product(s, queries, panel);
            for (m, [low, high]) in scores.into_iter().enumerate() {
                let to = &mut scratch[m * stride + i * columns..][..columns];
                s.store(low, to);
                s.store(high, &mut to[S::LANES..]);
            }
        }
        let mut inverses = [0.0; M];
        // a loop: what is passed to `array::from_fn` is compiled apart, without the vector instructions
        for (m, inverse) in inverses.iter_mut().enumerate() {
            *inverse = inverse_or_zero(exponentials(s, &mut scratch[m * stride..][..self.keys], scale));
        }
        let weights: [&[f32]; M] = std::array::from_fn(|m| &scratch[m * stride..][..self.keys]);
        for column in (0..head_dim).step_by(columns) {
            let panel = &self.value_panels[column * self.keys..][..columns * self.keys];
            let width = columns.min(head_dim - column);
            for (m, [low, high]) in product(s, weights, panel).into_iter().enumerate() {
                let start = ((first + m) * num_heads + self.head.head) * head_dim + column;
                // SAFETY: this is a part of this head's columns in row `first + m`, which the caller promises.
                let out = unsafe { self.head.out.slice(start, width) };
                let inverse = s.splat(inverses[m]);
                lanes::write(s, s.mul(low, inverse), out);
                if width > S::LANES {
                    lanes::write(s, s.mul(high, inverse), &mut out[S::LANES..]);
                }
            }
        }
        M
    }
}

/// `rows · panel` for `M` rows and a panel of `[rows[m].len()][VECTORS · LANES]`, each value one chain from 0.
#[inline(always)]
fn product<S: Simd, const M: usize>(s: S, rows: [&[f32]; M], panel: &[f32]) -> [[S::F32; VECTORS]; M] {
    let lines = panel.chunks_exact(VECTORS * S::LANES);
    assert!(rows.iter().all(|row| row.len() == lines.len()));
    let mut sums = [[s.splat(0.0); VECTORS]; M];
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
    sums
}
