//! Attention on the CPU: the batch is cut into pieces of one head and a run of rows, claimed as threads are free.

use std::ops::Range;

use super::{
    Attention, AttentionShape,
    head::{Head, scratch_values},
};
use crate::{
    KernelError, Layout,
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

impl Attention for Cpu {
    fn attention(
        &self,
        queue: &mut CpuQueue,
        shape: AttentionShape,
        layout: Layout<&[u32]>,
        qkv: &[f32],
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let hidden_size = shape.num_heads * shape.head_dim;
        let sequences = Sequences::checked("attention", layout, "qkv", 3 * hidden_size, qkv.len())?;
        KernelError::check_length("attention", "out", sequences.rows() * hidden_size, out.len())?;
        if out.is_empty() {
            return Ok(());
        }
        let cut = Cut::new(sequences, shape.num_heads, queue.threads());
        let scratch = scratch_values(sequences.max_seq_len(), shape.head_dim);
        let out = SharedMut::new(out);
        Ok(queue.for_each_piece(cut.runs * shape.num_heads, scratch, |piece, scratch| {
            let (run, head) = (cut.run(piece / shape.num_heads), piece % shape.num_heads);
            let head = Head { shape, head, qkv, out };
            self.supported_isa().run(Piece { head, sequences, run, scratch });
        })?)
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
    fn new(sequences: Sequences<'a>, num_heads: usize, threads: usize) -> Self {
        let rows = sequences.rows();
        let wanted = (PIECES_PER_THREAD * threads).div_ceil(num_heads);
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

/// One head of a run of rows.
struct Piece<'a> {
    head: Head<'a>,
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
            // SAFETY: runs do not share rows, heads do not share columns, and each piece is done once.
            unsafe { self.head.attend(s, row..end, self.sequences.tokens(b), self.scratch) };
            row = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
