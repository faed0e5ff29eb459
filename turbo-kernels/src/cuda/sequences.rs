//! A layout as the kernels of `sequences.cuh` take it. Lengths are on the device, so the host checks only the sizes of
//! buffers, and the kernels make sure that they use only rows that exist.

use super::{CudaView, count};
use crate::{KernelError, Layout};

/// The padded length that stands for a packed layout.
const PACKED: u32 = u32::MAX;

/// The sequences of a tensor's rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequencesOnDevice<'a> {
    /// Lengths if padded, prefix sums if packed.
    pub(crate) lengths: CudaView<'a, u32>,
    pub(crate) batch_size: u32,
    /// Rows of each sequence, or [`PACKED`].
    pub(crate) padded_len: u32,
}

/// # Errors
/// [`KernelError::Length`] for prefix sums without the first one; [`KernelError::Size`] for more sequences or rows than
/// kernels can count.
pub(crate) fn of_layout<'a>(
    kernel: &'static str,
    layout: Layout<CudaView<'a, u32>>,
) -> Result<SequencesOnDevice<'a>, KernelError> {
    let (lengths, batch_size, padded_len) = match layout {
        Layout::Padded { seq_lens, padded_len } => {
            (seq_lens, seq_lens.len(), count(kernel, "padded_len", padded_len)?)
        }
        Layout::Packed { cu_seqlens } => match cu_seqlens.len().checked_sub(1) {
            Some(batch_size) => (cu_seqlens, batch_size, PACKED),
            None => return Err(KernelError::Length { kernel, argument: "cu_seqlens", expected: 1, got: 0 }),
        },
    };
    Ok(SequencesOnDevice { lengths, batch_size: count(kernel, "batch_size", batch_size)?, padded_len })
}

impl SequencesOnDevice<'_> {
    /// The number of rows of `row_len` values in a tensor of `values`; a padded layout determines it.
    ///
    /// # Errors
    /// [`KernelError::Length`] when `values` does not fit, [`KernelError::Size`] for more rows than kernels can count.
    pub(crate) fn check_rows(
        &self,
        kernel: &'static str,
        argument: &'static str,
        row_len: usize,
        values: usize,
    ) -> Result<u32, KernelError> {
        let rows = if self.padded_len == PACKED {
            KernelError::check_rows(kernel, argument, row_len, values)?
        } else {
            let rows = (self.batch_size as usize).saturating_mul(self.padded_len as usize);
            KernelError::check_length(kernel, argument, rows.saturating_mul(row_len), values)?;
            rows
        };
        count(kernel, "rows", rows)
    }
}
