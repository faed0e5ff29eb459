//! The greatest product of each sequence on the CPU: the tiles and panels of a product, whose values are folded into
//! the result as they leave the registers.
//!
//! A sequence may lie in several groups of tiles, so groups are done one after another, each by all threads, which
//! divide the panels among them. The bias is added at the end: adding one number rounds greater sums to greater
//! results, so the greatest sum plus the bias is the greatest result, to the bit.

use super::{cpu::product_in_order, finish::KeepGreatest, packed_weight::PackedWeight};
use crate::{
    KernelError, Layout,
    device::{CpuQueue, SharedMut},
    sequences::Sequences,
};

const NAME: &str = "gemm_max_pool";

pub(super) fn gemm_max_pool(
    queue: &mut CpuQueue,
    layout: Layout<&[u32]>,
    x: &[f32],
    weight: &PackedWeight,
    bias: Option<&[f32]>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    let out_features = weight.out_features();
    let sequences = Sequences::checked(NAME, layout, "x", weight.in_features(), x.len())?;
    KernelError::check_length(NAME, "out", sequences.len().saturating_mul(out_features), out.len())?;
    bias.map_or(Ok(()), |bias| KernelError::check_length(NAME, "bias", out_features, bias.len()))?;
    if out.is_empty() {
        return Ok(());
    }
    out.fill(f32::NEG_INFINITY);
    if sequences.rows() > 0 {
        let finish = KeepGreatest { out_features, sequences, out: SharedMut::new(out) };
        product_in_order(queue, x, sequences.rows(), weight, finish)?;
    }
    Ok(queue.for_each_chunk(out, out_features, 0, |b, out, _| {
        if sequences.tokens(b).is_empty() {
            out.fill(0.0);
        } else if let Some(bias) = bias {
            out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
        }
    })?)
}
