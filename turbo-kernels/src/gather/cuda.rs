//! Copies of rows on a GPU.

use super::{Gather, HeadShape};
use crate::{
    KernelError,
    cuda::{Cuda, CudaQueue, CudaView, CudaViewMut, Family, Kernel, blocks, count, family, named, size},
    device::Float,
    matmul::HeadStrides,
};

pub(crate) static FAMILY: Family = family!("gather", "gather.cu");

const NAME: &str = "copy_heads";

/// Threads of a block, and rows that each copies, as in `gather.cu`.
const THREADS: u32 = 256;
const ROWS_OF_BLOCK: u32 = THREADS / 8 * 4;

impl<F: Float> Gather for Cuda<F> {
    fn copy_heads(
        &self,
        queue: &mut CudaQueue,
        shape: HeadShape,
        (from, from_at): (CudaView<'_, F>, HeadStrides),
        (to, to_at): (CudaViewMut<'_, F>, HeadStrides),
    ) -> Result<(), KernelError> {
        let HeadShape { batch_size, num_heads, rows, head_dim } = shape;
        let sizes = [batch_size, num_heads, rows, head_dim];
        from_at.check_inside(NAME, "from", sizes, from.len())?;
        to_at.check_inside(NAME, "to", sizes, to.len())?;
        to_at.check_apart(NAME, "to strides", sizes)?;
        if sizes.contains(&0) {
            return Ok(());
        }
        let total = count(NAME, "rows", batch_size.saturating_mul(num_heads).saturating_mul(rows))?;
        let (from_strides, to_strides) = (strides(from_at, sizes)?, strides(to_at, sizes)?);
        let args = (
            from.behind(from_at.first),
            from_strides[0],
            from_strides[1],
            from_strides[2],
            to.behind(to_at.first),
            to_strides[0],
            to_strides[1],
            to_strides[2],
            total,
            size(NAME, "num_heads", num_heads)?,
            size(NAME, "rows", rows)?,
            count(NAME, "head_dim", head_dim)?,
        );
        let kernel = Kernel { module: FAMILY.of::<F>(), name: named!(F, "copy_heads") };
        // SAFETY: both tensors lie inside their views, and no two values of `to` share an element.
        Ok(unsafe { queue.launch(kernel, blocks(total.div_ceil(ROWS_OF_BLOCK), THREADS), args) }?)
    }
}

/// The strides from one sequence, head and row to the next; 0 where there is no next one, so that it does not affect
/// alignment.
fn strides(at: HeadStrides, [batch_size, num_heads, rows, _]: [usize; 4]) -> Result<[u32; 3], KernelError> {
    let stride = |argument, stride, count| if count > 1 { size(NAME, argument, stride) } else { Ok(0) };
    Ok([
        stride("batch_stride", at.batch_stride, batch_size)?,
        stride("head_stride", at.head_stride, num_heads)?,
        stride("row_stride", at.row_stride, rows)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cuda::on_every_emulator,
        suite::{self, aligned},
    };

    #[test]
    fn strides_that_lead_nowhere_do_not_count() {
        let at = HeadStrides { first: 0, batch_stride: usize::MAX, head_stride: 3, row_stride: 7 };
        assert_eq!(strides(at, [1, 1, 2, 8]).unwrap(), [0, 0, 7]);
        assert!(strides(at, [2, 1, 2, 8]).is_err());
    }

    #[test]
    fn every_value_arrives() {
        on_every_emulator!(check);
    }

    fn check<D: Gather>(device: &D) {
        suite::gather(device);
        aligned(|| suite::gather(device));
    }
}
