//! Attention on the CPU: the batch is cut into pieces of one head of keys and values, with the heads of queries that
//! read it, and a run of rows, claimed as threads are free.

use std::ops::Range;

use super::{
    Attention, AttentionShape, ByDistance, RelativeBias,
    head::{Group, scratch_values},
};
use crate::{
    Columns, KernelError, Layout,
    device::{Cpu, CpuQueue, SharedMut},
    sequences::Sequences,
    simd::{Kernel, Simd},
};

/// Rows of a piece: enough that rearranging keys and values (once per piece and sequence) is a small part of it, few
/// enough that a thread whose core was taken holds up little.
const LEAST_ROWS: usize = 64;
const MOST_ROWS: usize = 512;
/// Pieces per thread, if the rows allow: what evens out threads that are not equally fast.
const PIECES_PER_THREAD: usize = 4;

const NAME: &str = "attention";

impl Attention for Cpu {
    fn attention(
        &self,
        queue: &mut CpuQueue,
        shape: AttentionShape,
        layout: Layout<&[u32]>,
        q: Columns<&[f32]>,
        k: Columns<&[f32]>,
        v: Columns<&[f32]>,
        bias: Option<RelativeBias<&[f32]>>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let sequences = shape.check(layout, [q, k, v], bias, out)?;
        if out.is_empty() {
            return Ok(());
        }
        let AttentionShape { num_heads, num_kv_heads, head_dim, mask, .. } = shape;
        let cut = Cut::new(sequences, num_kv_heads, queue.threads());
        let max_seq_len = sequences.max_seq_len();
        // of the longest sequence alone, whatever the run: so a queue that has seen it has seen everything
        let scratch = scratch_values(MOST_ROWS, mask.most_visible(MOST_ROWS, max_seq_len), head_dim);
        let spread = bias.map_or(0, |bias| ByDistance::values(&bias, num_heads, max_seq_len));
        let prepare = |spread| bias.map(|bias| ByDistance::new(&bias, max_seq_len, spread));
        let out = SharedMut::new(out);
        let pieces = cut.runs * num_kv_heads;
        Ok(queue.for_each_piece_with(pieces, scratch, spread, prepare, |piece, scratch, bias| {
            // from the last run to the first: under a causal mask those are the longest, and no thread should begin
            // one of them when the others are done
            let (run, kv_head) = (cut.run(cut.runs - 1 - piece / num_kv_heads), piece % num_kv_heads);
            let group = Group { shape, kv_head, q, k, v, bias: *bias, out };
            self.supported_isa().run(Piece { group, sequences, run, scratch });
        })?)
    }
}

impl AttentionShape {
    /// The sequences, if everything fits.
    fn check<'a>(
        &self,
        layout: Layout<&'a [u32]>,
        [q, k, v]: [Columns<&[f32]>; 3],
        bias: Option<RelativeBias<&[f32]>>,
        out: &[f32],
    ) -> Result<Sequences<'a>, KernelError> {
        let Self { num_heads, num_kv_heads, head_dim, .. } = *self;
        KernelError::check_grouping(NAME, num_heads, num_kv_heads)?;
        let width = num_heads.saturating_mul(head_dim);
        let sequences = Sequences::checked(NAME, layout, "out", width, out.len())?;
        q.check(NAME, "q", sequences.rows(), width)?;
        for (argument, columns) in [("k", k), ("v", v)] {
            columns.check(NAME, argument, sequences.rows(), num_kv_heads.saturating_mul(head_dim))?;
        }
        bias.map_or(Ok(()), |bias| bias.check(NAME, num_heads))?;
        Ok(sequences)
    }
}

/// How the rows of a batch are cut into runs. It decides who computes a row, never what comes out.
#[derive(Clone, Copy)]
struct Cut<'a> {
    sequences: Sequences<'a>,
    rows_of_run: usize,
    runs: usize,
}

impl<'a> Cut<'a> {
    fn new(sequences: Sequences<'a>, num_kv_heads: usize, threads: usize) -> Self {
        let rows = sequences.rows();
        let wanted = (PIECES_PER_THREAD * threads).div_ceil(num_kv_heads);
        let rows_of_run = rows.div_ceil(wanted).clamp(LEAST_ROWS, MOST_ROWS);
        // even ones: 520 rows are twice 260, not 512 and 8
        let rows_of_run = rows.div_ceil(rows.div_ceil(rows_of_run));
        Self { sequences, rows_of_run, runs: rows.div_ceil(rows_of_run) }
    }

    fn run(&self, run: usize) -> Range<usize> {
        self.start(run)..self.start(run + 1)
    }

    /// The first row of a run, moved to the start of its sequence unless that is longer than a run: keys and values of
    /// a sequence that two runs share are rearranged twice.
    fn start(&self, run: usize) -> usize {
        let row = run * self.rows_of_run;
        if row >= self.sequences.rows() {
            return self.sequences.rows();
        }
        let b = self.sequences.of_row(row);
        let first = self.sequences.tokens(b).start;
        if self.sequences.end(b) - first > self.rows_of_run { row } else { first }
    }
}

/// One head of keys and values, and a run of rows.
struct Piece<'a> {
    group: Group<'a>,
    sequences: Sequences<'a>,
    run: Range<usize>,
    scratch: &'a mut [f32],
}

impl Kernel for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut row = self.run.start;
        while row < self.run.end {
            let b = self.sequences.of_row(row);
            let end = self.sequences.end(b).min(self.run.end);
            // SAFETY: runs do not share rows, groups do not share columns, and each piece is done once.
            unsafe { self.group.attend(s, row..end, self.sequences.tokens(b), self.scratch) };
            row = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::{AttentionMask, CpuOptions, DType, Device};

    /// Where runs begin, and where the last one ends.
    fn bounds(cu_seqlens: &[u32], num_heads: usize, threads: usize) -> Vec<usize> {
        let rows = cu_seqlens[cu_seqlens.len() - 1] as usize;
        let sequences = Sequences::checked("k", Layout::Packed { cu_seqlens }, "x", 1, rows).unwrap();
        let cut = Cut::new(sequences, num_heads, threads);
        (0..=cut.runs).map(|run| cut.start(run)).collect()
    }

    #[test]
    fn one_sequence_is_cut_where_heads_are_few() {
        assert_eq!(bounds(&[0, 500], 12, 2), [0, 500]);
        assert_eq!(bounds(&[0, 520], 12, 2), [0, 260, 520]);
        assert_eq!(bounds(&[0, 500], 2, 2), [0, 125, 250, 375, 500]);
        assert_eq!(bounds(&[0, 5], 1, 8), [0, 5]);
    }

    #[test]
    fn short_sequences_stay_whole() {
        assert_eq!(bounds(&[0, 30, 80, 110, 160, 200], 1, 1), [0, 30, 80, 110, 200]);
    }

    #[test]
    fn runs_cover_the_rows_once() {
        for cu_seqlens in
            [&[0u32, 1, 1, 700, 701, 2000, 2003][..], &[0, 3, 40, 41, 200, 201], &[0, 64, 128, 129]]
        {
            for (num_heads, threads) in [(1, 1), (1, 3), (3, 2), (12, 16)] {
                let bounds = bounds(cu_seqlens, num_heads, threads);
                assert!(bounds.is_sorted() && bounds[0] == 0, "{bounds:?}");
                assert_eq!(bounds.last(), cu_seqlens.last().map(|&rows| rows as usize).as_ref());
            }
        }
    }

    /// One head over one sequence of rows that hold query, key and value side by side.
    fn attend(cpu: &Cpu, mask: AttentionMask, qkv: &[f32]) -> Vec<u32> {
        const HEAD_DIM: usize = 16;
        let rows = qkv.len() / (3 * HEAD_DIM);
        let shape = AttentionShape {
            num_heads: 1,
            num_kv_heads: 1,
            head_dim: HEAD_DIM,
            scale: 0.25,
            mask,
            dtype: DType::F32,
        };
        let [q, k, v] =
            [0, 1, 2].map(|third| Columns { rows: qkv, first: third * HEAD_DIM, row_stride: 3 * HEAD_DIM });
        let mut out = vec![f32::NAN; rows * HEAD_DIM];
        let cu_seqlens = [0, rows as u32];
        let layout = Layout::Packed { cu_seqlens: &cu_seqlens[..] };
        cpu.attention(&mut cpu.queue().unwrap(), shape, layout, q, k, v, None, &mut out).unwrap();
        out.into_iter().map(f32::to_bits).collect()
    }

    /// What a row sees is all that it depends on, to the bit: under a causal mask the tokens before it, within a window
    /// those around it, and how far it is into its sequence only by whole vectors.
    #[test]
    fn rows_of_eight_thousand_tokens_depend_on_what_they_see() {
        const ROW: usize = 3 * 16;
        let qkv: Vec<f32> = (0..8192 * ROW).map(|i| ((i * 7919) % 1009) as f32 / 500.0 - 1.0).collect();
        let window = AttentionMask::Window { reach: 64 };
        for isa in crate::Isa::available() {
            let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(2), isa: Some(isa) }).unwrap();
            let causal = attend(&cpu, AttentionMask::Causal, &qkv);
            assert_eq!(attend(&cpu, AttentionMask::Causal, &qkv[..777 * ROW]), causal[..777 * 16]);
            let near = attend(&cpu, window, &qkv);
            let part = attend(&cpu, window, &qkv[4928 * ROW..5440 * ROW]);
            assert_eq!(part[64 * 16..448 * 16], near[4992 * 16..5376 * 16]);
        }
    }
}
