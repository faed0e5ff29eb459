//! The greatest values on a GPU: a warp for a short row, a block for a long one.

use super::{NAME, TopK, checked_rows};
use crate::{
    KernelError,
    cuda::{
        Cuda, CudaQueue, CudaView, CudaViewMut, Family, Kernel, LaunchShape, blocks, count, family, named,
    },
    device::Float,
};

pub(crate) static FAMILY: Family = family!("topk", "topk.cu");

/// Rows of up to this many columns have a single warp: some steps of 16 bytes for each lane.
const COLUMNS_OF_WARP: usize = 2048;

impl<F: Float> TopK for Cuda<F> {
    fn top_k(
        &self,
        queue: &mut CudaQueue,
        x: CudaView<'_, F>,
        columns: usize,
        k: usize,
        values: CudaViewMut<'_, F>,
        indices: CudaViewMut<'_, u32>,
    ) -> Result<(), KernelError> {
        let rows = count(NAME, "rows", checked_rows(&x, columns, k, &values, &indices)?)?;
        if k == 0 {
            return Ok(());
        }
        let by_warp = columns <= COLUMNS_OF_WARP;
        let name = if by_warp { named!(F, "top_k", "_warp") } else { named!(F, "top_k") };
        let args = (x, values, indices, rows, count(NAME, "columns", columns)?, k as u32);
        // SAFETY: x holds `rows` rows of `columns` values, at least k of them; the outputs hold k for each row.
        Ok(unsafe { queue.launch(Kernel { module: FAMILY.of::<F>(), name }, shape(rows, by_warp), args) }?)
    }
}

fn shape(rows: u32, by_warp: bool) -> LaunchShape {
    if by_warp { blocks(rows.div_ceil(4), 128) } else { blocks(rows, 1024) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cuda::on_every_emulator,
        suite::{self, aligned},
    };

    #[test]
    fn agrees_with_a_sort() {
        on_every_emulator!(check);
    }

    fn check<D: TopK>(device: &D) {
        suite::top_k(device);
        aligned(|| suite::top_k(device));
    }

    #[test]
    fn short_rows_share_blocks() {
        assert_eq!(shape(9, true), blocks(3, 128));
        assert_eq!(shape(9, false), blocks(9, 1024));
    }
}
