//! Softmax on the CPU: whole rows, several to a piece, each in cache from its first pass to its last.

use std::ops::Range;

use super::{ScoreShape, Softmax, row};
use crate::{
    AttentionMask, KernelError, RelativeBias,
    attention::{Biases, disentangled::Meeting},
    bias_act::Add,
    device::{Cpu, CpuQueue, SharedMut},
    simd::{Kernel, Simd},
};

/// Values of one piece of work: some ten microseconds.
const PIECE: usize = 8 * 1024;

impl Softmax for Cpu {
    fn scale_mask_softmax(
        &self,
        queue: &mut CpuQueue,
        shape: ScoreShape,
        scores: &[f32],
        scale: f32,
        bias: Option<RelativeBias<&[f32]>>,
        seq_lens: Option<&[u32]>,
        mask: AttentionMask,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        shape.check("scale_mask_softmax", &scores, bias, seq_lens, &out)?;
        for_each_row(queue, shape, bias, out, |row, biases, out| {
            let visible = row.visible(shape, seq_lens, mask);
            out[..visible.start].fill(0.0);
            out[visible.end..].fill(0.0);
            let out = &mut out[visible.clone()];
            out.copy_from_slice(&scores[row.first + visible.start..][..visible.len()]);
            let biases = biases.map(|biases| &biases[visible]);
            self.supported_isa().run(SoftmaxRow { row: out, scale, biases });
        })
    }

    fn mask(
        &self,
        queue: &mut CpuQueue,
        shape: ScoreShape,
        scores: &[f32],
        seq_lens: &[u32],
        mask: AttentionMask,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        shape.check("mask", &scores, None, Some(seq_lens), &out)?;
        for_each_row(queue, shape, None, out, |row, _, out| {
            let visible = row.visible(shape, Some(seq_lens), mask);
            out[..visible.start].fill(f32::NEG_INFINITY);
            out[visible.end..].fill(f32::NEG_INFINITY);
            out[visible.clone()].copy_from_slice(&scores[row.first + visible.start..][..visible.len()]);
        })
    }

    fn add_relative_bias(
        &self,
        queue: &mut CpuQueue,
        shape: ScoreShape,
        scores: &[f32],
        bias: RelativeBias<&[f32]>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        shape.check("add_relative_bias", &scores, Some(bias), None::<&[u32]>, &out)?;
        for_each_row(queue, shape, Some(bias), out, |row, biases, out| {
            let scores = &scores[row.first..][..out.len()];
            self.supported_isa().run(Add { a: scores, b: biases.unwrap_or_default(), out });
        })
    }
}

/// A row of scores.
struct Row {
    /// Its first value.
    first: usize,
    sequence: usize,
    query: usize,
}

impl Row {
    /// The keys that count.
    fn visible(&self, shape: ScoreShape, seq_lens: Option<&[u32]>, mask: AttentionMask) -> Range<usize> {
        let keys = seq_lens.map_or(shape.keys, |lens| shape.keys.min(lens[self.sequence] as usize));
        mask.visible(self.query, keys)
    }
}

/// Calls `work(row, biases, values of out)` for every row, in parallel.
fn for_each_row(
    queue: &mut CpuQueue,
    shape: ScoreShape,
    bias: Option<RelativeBias<&[f32]>>,
    out: &mut [f32],
    work: impl Fn(Row, Option<&[f32]>, &mut [f32]) + Sync,
) -> Result<(), KernelError> {
    let ScoreShape { num_heads, queries, keys, .. } = shape;
    if out.is_empty() {
        return Ok(());
    }
    let longest = keys.max(queries);
    let rows_of_piece = (PIECE / keys).max(1);
    let rows = out.len() / keys;
    let spread = bias.map_or(0, |bias| Biases::values(&bias, num_heads, longest));
    let prepare = |spread| bias.map(|bias| Biases::new(&bias, num_heads, longest, spread));
    let biases_of_row = if bias.is_some() { keys } else { 0 };
    let out = SharedMut::new(out);
    let pieces = rows.div_ceil(rows_of_piece);
    Ok(queue.for_each_piece_with(pieces, biases_of_row, spread, prepare, |piece, scratch, bias| {
        for number in piece * rows_of_piece..rows.min((piece + 1) * rows_of_piece) {
            let (sequence, head, query) =
                (number / queries / num_heads, number / queries % num_heads, number % queries);
            let biases = bias.map(|bias| {
                match bias {
                    Biases::ByDistance(bias) => bias.write(head, -(query as isize), scratch),
                    Biases::ByPosition(scores) => {
                        let (query, key) = ((sequence * queries + query, query), (sequence * keys, 0));
                        scores.write(Meeting { head, query, key }, scratch);
                    }
                }
                &*scratch
            });
            // SAFETY: rows do not overlap, and each is worked on once.
            let out = unsafe { out.slice(number * keys, keys) };
            work(Row { first: number * keys, sequence, query }, biases, out);
        }
    })?)
}

/// Softmax of one row of scores, in place.
pub(crate) struct SoftmaxRow<'a> {
    pub(crate) row: &'a mut [f32],
    pub(crate) scale: f32,
    /// Added to the scaled scores; at least as many.
    pub(crate) biases: Option<&'a [f32]>,
}

impl Kernel for SoftmaxRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        row::softmax(s, self.row, self.scale, self.biases);
    }
}
