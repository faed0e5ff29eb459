//! Pooling on the CPU, a sequence to a piece.

use super::{Pool, Pooling};
use crate::{
    KernelError, Layout,
    device::{Cpu, CpuQueue},
    lanes,
    norm::for_each_row,
    sequences::Sequences,
    simd::{Kernel, Simd},
};

/// Norms below this divide as if they were this, as in `torch.nn.functional.normalize`.
const LEAST_NORM: f32 = 1e-12;

impl Pool for Cpu {
    fn pool(
        &self,
        queue: &mut CpuQueue,
        pooling: Pooling,
        layout: Layout<&[u32]>,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let batch_size = match layout {
            Layout::Padded { seq_lens, .. } => seq_lens.len(),
            Layout::Packed { cu_seqlens } => cu_seqlens.len().saturating_sub(1),
        };
        let hidden_size = out.len().checked_div(batch_size).unwrap_or(0);
        KernelError::check_length("pool", "out", hidden_size * batch_size, out.len())?;
        let sequences = Sequences::checked("pool", layout, "x", hidden_size, x.len())?;
        if out.is_empty() {
            return Ok(());
        }
        Ok(queue.for_each_chunk(out, hidden_size, 0, |b, out, _| {
            let tokens = sequences.tokens(b);
            let rows = &x[tokens.start * hidden_size..tokens.end * hidden_size];
            if rows.is_empty() {
                return out.fill(0.0);
            }
            let (isa, count) = (self.supported_isa(), tokens.len() as f32);
            match pooling {
                Pooling::Cls => out.copy_from_slice(&rows[..hidden_size]),
                Pooling::LastToken => out.copy_from_slice(&rows[rows.len() - hidden_size..]),
                Pooling::Mean => isa.run(SumRows { rows, divisor: count, out }),
                Pooling::MeanSqrtLen => isa.run(SumRows { rows, divisor: count.sqrt(), out }),
                Pooling::WeightedMean => isa.run(WeightedRows { rows, out }),
                Pooling::Max => isa.run(MaxRows { rows, out }),
            }
        })?)
    }

    fn l2_normalize(
        &self,
        queue: &mut CpuQueue,
        hidden_size: usize,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        KernelError::check_rows("l2_normalize", "x", hidden_size, x.len())?;
        KernelError::check_length("l2_normalize", "out", x.len(), out.len())?;
        for_each_row(queue, hidden_size, out, |first, out| {
            out.copy_from_slice(&x[first..][..hidden_size]);
            self.supported_isa().run(L2Row { row: out });
        })
    }
}

/// Rows that are added to each other before they are added to the others. Added one after another, thousands of alike
/// rows would each be rounded to a sum far greater than they are, and always to the same side.
const BLOCK: usize = 64;

/// The sum of at least one row of `out.len()` values, one block of [`BLOCK`] rows after another, each in ascending
/// order.
///
/// `add(sum, x, row)` adds the values of a row in some columns. Rows count from the start of their sequence, so a sum's
/// bits do not depend on the batch.
#[inline(always)]
fn sum_blocks<S: Simd>(s: S, rows: &[f32], out: &mut [f32], add: impl Fn(S::F32, S::F32, usize) -> S::F32) {
    let hidden_size = out.len();
    // only a start of −0 leaves every zero its sign
    out.fill(-0.0);
    for (block, rows) in rows.chunks(BLOCK * hidden_size).enumerate() {
        for (part, sum) in out.chunks_mut(S::LANES).enumerate() {
            let mut of_block = s.splat(-0.0);
            for (i, row) in rows.chunks_exact(hidden_size).enumerate() {
                let x = lanes::read(s, &row[part * S::LANES..][..sum.len()], 0.0);
                of_block = add(of_block, x, block * BLOCK + i);
            }
            lanes::write(s, s.add(lanes::read(s, sum, 0.0), of_block), sum);
        }
    }
}

/// The sum of at least one row of `out.len()` values, divided.
pub(crate) struct SumRows<'a> {
    pub(crate) rows: &'a [f32],
    pub(crate) divisor: f32,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for SumRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        sum_blocks(s, self.rows, self.out, |sum, x, _| s.add(sum, x));
        let divisor = s.splat(self.divisor);
        lanes::update(s, self.out, 0.0, |sum| s.div(sum, divisor));
    }
}

/// The mean of at least one row of `out.len()` values, row `i` with weight `i + 1`.
struct WeightedRows<'a> {
    rows: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for WeightedRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let count = (self.rows.len() / self.out.len()) as f64;
        // f32 cannot count as far as the sum of some thousand weights
        let total = count * (count + 1.0) / 2.0;
        let weight = |i: usize| s.splat(((i + 1) as f64 / total) as f32);
        sum_blocks(s, self.rows, self.out, |sum, x, i| s.mul_add(weight(i), x, sum));
    }
}

/// The greatest of at least one row of `out.len()` values, column by column.
struct MaxRows<'a> {
    rows: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for MaxRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (first, others) = self.rows.split_at(self.out.len());
        self.out.copy_from_slice(first);
        for row in others.chunks_exact(self.out.len()) {
            for (x, most) in row.chunks(S::LANES).zip(self.out.chunks_mut(S::LANES)) {
                let greater = lanes::greater_or_nan(s, lanes::read(s, most, 0.0), lanes::read(s, x, 0.0));
                lanes::write(s, greater, most);
            }
        }
    }
}

/// `row / ‖row‖₂`, in place.
pub(crate) struct L2Row<'a> {
    pub(crate) row: &'a mut [f32],
}

impl Kernel for L2Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let norm = lanes::sum(s, self.row, 0.0, |x| s.mul(x, x)).sqrt();
        // not `f32::max`, which forgets NaN
        let divisor = s.splat(if norm < LEAST_NORM { LEAST_NORM } else { norm });
        lanes::update(s, self.row, 0.0, |x| s.div(x, divisor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::supported;

    /// Rows like those of a repeated word, in widths that fill no vector and counts around that of a block.
    #[test]
    fn thousands_of_alike_rows_have_their_mean() {
        for (count, hidden_size) in [(1, 5), (BLOCK - 1, 16), (BLOCK + 1, 33), (8192, 19), (32768, 3)] {
            let row: Vec<f32> = (0..hidden_size).map(|i| 2.3 / (i + 1) as f32).collect();
            let (rows, mut out) = (row.repeat(count), vec![f32::NAN; hidden_size]);
            for isa in supported() {
                isa.run(SumRows { rows: &rows, divisor: count as f32, out: &mut out });
                for (mean, x) in out.iter().zip(&row) {
                    assert!((mean - x).abs() <= 1e-5 * x, "{isa:?}, {count} rows: {mean}, expected {x}");
                }
                isa.run(WeightedRows { rows: &rows, out: &mut out });
                for (mean, x) in out.iter().zip(&row) {
                    assert!((mean - x).abs() <= 1e-5 * x, "{isa:?}, {count} rows: {mean}, expected {x}");
                }
            }
        }
    }
}
