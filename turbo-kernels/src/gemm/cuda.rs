//! Products on a GPU: by cuBLASLt, followed by kernels of other families for the steps that it does not do.
//!
//! Bias, residual and two activations are part of the product; for cuBLASLt's intermediate roundings see [`Epilogue`].
//! Other activations, gates and norms follow as separate kernels, so the sum before them is stored, and rounded, too.

use std::marker::PhantomData;

use super::{
    Epilogue, Gemm,
    at_once::{COLUMNS, MOST_PRODUCTS, products_at_once},
};
use crate::{
    Activation, BiasAct, DType, Experts, FeedForward, Hidden, KernelError, Layout, Norm, Pooling,
    cuda::{
        Address, Cuda, CudaBlock, CudaQueue, CudaView, CudaViewMut, FloatType, Matrices, Product, sequences,
    },
    device::{Device, DeviceError, Float},
    matmul::Rhs,
    norm::NormWeights,
    pool,
};

/// A weight as checkpoints store it, `[out_features, in_features]`, rounded to the device's type.
#[derive(Debug)]
pub struct CudaWeight<F> {
    values: CudaBlock,
    out_features: usize,
    in_features: usize,
    /// A block alone would hand out its values as any type.
    float: PhantomData<F>,
}

impl<F: Float> CudaWeight<F> {
    /// The numbers of results and inputs.
    fn features(&self) -> [usize; 2] {
        [self.out_features, self.in_features]
    }

    /// The weights of the results from number `first` on.
    fn behind(&self, first: usize) -> Result<CudaView<'_, F>, DeviceError> {
        let values = self.values.view(0, self.out_features * self.in_features)?;
        Ok(values.behind(first * self.in_features))
    }
}

impl<F: Float> Gemm for Cuda<F> {
    type Weight = CudaWeight<F>;

    const EXPERTS_APART: bool = false;

    fn dtypes(&self) -> &'static [DType] {
        // values that are already bf16 suit both
        if FloatType::of::<F>() == FloatType::Bf16 { &[DType::F32, DType::Bf16] } else { &[DType::F32] }
    }

    fn pack(
        &self,
        weight: &[f32],
        out_features: usize,
        in_features: usize,
        dtype: DType,
    ) -> Result<CudaWeight<F>, KernelError> {
        const NAME: &str = "pack";
        KernelError::check_length(NAME, "weight", out_features.saturating_mul(in_features), weight.len())?;
        if !self.dtypes().contains(&dtype) {
            let why = format!("{} multiplies what it stores, not {dtype}", self.name());
            return Err(DeviceError::Failed { what: NAME, why }.into());
        }
        let values: Vec<F> = weight.iter().map(|value| F::from_f32(*value)).collect();
        Ok(CudaWeight { values: self.constants(&values)?, out_features, in_features, float: PhantomData })
    }

    fn image<'w>(&self, _: &'w CudaWeight<F>) -> Option<&'w [u8]> {
        None
    }

    fn restore(&self, _: &[u8], _: usize, _: usize, _: DType) -> Result<CudaWeight<F>, KernelError> {
        let why = "a GPU gives no images away".to_owned();
        Err(DeviceError::Failed { what: "restore", why }.into())
    }

    fn packing(&self, _: DType) -> String {
        format!("cuda-{}", F::NAME)
    }

    fn gemm(
        &self,
        queue: &mut CudaQueue,
        x: CudaView<'_, F>,
        weight: &CudaWeight<F>,
        epilogue: Epilogue<CudaView<'_, F>>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        epilogue.check("gemm", weight.features(), &x, &out)?;
        self.linear(queue, x, weight, epilogue, out)
    }

    fn gemm_norm(
        &self,
        queue: &mut CudaQueue,
        x: CudaView<'_, F>,
        weight: &CudaWeight<F>,
        bias: Option<CudaView<'_, F>>,
        residual: Option<CudaView<'_, F>>,
        norm: NormWeights<CudaView<'_, F>>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        const NAME: &str = "gemm_norm";
        norm.fits(NAME, weight.out_features)?;
        let epilogue = Epilogue::sum(bias, residual);
        epilogue.check(NAME, weight.features(), &x, &out)?;
        self.linear_norm(queue, x, weight, epilogue, norm, out)
    }

    fn feed_forward(
        &self,
        queue: &mut CudaQueue,
        x: CudaView<'_, F>,
        layer: FeedForward<'_, CudaWeight<F>, CudaView<'_, F>>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        let rows = layer.check([layer.up.features(), layer.down.features()], &x, &out)?;
        let FeedForward { up, up_bias, hidden, down, down_bias, residual, norm } = layer;
        let last = Epilogue::sum(down_bias, residual);
        let to_out = |queue: &mut CudaQueue, hidden: CudaView<'_, F>| match norm {
            Some(norm) => self.linear_norm(queue, hidden, down, last, norm, out),
            None => self.linear(queue, hidden, down, last, out),
        };
        queue.with_scratch(rows * up.out_features, |queue, mut wide| match hidden {
            Hidden::Activation(activation) => {
                let first = up_bias.map_or(Epilogue::Act(activation), |b| Epilogue::BiasAct(b, activation));
                self.linear(queue, x, up, first, wide.reborrow())?;
                to_out(queue, wide.as_view())
            }
            Hidden::Gate(activation) => {
                self.linear(queue, x, up, Epilogue::sum(up_bias, None), wide.reborrow())?;
                queue.with_scratch(rows * down.in_features, |queue, mut gated| {
                    let columns = down.in_features;
                    self.gate(queue, activation, wide.as_view(), columns, gated.reborrow())?;
                    to_out(queue, gated.as_view())
                })
            }
        })
    }

    fn experts(
        &self,
        queue: &mut CudaQueue,
        x: CudaView<'_, F>,
        logits: CudaView<'_, F>,
        layer: Experts<'_, CudaWeight<F>>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        let rows = layer.check(1, CudaWeight::<F>::features, &x, &logits, &out)?;
        let Experts { routing, up, activation, down } = layer;
        queue.with_scratch(rows * up[0].out_features, |queue, mut wide| {
            self.linear(queue, x, &up[0], Epilogue::Act(activation), wide.reborrow())?;
            let (activated, weighted) = wide.in_place();
            self.weigh_experts(queue, activated, logits, routing, weighted)?;
            self.linear(queue, wide.as_view(), &down[0], Epilogue::None, out)
        })
    }

    fn gemm_max_pool(
        &self,
        queue: &mut CudaQueue,
        layout: Layout<CudaView<'_, u32>>,
        x: CudaView<'_, F>,
        weight: &CudaWeight<F>,
        bias: Option<CudaView<'_, F>>,
        mut out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        const NAME: &str = "gemm_max_pool";
        let [n, k] = weight.features();
        let sequences = sequences::of_layout(NAME, layout)?;
        let rows = sequences.check_rows(NAME, "x", k, x.len())?;
        KernelError::check_length(NAME, "out", (sequences.batch_size as usize).saturating_mul(n), out.len())?;
        bias.map_or(Ok(()), |bias| KernelError::check_length(NAME, "bias", n, bias.len()))?;
        if out.len() == 0 {
            return Ok(());
        }
        let most = columns_at_once(rows as usize, n);
        queue.with_scratch(products_at_once(rows as usize, n), |queue, products| {
            for first in (0..n).step_by(most) {
                let columns = most.min(n - first);
                let product = Product {
                    bias: bias.map_or(Address::NULL, |bias| bias.behind(first).address()),
                    ..self.product_of(x, weight.behind(first)?, [rows as usize, columns, k], &products)
                };
                // SAFETY: the weight and the bias have `columns` results from `first` on, x and products `rows` rows.
                unsafe { queue.product(&product) }?;
                let (products, out) = (products.as_view(), out.reborrow().behind(first));
                // SAFETY: there are `rows` rows of products, and a row of `n` results for each sequence.
                unsafe {
                    pool::cuda::launch(queue, Pooling::Max, sequences, rows, products, columns, out, n)
                }?;
            }
            Ok(())
        })
    }
}

/// The number of columns whose products of `rows` rows exist at once.
fn columns_at_once(rows: usize, out_features: usize) -> usize {
    let fit = MOST_PRODUCTS / rows.max(1) / COLUMNS * COLUMNS;
    fit.clamp(COLUMNS, out_features.next_multiple_of(COLUMNS))
}

impl<F: Float> Cuda<F> {
    /// A product whose buffers all fit.
    fn linear(
        &self,
        queue: &mut CudaQueue,
        x: CudaView<'_, F>,
        weight: &CudaWeight<F>,
        epilogue: Epilogue<CudaView<'_, F>>,
        mut out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        let [n, k] = weight.features();
        if out.len() == 0 {
            return Ok(());
        }
        let (bias, activation, residual) = epilogue.parts();
        let product = Product {
            bias: bias.map_or(Address::NULL, |bias| bias.address()),
            activation: activation.filter(is_in_product),
            add: residual.map(|residual| rows_of(residual.address(), n)),
            ..self.product_of(x, weight.behind(0)?, [out.len() / n, n, k], &out)
        };
        // SAFETY: all buffers fit the sizes; `out` is borrowed exclusively.
        unsafe { queue.product(&product) }?;
        match activation.filter(|activation| !is_in_product(activation)) {
            Some(activation) => {
                let (sums, out) = out.in_place();
                self.activate(queue, sums, activation, out)
            }
            None => Ok(()),
        }
    }

    /// `y = x · wᵀ` and nothing else; `y` begins as `[m, n]`.
    fn product_of(
        &self,
        x: CudaView<'_, F>,
        w: CudaView<'_, F>,
        [m, n, k]: [usize; 3],
        y: &CudaViewMut<'_, F>,
    ) -> Product {
        let float = FloatType::of::<F>();
        Product {
            input: float,
            output: float,
            batch: 1,
            m,
            n,
            k,
            x: rows_of(x.address(), k),
            w: rows_of(w.address(), k),
            w_order: Rhs::Transposed,
            y: rows_of(y.address(), n),
            bias: Address::NULL,
            activation: None,
            add: None,
            tf32: self.tf32(),
        }
    }

    /// A product and the norm of its rows, with buffers that all fit.
    fn linear_norm(
        &self,
        queue: &mut CudaQueue,
        x: CudaView<'_, F>,
        weight: &CudaWeight<F>,
        epilogue: Epilogue<CudaView<'_, F>>,
        norm: NormWeights<CudaView<'_, F>>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        // The residual is added in the product, which has time for it, so the norm reads one value less for each.
        queue.with_scratch(out.len(), |queue, mut sums| {
            self.linear(queue, x, weight, epilogue, sums.reborrow())?;
            self.layer_norm(queue, sums.as_view(), norm, out)
        })
    }
}

/// One matrix, whose rows are `row_stride` values apart.
fn rows_of(first: Address, row_stride: usize) -> Matrices {
    Matrices { first, row_stride, batch_stride: 0 }
}

/// Whether every driver computes the activation as part of the product.
fn is_in_product(activation: &Activation) -> bool {
    matches!(activation, Activation::GeluTanh | Activation::Relu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cuda::on_every_emulator, suite};

    #[test]
    fn agrees_with_the_twin() {
        on_every_emulator!(check);
    }

    fn check<D: Gemm>(device: &D) {
        suite::gemm(device);
        suite::feed_forward(device);
        suite::experts(device);
        suite::max_pool(device);
    }

    #[test]
    fn products_at_once_fit_and_begin_at_lines() {
        let most = MOST_PRODUCTS / COLUMNS;
        for (rows, want) in
            [(0, 128), (1, 128), (most / 2, 128), (most / 2 + 1, 64), (most, 64), (5 * most, 64)]
        {
            assert_eq!(columns_at_once(rows, 101), want, "{rows} rows");
        }
        assert_eq!(columns_at_once(1, 1), COLUMNS);
    }

    #[test]
    fn room_for_products_grows_with_rows() {
        for out_features in [1, 64, 65, 101, 1000, 30_522] {
            let mut before = 0;
            for rows in 0..200 {
                let room = products_at_once(rows, out_features);
                assert!(room >= before, "{rows} rows of {out_features} take {room}, fewer {before}");
                assert!(room >= rows * columns_at_once(rows, out_features), "{rows} rows of {out_features}");
                before = room;
            }
        }
    }
}
