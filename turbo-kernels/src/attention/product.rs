//! The product that both halves of attention are made of: a few rows, value by value, times lines of vectors.
//!
//! ```text
//! scores    keys,    broadcast · queries, a lane each     [keys][queries]
//! sums      weights, broadcast · values,  vectors         [queries][head_dim]
//! ```
//!
//! With tile registers, both are [`super::tile_registers`] instead. Here every result is one chain of fused multiply-adds
//! over ascending `k` in one lane of one register. Where bf16 are multiplied ([`Simd::DOT_BF16`]), a value is a word of
//! two, and `k` counts words.

use crate::{gemm::RUN, simd::Simd};

/// Where the broadcast rows lie: value `k` of row `i` is at `i · row + k % run · step + k / run · next`.
#[derive(Clone, Copy)]
pub(super) struct RowOrder {
    row: usize,
    step: usize,
    run: usize,
    next: usize,
}

impl RowOrder {
    /// As [`crate::gemm::pack_tile`] packs `rows` rows.
    #[inline(always)]
    pub(super) fn packed(rows: usize) -> RowOrder {
        RowOrder { row: RUN, step: 1, run: RUN, next: rows * RUN }
    }

    /// Rows one behind the other, `row` values apart.
    #[inline(always)]
    pub(super) fn rows(row: usize) -> RowOrder {
        RowOrder { row, step: 1, run: usize::MAX, next: 0 }
    }

    /// Rows side by side, `line` values from one `k` to the next.
    #[inline(always)]
    pub(super) fn columns(line: usize) -> RowOrder {
        RowOrder { row: 1, step: line, run: usize::MAX, next: 0 }
    }

    /// The place of value `k` of row `row`.
    #[inline(always)]
    fn at(&self, row: usize, k: usize) -> usize {
        row * self.row + k % self.run * self.step + k / self.run * self.next
    }
}

/// Adds `Σₖ rows[i][k] · lines[k][vector]` to `sums[i][vector]`; lines are `line` values apart.
///
/// # Panics
/// When a row or a line reaches beyond its slice.
#[inline(always)]
pub(super) fn multiply<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    (rows, order): (&[f32], RowOrder),
    (lines, line): (&[f32], usize),
    k: usize,
    mut sums: [[S::F32; VECTORS]; ROWS],
) -> [[S::F32; VECTORS]; ROWS] {
    if k == 0 {
        return sums;
    }
    // in the packed order the last value of the last row lies behind all others, and so it does in the other orders
    assert!(rows.len() > order.at(ROWS - 1, k - 1) && lines.len() >= (k - 1) * line + VECTORS * S::LANES);
    let (mut first, mut vectors_at, mut left) = (rows.as_ptr(), lines.as_ptr(), k);
    while left > 0 {
        let (run, mut value) = (left.min(order.run), first);
        for _ in 0..run {
            let mut vectors = [s.splat(0.0); VECTORS];
            for (i, vector) in vectors.iter_mut().enumerate() {
                // SAFETY: fewer than `k` lines lie before this one, each `line` values long, and the assertion covers
                // the last one.
                *vector = unsafe { s.load_ptr(vectors_at.add(i * S::LANES)) };
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                // SAFETY: a value of row `i`, none of which lies behind the one that the assertion covers.
                let x = s.splat(unsafe { *value.add(i * order.row) });
                for (sum, vector) in sums.iter_mut().zip(vectors) {
                    *sum = step(s, x, vector, *sum);
                }
            }
            vectors_at = vectors_at.wrapping_add(line);
            value = value.wrapping_add(order.step);
        }
        first = first.wrapping_add(order.next);
        left -= run;
    }
    sums
}

/// `x · vector + sum`: of f32, or of words of two bf16 on an instruction set that multiplies these.
#[inline(always)]
pub(super) fn step<S: Simd>(s: S, x: S::F32, vector: S::F32, sum: S::F32) -> S::F32 {
    if S::DOT_BF16 { s.dot_bf16(s.bits(x), s.bits(vector), sum) } else { s.mul_add(x, vector, sum) }
}

/// Words that hold `values` values to be summed over.
#[inline(always)]
pub(super) fn words<S: Simd>(values: usize) -> usize {
    if S::DOT_BF16 { values.div_ceil(2) } else { values }
}

/// Joins `count` lines of values to lines of words, in place: word `i` is of lines `2i` and `2i + 1`, the last of which
/// may be missing and counts as 0.
#[inline(always)]
pub(super) fn join_lines<S: Simd>(s: S, lines: &mut [f32], line: usize, count: usize) {
    for word in 0..count.div_ceil(2) {
        for at in (0..line).step_by(S::LANES) {
            let mut values = [s.splat(0.0); 2];
            for (number, value) in (2 * word..).zip(&mut values) {
                if number < count {
                    *value = s.load(&lines[number * line + at..]);
                }
            }
            s.store(join(s, values[0], values[1]), &mut lines[word * line + at..]);
        }
    }
}

/// Words of two bf16, the first in the upper half.
#[inline(always)]
pub(super) fn join<S: Simd>(s: S, first: S::F32, second: S::F32) -> S::F32 {
    s.float(s.join_bf16(first, second))
}
