//! Rotary positions on a GPU: a warp for each row.

use super::Rotary;
use crate::{
    Columns, HeadSizes, KernelError, Layout,
    cuda::{
        Cuda, CudaQueue, CudaView, CudaViewMut, Family, Kernel, count, family, named, sequences, size,
        warp_to_a_row,
    },
    device::Float,
};

pub(crate) static FAMILY: Family = family!("rotary", "../sequences.cuh", "rotary.cu");

const NAME: &str = "rotary";

/// Rows at positions beyond the end of the table become NaN: sequence lengths are known only on the device.
impl<F: Float> Rotary for Cuda<F> {
    fn rotary(
        &self,
        queue: &mut CudaQueue,
        heads: HeadSizes,
        layout: Layout<CudaView<'_, u32>>,
        x: Columns<CudaView<'_, F>>,
        table: CudaView<'_, F>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        let HeadSizes { num_heads, head_dim } = heads;
        if head_dim % 2 != 0 {
            let (argument, expected) = ("head_dim", "an even number".into());
            return Err(KernelError::Size { kernel: NAME, argument, expected, got: head_dim });
        }
        let sequences = sequences::of_layout(NAME, layout)?;
        let rows = sequences.check_rows(NAME, "out", heads.width(), out.len())?;
        x.check_values(NAME, "x", rows as usize, heads.width(), x.rows.len())?;
        let positions = KernelError::check_rows(NAME, "table", head_dim, table.len())?;
        if out.len() == 0 {
            return Ok(());
        }
        count(NAME, "columns", heads.width())?;
        let args = (
            x.rows.behind(x.first),
            size(NAME, "row_stride", x.row_stride)?,
            table,
            size(NAME, "positions", positions)?,
            out,
            sequences.lengths,
            sequences.batch_size,
            sequences.padded_len,
            rows,
            size(NAME, "num_heads", num_heads)?,
            size(NAME, "head_dim", head_dim)?,
        );
        let kernel = Kernel { module: FAMILY.of::<F>(), name: named!(F, "rotary") };
        // SAFETY: x and out hold `rows` rows, the table `positions`, and the kernel uses only rows that exist.
        Ok(unsafe { queue.launch(kernel, warp_to_a_row(rows), args) }?)
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

    fn check<D: Rotary>(device: &D) {
        suite::rotary(device);
        aligned(|| suite::rotary(device));
    }
}
