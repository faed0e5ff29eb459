//! Norms on a GPU: rows stay in registers if they begin at multiples of 16 bytes, and are streamed otherwise.

use super::{Norm, NormWeights};
use crate::{
    Columns, HeadSizes, KernelError,
    cuda::{
        Cuda, CudaQueue, CudaView, CudaViewMut, Family, Kernel, LaunchShape, Reduction, RowKernel, blocks,
        count, family, is_wide, named, row_kernels, size,
    },
    device::Float,
};

pub(crate) static FAMILY: Family = family!("norm", "row.cuh", "norm.cu");

/// Other rows go to `layer_norm_…_any`.
static LAYER_NORM: [RowKernel; 10] = row_kernels! { "layer_norm":
    "_128", 128, 16, 2, 128;
    "_512_x1", 512, 32, 1, 128;
    "_512_x2", 512, 32, 2, 128;
    "_512_x4", 512, 32, 4, 128;
    "_768_x1", 768, 32, 1, 128;
    "_768_x2", 768, 32, 2, 128;
    "_1024_x1", 1024, 32, 1, 128;
    "_1024_x2", 1024, 32, 2, 128;
    "_2048", 2048, 256, 1, 256;
    "_4096", 4096, 256, 1, 256;
};

static CLASSIC: [RowKernel; 1] = row_kernels! { "layer_norm": "_classic", 1024, 1024, 1, 1024; };

/// Other rows go to `rms_norm_…_any`.
static RMS_NORM: [RowKernel; 4] = row_kernels! { "rms_norm":
    "_64", 64, 8, 2, 128;
    "_128", 128, 16, 2, 128;
    "_1024", 1024, 32, 1, 128;
    "_4096", 4096, 256, 1, 256;
};

/// Threads of a block that streams a row.
const STREAMING: u32 = 256;

impl<F: Float> Norm for Cuda<F> {
    fn layer_norm(
        &self,
        queue: &mut CudaQueue,
        x: CudaView<'_, F>,
        weights: NormWeights<CudaView<'_, F>>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        let sum = Sum { x, bias: None, residual: None }.checked("layer_norm", weights, out)?;
        let chosen = sum.chosen();
        sum.normalize(queue, chosen)
    }

    fn bias_residual_layer_norm(
        &self,
        queue: &mut CudaQueue,
        x: CudaView<'_, F>,
        bias: Option<CudaView<'_, F>>,
        residual: CudaView<'_, F>,
        weights: NormWeights<CudaView<'_, F>>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        const NAME: &str = "bias_residual_layer_norm";
        let sum = Sum { x, bias, residual: Some(residual) }.checked(NAME, weights, out)?;
        let chosen = sum.chosen();
        sum.normalize(queue, chosen)
    }

    fn rms_norm(
        &self,
        queue: &mut CudaQueue,
        x: CudaView<'_, F>,
        gain: CudaView<'_, F>,
        epsilon: f32,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        const NAME: &str = "rms_norm";
        KernelError::check_rows(NAME, "x", gain.len(), x.len())?;
        KernelError::check_length(NAME, "out", x.len(), out.len())?;
        let heads = HeadSizes { num_heads: 1, head_dim: gain.len() };
        self.rms_norm_of_heads(queue, NAME, heads, Columns::all(x, gain.len()), gain, epsilon, out)
    }

    fn head_rms_norm(
        &self,
        queue: &mut CudaQueue,
        heads: HeadSizes,
        x: Columns<CudaView<'_, F>>,
        gain: CudaView<'_, F>,
        epsilon: f32,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        const NAME: &str = "head_rms_norm";
        let rows = KernelError::check_rows(NAME, "out", heads.width(), out.len())?;
        x.check_values(NAME, "x", rows, heads.width(), x.rows.len())?;
        KernelError::check_length(NAME, "gain", heads.head_dim, gain.len())?;
        self.rms_norm_of_heads(queue, NAME, heads, x, gain, epsilon, out)
    }
}

impl<F: Float> Cuda<F> {
    /// `out = layer_norm(x)`, reduced by `reduction`, to compare reductions.
    ///
    /// # Errors
    /// [`KernelError::Length`]; [`KernelError::Size`] for rows longer than such a reduction takes, and for batched rows
    /// that do not begin at multiples of 16 bytes.
    pub fn layer_norm_by(
        &self,
        queue: &mut CudaQueue,
        reduction: Reduction,
        x: CudaView<'_, F>,
        weights: NormWeights<CudaView<'_, F>>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        const NAME: &str = "layer_norm_by";
        let sum = Sum { x, bias: None, residual: None }.checked(NAME, weights, out)?;
        if !sum.is_wide && reduction != Reduction::Classic {
            let (argument, expected) = ("columns", "rows of whole 16 bytes".into());
            return Err(KernelError::Size { kernel: NAME, argument, expected, got: sum.columns as usize });
        }
        let kernel = RowKernel::by(NAME, reduction, &LAYER_NORM, &CLASSIC, sum.columns as usize)?;
        sum.normalize(queue, Some(kernel))
    }

    /// An RMS norm with checked arguments.
    #[allow(clippy::too_many_arguments)]
    fn rms_norm_of_heads(
        &self,
        queue: &mut CudaQueue,
        name: &'static str,
        heads: HeadSizes,
        x: Columns<CudaView<'_, F>>,
        gain: CudaView<'_, F>,
        epsilon: f32,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        if out.len() == 0 {
            return Ok(());
        }
        let HeadSizes { num_heads, head_dim } = heads;
        let first = x.rows.behind(x.first);
        let rows = count(name, "rows", out.len() / head_dim)?;
        let wide = is_wide::<F>(head_dim, [first.address(), gain.address(), out.address()])
            && is_wide::<F>(x.row_stride, []);
        let chosen = RowKernel::choose(&RMS_NORM, head_dim).filter(|_| wide);
        let (kernel, shape) = kernel_and_shape::<F>(chosen, named!(F, "rms_norm", "_any"), rows);
        let args = (
            first,
            size(name, "num_heads", num_heads)?,
            size(name, "row_stride", x.row_stride)?,
            gain,
            epsilon,
            out,
            rows,
            count(name, "head_dim", head_dim)?,
        );
        // SAFETY: x was checked to hold `rows` heads at these strides, gain one head, and out all heads side by side.
        Ok(unsafe { queue.launch(kernel, shape, args) }?)
    }
}

/// The input of a layer norm.
struct Sum<'a, F: Float> {
    x: CudaView<'a, F>,
    bias: Option<CudaView<'a, F>>,
    residual: Option<CudaView<'a, F>>,
}

/// A layer norm whose buffers fit each other.
struct CheckedSum<'a, F: Float> {
    sum: Sum<'a, F>,
    weights: NormWeights<CudaView<'a, F>>,
    out: CudaViewMut<'a, F>,
    rows: u32,
    columns: u32,
    /// Whether every row begins at a multiple of 16 bytes.
    is_wide: bool,
}

impl<'a, F: Float> Sum<'a, F> {
    fn checked(
        self,
        name: &'static str,
        weights: NormWeights<CudaView<'a, F>>,
        out: CudaViewMut<'a, F>,
    ) -> Result<CheckedSum<'a, F>, KernelError> {
        let hidden_size = weights.gain.len();
        weights.fits(name, hidden_size)?;
        let rows = KernelError::check_rows(name, "x", hidden_size, self.x.len())?;
        KernelError::check_length(name, "out", self.x.len(), out.len())?;
        let bias = self.bias.map_or(hidden_size, |bias| bias.len());
        KernelError::check_length(name, "bias", hidden_size, bias)?;
        let residual = self.residual.map_or(self.x.len(), |residual| residual.len());
        KernelError::check_length(name, "residual", self.x.len(), residual)?;
        let optional = [self.bias, self.residual, weights.offset];
        let views = [self.x, weights.gain].into_iter().chain(optional.into_iter().flatten());
        let addresses = views.map(|view| view.address()).chain([out.address()]);
        Ok(CheckedSum {
            rows: count(name, "rows", rows)?,
            columns: count(name, "columns", hidden_size)?,
            is_wide: is_wide::<F>(hidden_size, addresses),
            sum: self,
            weights,
            out,
        })
    }
}

impl<F: Float> CheckedSum<'_, F> {
    /// The kernel for rows in registers, if there is one.
    fn chosen(&self) -> Option<RowKernel> {
        RowKernel::choose(&LAYER_NORM, self.columns as usize).filter(|_| self.is_wide).copied()
    }

    /// Normalises with `in_registers`, which takes such rows, or streams the rows.
    fn normalize(self, queue: &mut CudaQueue, in_registers: Option<RowKernel>) -> Result<(), KernelError> {
        let Self { sum: Sum { x, bias, residual }, weights, out, rows, columns, .. } = self;
        let NormWeights { gain, offset, epsilon } = weights;
        let (kernel, shape) =
            kernel_and_shape::<F>(in_registers.as_ref(), named!(F, "layer_norm", "_any"), rows);
        let args = (x, bias, residual, gain, offset, epsilon, out, rows, columns);
        // SAFETY: x, residual and out hold `rows` rows of `columns` values; bias, gain and offset hold one.
        Ok(unsafe { queue.launch(kernel, shape, args) }?)
    }
}

/// `in_registers`, or else `streaming` with a block for each row.
fn kernel_and_shape<F: Float>(
    in_registers: Option<&RowKernel>,
    streaming: &'static str,
    rows: u32,
) -> (Kernel, LaunchShape) {
    match in_registers {
        Some(kernel) => (kernel.kernel::<F>(&FAMILY), kernel.shape(rows)),
        None => (Kernel { module: FAMILY.of::<F>(), name: streaming }, blocks(rows, STREAMING)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cuda::{
            on_emulator::{all, answer, upload},
            on_every_emulator,
        },
        device::Device,
        suite::{self, aligned},
    };

    #[test]
    fn agrees_with_the_twin() {
        on_every_emulator!(check);
    }

    fn check<D: Norm>(device: &D) {
        suite::norm(device);
        aligned(|| suite::norm(device));
    }

    #[test]
    fn wide_rows_agree_with_the_twin() {
        on_every_emulator!(check_wide);
    }

    fn check_wide<D: Norm>(device: &D) {
        suite::norm::wide_rows(device);
        aligned(|| suite::norm::wide_rows(device));
    }

    #[test]
    fn all_reductions_agree() {
        on_every_emulator!(check_reductions);
    }

    /// Rows of every length class, with one row too many for a group. A row's bits do not depend on the rows that it is
    /// reduced with.
    fn check_reductions<F: Float>(device: &Cuda<F>) {
        const ROWS: usize = 33;
        let mut queue = device.queue().unwrap();
        for columns in [24, 200, 512, 760, 1000] {
            let len = ROWS * columns;
            let values: Vec<F> =
                (0..len).map(|i| F::from_f32((i * 7919 % 801) as f32 / 100.0 - 4.0)).collect();
            let x = upload(device, &mut queue, &values);
            let mut normalize = |reduction| {
                answer(device, &mut queue, len, |queue, out| {
                    let [gain, offset] =
                        [0, 1].map(|row| x.view(row * columns * size_of::<F>(), columns).unwrap());
                    let weights = NormWeights { gain, offset: Some(offset), epsilon: 1e-5 };
                    device.layer_norm_by(queue, reduction, all(&x, len), weights, out).unwrap();
                })
            };
            let want = normalize(Reduction::Batched(1));
            for rows in [2, 4] {
                assert_eq!(normalize(Reduction::Batched(rows)), want, "{columns} columns, {rows} rows");
            }
            for (got, want) in normalize(Reduction::Classic).into_iter().zip(&want) {
                // values of up to 12: sums in another order, and the rounding of what is stored on both sides
                let allowed = want.abs() * 2.0 * F::ROUNDING as f32 + 1e-5;
                assert!((got - want).abs() <= allowed, "{columns} columns: {got}, {want}");
            }
        }
    }
}
