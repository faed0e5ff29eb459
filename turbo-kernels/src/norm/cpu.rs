//! Norms on the CPU: whole rows, several to a piece, each in cache from its first pass to its last.

use std::ops::Range;

use super::{
    Norm, NormWeights,
    row::{NormRows, RmsRows, normalize},
};
use crate::{
    Columns, HeadSizes, KernelError,
    device::{Cpu, CpuQueue, SharedMut, Values},
    lanes,
    simd::{Kernel, Simd, SupportedIsa},
};

/// Values of one piece of work: some five microseconds.
pub(crate) const PIECE: usize = 8 * 1024;

impl Norm for Cpu {
    fn layer_norm(
        &self,
        queue: &mut CpuQueue,
        x: &[f32],
        weights: NormWeights<&[f32]>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let hidden_size = weights.checked("layer_norm", x, out)?;
        for_each_piece(queue, hidden_size, out, |first, rows| {
            rows.copy_from_slice(&x[first..][..rows.len()]);
            self.supported_isa().run(NormRows { rows, weights });
        })
    }

    fn bias_residual_layer_norm(
        &self,
        queue: &mut CpuQueue,
        x: &[f32],
        bias: Option<&[f32]>,
        residual: &[f32],
        weights: NormWeights<&[f32]>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        const NAME: &str = "bias_residual_layer_norm";
        let hidden_size = weights.checked(NAME, x, out)?;
        bias.map_or(Ok(()), |bias| KernelError::check_length(NAME, "bias", hidden_size, bias.len()))?;
        KernelError::check_length(NAME, "residual", x.len(), residual.len())?;
        for_each_piece(queue, hidden_size, out, |first, rows| {
            let (x, residual) = (&x[first..][..rows.len()], &residual[first..][..rows.len()]);
            self.supported_isa().run(BiasResidualRows { x, bias, residual, weights, rows });
        })
    }

    fn rms_norm(
        &self,
        queue: &mut CpuQueue,
        x: &[f32],
        gain: &[f32],
        epsilon: f32,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        KernelError::check_rows("rms_norm", "x", gain.len(), x.len())?;
        KernelError::check_length("rms_norm", "out", x.len(), out.len())?;
        for_each_piece(queue, gain.len(), out, |first, out| {
            self.supported_isa().run(RmsRows { x: &x[first..][..out.len()], gain, epsilon, out });
        })
    }

    fn head_rms_norm(
        &self,
        queue: &mut CpuQueue,
        heads: HeadSizes,
        x: Columns<&[f32]>,
        gain: &[f32],
        epsilon: f32,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        const NAME: &str = "head_rms_norm";
        let (width, head_dim) = (heads.width(), heads.head_dim);
        let rows = KernelError::check_rows(NAME, "out", width, out.len())?;
        x.check(NAME, "x", rows, width)?;
        KernelError::check_length(NAME, "gain", head_dim, gain.len())?;
        for_each_row(queue, width, out, |first, out| {
            let x = x.part(first / width, 0, width);
            self.supported_isa().run(RmsRows { x, gain, epsilon, out });
        })
    }
}

impl NormWeights<&[f32]> {
    /// The `hidden_size` of a layer norm from `x` to `out`, if everything fits.
    pub(crate) fn checked(&self, kernel: &'static str, x: &[f32], out: &[f32]) -> Result<usize, KernelError> {
        let hidden_size = self.gain.len();
        self.fits(kernel, hidden_size)?;
        KernelError::check_rows(kernel, "x", hidden_size, x.len())?;
        KernelError::check_length(kernel, "out", x.len(), out.len())?;
        Ok(hidden_size)
    }
}

impl<V> NormWeights<V> {
    /// Checks that rows of `hidden_size` values can be normalised with these weights.
    pub(crate) fn fits(&self, kernel: &'static str, hidden_size: usize) -> Result<(), KernelError>
    where
        V: Values,
    {
        KernelError::check_length(kernel, "gain", hidden_size, self.gain.len())?;
        let offset = self.offset.as_ref().map_or(hidden_size, V::len);
        KernelError::check_length(kernel, "offset", hidden_size, offset)
    }
}

/// Calls `work(first value, rows)` for pieces of rows of `out`, in parallel.
pub(crate) fn for_each_piece(
    queue: &mut CpuQueue,
    hidden_size: usize,
    out: &mut [f32],
    work: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<(), KernelError> {
    if out.is_empty() {
        return Ok(());
    }
    let values = (PIECE / hidden_size).max(1) * hidden_size;
    Ok(queue.for_each_chunk(out, values, 0, |piece, rows, _| work(piece * values, rows))?)
}

/// Calls `work(first value, row)` for every row of `out`, in parallel.
pub(crate) fn for_each_row(
    queue: &mut CpuQueue,
    hidden_size: usize,
    out: &mut [f32],
    work: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<(), KernelError> {
    for_each_piece(queue, hidden_size, out, |first, rows| {
        for (i, row) in rows.chunks_exact_mut(hidden_size).enumerate() {
            work(first + i * hidden_size, row);
        }
    })
}

/// The norm of rows that other steps of the same operation write.
#[derive(Clone, Copy)]
pub(crate) struct NormGroup<'a> {
    pub(crate) isa: SupportedIsa,
    pub(crate) weights: NormWeights<&'a [f32]>,
    /// `[rows, gain.len()]`.
    pub(crate) out: SharedMut<'a, f32>,
}

impl NormGroup<'_> {
    /// Rows of one piece.
    fn rows_of_piece(&self) -> usize {
        (PIECE / self.weights.gain.len().max(1)).max(1)
    }

    /// Pieces of a group of `rows` rows.
    pub(crate) fn pieces(&self, rows: usize) -> usize {
        rows.div_ceil(self.rows_of_piece())
    }

    /// Normalises part `piece` of `rows` in place, if there is such a part.
    ///
    /// # Safety
    /// Nothing else uses these rows meanwhile.
    pub(crate) unsafe fn run(&self, rows: Range<usize>, piece: usize) {
        let hidden_size = self.weights.gain.len();
        let first = rows.start + piece * self.rows_of_piece();
        let end = rows.end.min(first + self.rows_of_piece());
        if first < end {
            // SAFETY: the caller's promise.
            let rows = unsafe { self.out.slice(first * hidden_size, (end - first) * hidden_size) };
            self.isa.run(NormRows { rows, weights: self.weights });
        }
    }
}

struct BiasResidualRows<'a> {
    x: &'a [f32],
    bias: Option<&'a [f32]>,
    residual: &'a [f32],
    weights: NormWeights<&'a [f32]>,
    rows: &'a mut [f32],
}

impl Kernel for BiasResidualRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.rows.copy_from_slice(self.x);
        let hidden_size = self.weights.gain.len().max(1);
        let rows = self.rows.chunks_exact_mut(hidden_size).zip(self.residual.chunks_exact(hidden_size));
        for (row, residual) in rows {
            match self.bias {
                None => lanes::update_with(s, row, [residual], |x, [residual]| s.add(x, residual)),
                Some(bias) => lanes::update_with(s, row, [bias, residual], |x, [bias, residual]| {
                    s.add(s.add(x, bias), residual)
                }),
            }
        }
        normalize(s, self.rows, self.weights);
    }
}
