//! Pooling on a GPU: a block for each line of columns of each sequence.

use super::{Pool, Pooling};
use crate::{
    KernelError, Layout,
    cuda::{
        Cuda, CudaQueue, CudaView, CudaViewMut, Family, Kernel, blocks, count, family, is_wide, named,
        sequences::{self, SequencesOnDevice},
        warp_to_a_row,
    },
    device::Float,
};

pub(crate) static FAMILY: Family = family!("pool", "../sequences.cuh", "pool.cu");

/// Threads of a block, and how many of them share a row, as in `pool.cu`.
const THREADS: u32 = 256;
const GROUP: u32 = 8;

/// Norms below this count as this when they divide.
const LEAST_NORM: f32 = 1e-12;

impl<F: Float> Pool for Cuda<F> {
    fn pool(
        &self,
        queue: &mut CudaQueue,
        pooling: Pooling,
        layout: Layout<CudaView<'_, u32>>,
        x: CudaView<'_, F>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        const NAME: &str = "pool";
        let sequences = sequences::of_layout(NAME, layout)?;
        let columns = out.len().checked_div(sequences.batch_size as usize).unwrap_or(0);
        KernelError::check_length(NAME, "out", columns * sequences.batch_size as usize, out.len())?;
        let rows = sequences.check_rows(NAME, "x", columns, x.len())?;
        if out.len() == 0 {
            return Ok(());
        }
        // SAFETY: x holds `rows` rows of `columns` values, and out one for each sequence.
        unsafe { launch(queue, pooling, sequences, rows, x, columns, out, columns) }
    }

    fn l2_normalize(
        &self,
        queue: &mut CudaQueue,
        hidden_size: usize,
        x: CudaView<'_, F>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        const NAME: &str = "l2_normalize";
        let rows = KernelError::check_rows(NAME, "x", hidden_size, x.len())?;
        KernelError::check_length(NAME, "out", x.len(), out.len())?;
        let (rows, columns) = (count(NAME, "rows", rows)?, count(NAME, "columns", hidden_size)?);
        let kernel = Kernel { module: FAMILY.of::<F>(), name: named!(F, "l2_normalize") };
        // SAFETY: both hold `rows` rows of `columns` values.
        Ok(unsafe { queue.launch(kernel, warp_to_a_row(rows), (x, LEAST_NORM, out, rows, columns)) }?)
    }
}

/// Pools rows of `columns` values into rows that are `out_stride` values apart, and writes the first `columns` values
/// of each.
///
/// # Errors
/// [`KernelError::Size`] for more than kernels can count, or a device failure.
///
/// # Safety
/// x holds `rows` rows, and out a row for each sequence; the last may end after its first `columns` values.
#[allow(clippy::too_many_arguments)]
pub(crate) unsafe fn launch<F: Float>(
    queue: &mut CudaQueue,
    pooling: Pooling,
    sequences: SequencesOnDevice<'_>,
    rows: u32,
    x: CudaView<'_, F>,
    columns: usize,
    out: CudaViewMut<'_, F>,
    out_stride: usize,
) -> Result<(), KernelError> {
    const NAME: &str = "pool";
    let columns = count(NAME, "columns", columns)?;
    let out_stride = count(NAME, "columns", out_stride)?;
    let is_wide = |row_len, address| is_wide::<F>(row_len as usize, [address]);
    let (name, width) = if is_wide(columns, x.address()) && is_wide(out_stride, out.address()) {
        (named!(F, "pool"), 16 / size_of::<F>() as u32)
    } else {
        (named!(F, "pool", "_any"), 1)
    };
    let tiles = columns.div_ceil(GROUP * width) as usize;
    let grid = count(NAME, "blocks", tiles.saturating_mul(sequences.batch_size as usize))?;
    let SequencesOnDevice { lengths, batch_size, padded_len } = sequences;
    let args = (pooling as u32, lengths, batch_size, padded_len, rows, x, out, out_stride, columns);
    // SAFETY: the caller's promise; the kernel uses only rows that exist.
    Ok(unsafe { queue.launch(Kernel { module: FAMILY.of::<F>(), name }, blocks(grid, THREADS), args) }?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cuda::on_every_emulator,
        suite::{self, aligned},
    };

    #[test]
    fn agrees_with_the_twin() {
        on_every_emulator!(check);
    }

    fn check<D: Pool>(device: &D) {
        suite::pool(device);
        aligned(|| suite::pool(device));
        suite::pool::wide_rows(device);
    }
}
