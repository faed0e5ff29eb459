//! Pooling on a GPU: a block to each line of columns of each sequence.

use super::{Pool, Pooling};
use crate::{
    KernelError, Layout,
    cuda::{
        Cuda, CudaQueue, CudaView, CudaViewMut, Kernel, Module, blocks, count, is_wide, named, sequences,
        warp_to_a_row,
    },
    device::Float,
};

static MODULE: Module =
    Module { name: "pool", source: concat!(include_str!("../sequences.cuh"), include_str!("pool.cu")) };

/// Threads of a block, and how many of them share a row, as in `pool.cu`.
const THREADS: u32 = 256;
const GROUP: u32 = 8;

/// Norms below this divide as if they were this.
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
        let columns = count(NAME, "columns", columns)?;
        let wide = is_wide::<F>(columns as usize, [x.address(), out.address()]);
        let (name, width) = if wide {
            (named!(F, "pool"), 16 / size_of::<F>() as u32)
        } else {
            (named!(F, "pool", "_any"), 1)
        };
        let tiles = columns.div_ceil(GROUP * width) as usize;
        let grid = count(NAME, "blocks", tiles.saturating_mul(sequences.batch_size as usize))?;
        let args = (
            pooling as u32,
            sequences.lengths,
            sequences.batch_size,
            sequences.padded_len,
            rows,
            x,
            out,
            columns, // from one result to the next
            columns,
        );
        // SAFETY: x holds `rows` rows of `columns` values, out one for each sequence, and the kernel names only rows that
        // there are.
        Ok(unsafe { queue.launch(Kernel { module: &MODULE, name }, blocks(grid, THREADS), args) }?)
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
        let kernel = Kernel { module: &MODULE, name: named!(F, "l2_normalize") };
        // SAFETY: both hold `rows` rows of `columns` values.
        Ok(unsafe { queue.launch(kernel, warp_to_a_row(rows), (x, LEAST_NORM, out, rows, columns)) }?)
    }
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
