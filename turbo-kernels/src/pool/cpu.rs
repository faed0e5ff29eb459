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

/// The sum of at least one row of `out.len()` values, in ascending order, divided.
pub(crate) struct SumRows<'a> {
    pub(crate) rows: &'a [f32],
    pub(crate) divisor: f32,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for SumRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (first, others) = self.rows.split_at(self.out.len());
        self.out.copy_from_slice(first);
        for row in others.chunks_exact(self.out.len()) {
            for (x, sum) in row.chunks(S::LANES).zip(self.out.chunks_mut(S::LANES)) {
                lanes::write(s, s.add(lanes::read(s, sum, 0.0), lanes::read(s, x, 0.0)), sum);
            }
        }
        let divisor = s.splat(self.divisor);
        lanes::update(s, self.out, 0.0, |sum| s.div(sum, divisor));
    }
}

/// The mean of at least one row of `out.len()` values, in ascending order, row `i` with weight `i + 1`.
struct WeightedRows<'a> {
    rows: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for WeightedRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let count = (self.rows.len() / self.out.len()) as f64;
        // f32 does not count as far as the sum of some thousand weights
        let total = count * (count + 1.0) / 2.0;
        self.out.fill(0.0);
        for (i, row) in self.rows.chunks_exact(self.out.len()).enumerate() {
            let weight = s.splat(((i + 1) as f64 / total) as f32);
            for (x, sum) in row.chunks(S::LANES).zip(self.out.chunks_mut(S::LANES)) {
                lanes::write(s, s.mul_add(weight, lanes::read(s, x, 0.0), lanes::read(s, sum, 0.0)), sum);
            }
        }
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
