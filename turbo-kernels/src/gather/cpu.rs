//! Copies of rows on the CPU.

use super::{Gather, HeadShape};
use crate::{
    KernelError,
    device::{Cpu, CpuQueue, SharedMut},
    matmul::HeadStrides,
};

/// Values of one piece: 128 KiB in and out, some ten microseconds.
const PIECE: usize = 16 * 1024;

impl Gather for Cpu {
    fn copy_heads(
        &self,
        queue: &mut CpuQueue,
        shape: HeadShape,
        (from, from_at): (&[f32], HeadStrides),
        (to, to_at): (&mut [f32], HeadStrides),
    ) -> Result<(), KernelError> {
        const KERNEL: &str = "copy_heads";
        let HeadShape { batch_size, num_heads, rows, head_dim } = shape;
        let sizes = [batch_size, num_heads, rows, head_dim];
        from_at.check_inside(KERNEL, "from", sizes, from.len())?;
        to_at.check_inside(KERNEL, "to", sizes, to.len())?;
        to_at.check_apart(KERNEL, "to strides", sizes)?;
        if sizes.contains(&0) {
            return Ok(());
        }
        let total = batch_size * num_heads * rows;
        let per_piece = (PIECE / head_dim).max(1);
        let to = SharedMut::new(to);
        Ok(queue.for_each_piece(total.div_ceil(per_piece), 0, |piece, _| {
            for number in piece * per_piece..total.min((piece + 1) * per_piece) {
                let (b, h, i) = (number / (num_heads * rows), number / rows % num_heads, number % rows);
                // SAFETY: `check_apart` gave every value an element of its own, and each row is copied once.
                let to = unsafe { to.slice(to_at.row(b, h, i), head_dim) };
                to.copy_from_slice(&from[from_at.row(b, h, i)..][..head_dim]);
            }
        })?)
    }
}
