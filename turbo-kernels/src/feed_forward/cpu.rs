//! The two products of a feed-forward layer on the CPU, per block of rows.

use super::{FeedForward, Hidden};
use crate::{
    BiasAct, Epilogue, Gemm, KernelError,
    device::{Cpu, CpuQueue},
    gemm::PackedWeight,
    norm::NormWeights,
};

const NAME: &str = "feed_forward";
/// Values of the first product that are alive at once: a share of the caches.
const HIDDEN_VALUES: usize = 256 << 10;

pub(crate) fn feed_forward(
    cpu: &Cpu,
    queue: &mut CpuQueue,
    x: &[f32],
    layer: FeedForward<'_, PackedWeight, &[f32]>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    layer.check(x, out)?;
    let FeedForward { up, up_bias, hidden, down, down_bias, residual, norm } = layer;
    let (n, k, wide) = (down.out_features(), up.in_features(), up.out_features());
    let rows_of_block = (HIDDEN_VALUES / (2 * wide).max(1)).max(1);
    let mut values = queue.take_hidden(rows_of_block * (wide + down.in_features()))?;
    let (raw, gated) = values
        .view_mut::<f32>(0, rows_of_block * (wide + down.in_features()))?
        .split_at_mut(rows_of_block * wide);
    let mut first = 0;
    for out in out.chunks_mut((rows_of_block * n).max(1)) {
        let rows = out.len() / n;
        let x = &x[first * k..][..rows * k];
        let raw = &mut raw[..rows * wide];
        let input: &[f32] = match hidden {
            Hidden::Activation(activation) => {
                let epilogue =
                    up_bias.map_or(Epilogue::Act(activation), |bias| Epilogue::BiasAct(bias, activation));
                cpu.gemm(queue, x, up, epilogue, raw)?;
                raw
            }
            Hidden::Gate(activation) => {
                cpu.gemm(queue, x, up, up_bias.map_or(Epilogue::None, Epilogue::Bias), raw)?;
                let gated = &mut gated[..rows * down.in_features()];
                cpu.gate(queue, activation, raw, down.in_features(), gated)?;
                gated
            }
        };
        let residual = residual.map(|residual| &residual[first * n..][..rows * n]);
        match norm {
            Some(norm) => cpu.gemm_norm(queue, input, down, down_bias, residual, norm, out)?,
            None => cpu.gemm(queue, input, down, Epilogue::sum(down_bias, residual), out)?,
        }
        first += rows;
    }
    queue.give_hidden(values);
    Ok(())
}

impl FeedForward<'_, PackedWeight, &[f32]> {
    /// Everything fits `x` and `out`.
    fn check(&self, x: &[f32], out: &[f32]) -> Result<(), KernelError> {
        let (n, k) = (self.down.out_features(), self.up.in_features());
        let length = |argument, expected, got: Option<&[f32]>| {
            got.map_or(Ok(()), |got| KernelError::check_length(NAME, argument, expected, got.len()))
        };
        let wide = self.hidden.up_features(self.down.in_features());
        if self.up.out_features() != wide {
            return Err(KernelError::Size {
                kernel: NAME,
                argument: "out_features of up",
                expected: match self.hidden {
                    Hidden::Activation(_) => "in_features of down",
                    Hidden::Gate(_) => "twice in_features of down",
                },
                got: self.up.out_features(),
            });
        }
        let rows = KernelError::check_rows(NAME, "out", n, out.len())?;
        KernelError::check_length(NAME, "x", rows.saturating_mul(k), x.len())?;
        length("up_bias", wide, self.up_bias)?;
        length("down_bias", n, self.down_bias)?;
        length("residual", out.len(), self.residual)?;
        self.norm.map_or(Ok(()), |norm: NormWeights<&[f32]>| norm.fits(NAME, n))
    }
}
