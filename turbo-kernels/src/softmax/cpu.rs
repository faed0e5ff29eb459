//! Softmax on the CPU: whole rows, several to a piece, each in cache from its first pass to its last.

use super::{ScoreShape, Softmax, row};
use crate::{
    KernelError,
    device::{Cpu, CpuQueue},
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
        seq_lens: Option<&[u32]>,
        scale: f32,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        check("scale_mask_softmax", shape, scores, seq_lens, out)?;
        for_each_row(queue, shape, seq_lens, out, |first, visible, out| {
            let (row, masked) = out.split_at_mut(visible);
            row.copy_from_slice(&scores[first..][..visible]);
            masked.fill(0.0);
            self.supported_isa().run(SoftmaxRow { row, scale });
        })
    }

    fn mask(
        &self,
        queue: &mut CpuQueue,
        shape: ScoreShape,
        scores: &[f32],
        seq_lens: &[u32],
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        check("mask", shape, scores, Some(seq_lens), out)?;
        for_each_row(queue, shape, Some(seq_lens), out, |first, visible, out| {
            out[..visible].copy_from_slice(&scores[first..][..visible]);
            out[visible..].fill(f32::NEG_INFINITY);
        })
    }
}

fn check(
    kernel: &'static str,
    shape: ScoreShape,
    scores: &[f32],
    seq_lens: Option<&[u32]>,
    out: &[f32],
) -> Result<(), KernelError> {
    let ScoreShape { batch_size, num_heads, queries, keys } = shape;
    let values = [num_heads, queries, keys].into_iter().fold(batch_size, usize::saturating_mul);
    KernelError::check_length(kernel, "scores", values, scores.len())?;
    KernelError::check_length(kernel, "out", values, out.len())?;
    seq_lens.map_or(Ok(()), |lens| KernelError::check_length(kernel, "seq_lens", batch_size, lens.len()))
}

/// Calls `work(first value, visible keys, row)` for every row, in parallel.
fn for_each_row(
    queue: &mut CpuQueue,
    shape: ScoreShape,
    seq_lens: Option<&[u32]>,
    out: &mut [f32],
    work: impl Fn(usize, usize, &mut [f32]) + Sync,
) -> Result<(), KernelError> {
    let keys = shape.keys;
    if out.is_empty() {
        return Ok(());
    }
    let rows_of_sequence = shape.num_heads * shape.queries;
    let rows_of_piece = (PIECE / keys).max(1);
    Ok(queue.for_each_chunk(out, rows_of_piece * keys, 0, |piece, out, _| {
        for (i, out) in out.chunks_exact_mut(keys).enumerate() {
            let row = piece * rows_of_piece + i;
            let visible = seq_lens.map_or(keys, |lens| keys.min(lens[row / rows_of_sequence] as usize));
            work(row * keys, visible, out);
        }
    })?)
}

/// Softmax of one row of scores, in place.
pub(crate) struct SoftmaxRow<'a> {
    pub(crate) row: &'a mut [f32],
    pub(crate) scale: f32,
}

impl Kernel for SoftmaxRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        row::softmax(s, self.row, self.scale);
    }
}
