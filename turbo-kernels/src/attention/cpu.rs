//! Attention on the CPU: the batch is cut into pieces of some heads and a run of rows, which threads share.

use std::ops::Range;

use super::{
    Attention, AttentionShape, Biases, Queries, RelativeBias,
    head::{Head, MOST_QUERY_ROWS, scratch_values},
};
use crate::{
    Columns, DType, KernelError, Layout,
    device::{Cpu, CpuQueue, SharedMut},
    sequences::Sequences,
    simd::{Kernel, Simd},
};

/// Rows of a run: enough that packing keys and values (once per run, head and sequence) is a small part of it, few
/// enough that a thread whose core was taken holds up little.
const LEAST_ROWS: usize = 64;
/// Pieces per thread, if the rows allow: enough to even out threads that are not equally fast.
const PIECES_PER_THREAD: usize = 4;
/// Pieces per thread, if heads can be kept together: a head is prefetched while the one before it is computed.
const MOST_PIECES_PER_THREAD: usize = 32;
/// Multiply-adds that are worth a piece: a microsecond or two.
const PIECE_WORK: usize = 1 << 16;
/// What a row costs besides its keys, in keys.
const KEYS_PER_ROW: usize = 16;

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
        let num_heads = shape.num_heads;
        let cut = AttentionCut::new(sequences, shape, queue.threads());
        let most_rows = sequences.most_rows();
        let spread = bias.map_or(0, |bias| Biases::values(&bias, num_heads, most_rows));
        let prepare = |spread| bias.map(|bias| Biases::new(&bias, num_heads, most_rows, spread));
        let out = SharedMut::new(out);
        let parts = num_heads.div_ceil(cut.heads);
        let scratch = scratch_values(shape.head_dim);
        Ok(queue.for_each_piece_with(
            cut.runs * parts,
            scratch,
            spread,
            prepare,
            |piece, scratch, bias| {
                let (run, part) = (cut.run(piece / parts), piece % parts);
                let heads = part * cut.heads..num_heads.min((part + 1) * cut.heads);
                // a thread goes through pieces in descending order, so heads follow each other across pieces
                for head in heads.clone().rev() {
                    let is_first = head + 1 == heads.end;
                    let next = head.checked_sub(1);
                    let head = Head { shape, head, q, k, v, bias: *bias, is_first, next, out };
                    let piece = HeadPiece { head, sequences, run: run.clone(), scratch: &mut *scratch };
                    match shape.dtype {
                        DType::F32 => self.supported_isa().run(piece),
                        DType::Bf16 | DType::Int8 => self.supported_isa().run_bf16(piece),
                    }
                }
            },
        )?)
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
        let Self { num_heads, num_kv_heads, head_dim, queries, .. } = *self;
        KernelError::check_grouping(NAME, num_heads, num_kv_heads)?;
        let width = num_heads.saturating_mul(head_dim);
        let sequences = if queries == Queries::All {
            Sequences::checked(NAME, layout, "out", width, out.len())?
        } else {
            let sequences = Sequences::checked(NAME, layout, "k", k.row_stride, k.rows.len())?;
            KernelError::check_length(NAME, "out", sequences.len().saturating_mul(width), out.len())?;
            sequences
        };
        q.check(NAME, "q", self.query_rows(&sequences), width)?;
        for (argument, columns) in [("k", k), ("v", v)] {
            columns.check(NAME, argument, sequences.rows(), num_kv_heads.saturating_mul(head_dim))?;
        }
        let rows = [self.query_rows(&sequences), sequences.rows()];
        bias.map_or(Ok(()), |bias| bias.check(NAME, num_heads, rows))?;
        Ok(sequences)
    }

    /// Rows of queries and of the result.
    fn query_rows(&self, sequences: &Sequences<'_>) -> usize {
        if self.queries == Queries::All { sequences.rows() } else { sequences.len() }
    }
}

/// How a batch is cut into runs of rows and groups of heads. It decides which thread computes a row, never the result.
#[derive(Clone, Copy)]
struct AttentionCut<'a> {
    sequences: Sequences<'a>,
    queries: Queries,
    /// Rows of queries.
    rows: usize,
    rows_of_run: usize,
    runs: usize,
    /// Heads of a piece.
    heads: usize,
}

impl<'a> AttentionCut<'a> {
    fn new(sequences: Sequences<'a>, shape: AttentionShape, threads: usize) -> Self {
        let AttentionShape { num_heads, head_dim, mask, queries, .. } = shape;
        let rows = shape.query_rows(&sequences);
        let wanted = (PIECES_PER_THREAD * threads).div_ceil(num_heads);
        // a run has several short sequences, or one: the heads of its rows lie in the same pages, and are read one
        // after another
        let (least, most) = match queries {
            Queries::All => (LEAST_ROWS, sequences.max_seq_len().clamp(LEAST_ROWS, MOST_QUERY_ROWS)),
            Queries::First | Queries::Last => (1, MOST_QUERY_ROWS),
        };
        let rows_of_run = rows.div_ceil(wanted).clamp(least, most);
        // equally long runs: 520 rows are twice 260, not 512 and 8
        let rows_of_run = rows.div_ceil(rows.div_ceil(rows_of_run));
        let runs = rows.div_ceil(rows_of_run);
        let keys = KEYS_PER_ROW + mask.most_visible(rows_of_run, sequences.max_seq_len());
        let work = [2, num_heads, head_dim, keys].into_iter().fold(rows_of_run, usize::saturating_mul);
        let most_parts = (MOST_PIECES_PER_THREAD * threads).div_ceil(runs).min(num_heads);
        // equally many for each thread, if there are several
        let parts = (work / PIECE_WORK).next_multiple_of(threads).clamp(1, most_parts);
        Self { sequences, queries, rows, rows_of_run, runs, heads: num_heads.div_ceil(parts) }
    }

    fn run(&self, run: usize) -> Range<usize> {
        self.start(run)..self.start(run + 1)
    }

    /// The first row of a run, moved to the start of its sequence unless the sequence is longer than a run: keys and
    /// values of a sequence that two runs share are arranged twice.
    fn start(&self, run: usize) -> usize {
        let row = run * self.rows_of_run;
        if row >= self.rows {
            return self.rows;
        }
        if self.queries != Queries::All {
            return row;
        }
        let b = self.sequences.of_row(row);
        let first = self.sequences.tokens(b).start;
        if self.sequences.end(b) - first > self.rows_of_run { row } else { first }
    }
}

/// One head, and a run of rows.
struct HeadPiece<'a> {
    head: Head<'a>,
    sequences: Sequences<'a>,
    run: Range<usize>,
    scratch: &'a mut [f32],
}

impl Kernel for HeadPiece<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut row = self.run.start;
        while row < self.run.end {
            let (rows, tokens) = self.part(row);
            let end = row + rows.len();
            // SAFETY: runs do not share rows, heads do not share columns, and each piece is done once.
            unsafe { self.head.attend(s, rows, row, tokens, self.scratch) };
            row = end;
        }
    }
}

impl HeadPiece<'_> {
    /// The positions in one sequence of the rows from `row` on, and the rows of its tokens.
    fn part(&self, row: usize) -> (Range<usize>, Range<usize>) {
        match self.head.shape.queries {
            Queries::All => {
                let b = self.sequences.of_row(row);
                let tokens = self.sequences.tokens(b);
                // a sequence that is not cut may be longer than a run
                let end = self.sequences.end(b).min(self.run.end).min(row + MOST_QUERY_ROWS);
                (row - tokens.start..end - tokens.start, tokens)
            }
            Queries::First => (0..1, self.sequences.tokens(row)),
            Queries::Last => {
                let tokens = self.sequences.tokens(row);
                let last = tokens.len().saturating_sub(1);
                (last..last + 1, tokens)
            }
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
        let (mask, dtype) = (AttentionMask::Full, DType::F32);
        let shape = AttentionShape {
            num_heads,
            num_kv_heads: num_heads,
            head_dim: 64,
            scale: 1.0,
            mask,
            dtype,
            queries: Queries::All,
        };
        let cut = AttentionCut::new(sequences, shape, threads);
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
    fn attend(cpu: &Cpu, (mask, dtype): (AttentionMask, DType), qkv: &[f32]) -> Vec<u32> {
        const HEAD_DIM: usize = 16;
        let rows = qkv.len() / (3 * HEAD_DIM);
        let shape = AttentionShape {
            num_heads: 1,
            num_kv_heads: 1,
            head_dim: HEAD_DIM,
            scale: 0.25,
            mask,
            dtype,
            queries: Queries::All,
        };
        let [q, k, v] =
            [0, 1, 2].map(|third| Columns { rows: qkv, first: third * HEAD_DIM, row_stride: 3 * HEAD_DIM });
        let mut out = vec![f32::NAN; rows * HEAD_DIM];
        let cu_seqlens = [0, rows as u32];
        let layout = Layout::Packed { cu_seqlens: &cu_seqlens[..] };
        cpu.attention(&mut cpu.queue().unwrap(), shape, layout, q, k, v, None, &mut out).unwrap();
        out.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn rows_of_padding_that_see_nothing_are_zero() {
        const HEAD_DIM: usize = 16;
        let (len, padded_len, reach) = (10, 151, 9);
        let shape = AttentionShape {
            num_heads: 1,
            num_kv_heads: 1,
            head_dim: HEAD_DIM,
            scale: 0.25,
            mask: AttentionMask::Window { reach },
            dtype: DType::F32,
            queries: Queries::All,
        };
        let values = vec![1.0; padded_len * HEAD_DIM];
        let x = Columns { rows: &values[..], first: 0, row_stride: HEAD_DIM };
        let layout = Layout::Padded { seq_lens: &[len as u32][..], padded_len };
        for isa in crate::Isa::available() {
            let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(1), isa: Some(isa) }).unwrap();
            let mut out = vec![f32::NAN; padded_len * HEAD_DIM];
            cpu.attention(&mut cpu.queue().unwrap(), shape, layout, x, x, x, None, &mut out).unwrap();
            assert!(out[(len + reach) * HEAD_DIM..].iter().all(|&v| v == 0.0), "{isa:?}");
        }
    }

    /// A row depends on nothing but what it sees, to the bit: under a causal mask the tokens before it, within a window
    /// those around it. How far it is into its sequence matters only by whole vectors or registers.
    #[test]
    fn rows_of_eight_thousand_tokens_depend_on_what_they_see() {
        const ROW: usize = 3 * 16;
        let qkv: Vec<f32> = (0..8192 * ROW).map(|i| ((i * 7919) % 1009) as f32 / 500.0 - 1.0).collect();
        let window = AttentionMask::Window { reach: 64 };
        let dtypes = [DType::F32, DType::Bf16];
        for (isa, dtype) in crate::Isa::available().flat_map(|isa| dtypes.map(|dtype| (isa, dtype))) {
            let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(2), isa: Some(isa) }).unwrap();
            let (causal_mask, window) = ((AttentionMask::Causal, dtype), (window, dtype));
            let causal = attend(&cpu, causal_mask, &qkv);
            assert_eq!(attend(&cpu, causal_mask, &qkv[..777 * ROW]), causal[..777 * 16]);
            let near = attend(&cpu, window, &qkv);
            // and a NaN in a value changes no row that does not see it
            let mut with_nan = qkv[..300 * ROW].to_vec();
            with_nan[140 * ROW + 2 * 16 + 3] = f32::NAN;
            assert_eq!(attend(&cpu, causal_mask, &with_nan)[..140 * 16], causal[..140 * 16], "{isa} {dtype}");
            let near_nan = attend(&cpu, window, &with_nan);
            assert_eq!(near_nan[..76 * 16], near[..76 * 16], "{isa} {dtype}");
            assert_eq!(near_nan[205 * 16..236 * 16], near[205 * 16..236 * 16], "{isa} {dtype}");
            let part = attend(&cpu, window, &qkv[4928 * ROW..5440 * ROW]);
            assert_eq!(part[64 * 16..448 * 16], near[4992 * 16..5376 * 16]);
        }
    }
}
