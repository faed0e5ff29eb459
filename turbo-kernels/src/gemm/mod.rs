//! `out = epilogue(x · weightᵀ)` with constant weights, packed once.

mod at_once;
mod bf16;
mod blocks;
mod cpu;
#[cfg(any(feature = "cuda", feature = "testing", test))]
mod cuda;
mod even_tiles;
mod finish;
mod format;
mod int8;
mod max_pool;
#[cfg(test)]
mod narrow_tests;
mod pack;
mod packed_weight;
mod rows;
mod sizes;
#[cfg(test)]
mod test_products;
mod tile;
mod tile_registers;
mod words;

pub use at_once::products_at_once;
pub(crate) use blocks::{Block, Blocks};
pub(crate) use cpu::{features, row_of};
#[cfg(any(feature = "cuda", feature = "testing", test))]
pub use cuda::CudaWeight;
pub(crate) use even_tiles::{EvenTiles, TileRanges};
pub(crate) use finish::{Halves, Store, activate, activate_in_place};
pub(crate) use format::{F32, Format};
pub(crate) use pack::{pack_tile, tile_values};
pub use packed_weight::PackedWeight;
pub(crate) use rows::{Cut, Groups, Panels, ProductRows, ROWS_OF_MOST_SCRATCH};
pub(crate) use sizes::{RUN, TileSizes, held_rows, panel_width, unrolled, with_rows};
pub(crate) use tile::{Finish, LaidTiles, Panel, Products, Results, Tile};
pub(crate) use tile_registers::TileRegisters;
pub(crate) use words::multiply;

use crate::{
    Activation, DType, KernelError, Layout,
    device::{Device, Values},
    experts::Experts,
    feed_forward::FeedForward,
    norm::NormWeights,
};

/// What is done to each product before it is stored.
///
/// An activation is off by at most 3e-7 · max(1, |x|). On a CPU whose operands are rounded to bf16 or to bytes, GELU
/// may be off by 3e-4 · max(1, |x|), a fraction of what that rounding does to `x`.
///
/// On a GPU whose results are bf16 or f16, cuBLASLt may round to that type before each step if an activation or a
/// residual follows: some of its algorithms store the product before they add the bias. Its GELU in tanh form is off by
/// 6e-6 more.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue<V> {
    /// Nothing.
    None,
    /// `+ bias`, `[out_features]`.
    Bias(V),
    /// `activation(·)`.
    Act(Activation),
    /// `activation(· + bias)`, bias `[out_features]`.
    BiasAct(V, Activation),
    /// `+ residual`, `[rows, out_features]`.
    Residual(V),
    /// `+ bias + residual`, bias `[out_features]`, residual `[rows, out_features]`.
    BiasResidual {
        /// `[out_features]`.
        bias: V,
        /// `[rows, out_features]`.
        residual: V,
    },
}

impl<V> Epilogue<V> {
    /// `+ bias + residual`, with whichever of the two are given.
    #[must_use]
    pub fn sum(bias: Option<V>, residual: Option<V>) -> Self {
        match (bias, residual) {
            (None, None) => Epilogue::None,
            (Some(bias), None) => Epilogue::Bias(bias),
            (None, Some(residual)) => Epilogue::Residual(residual),
            (Some(bias), Some(residual)) => Epilogue::BiasResidual { bias, residual },
        }
    }

    /// Bias, activation and residual, each if there is one.
    pub(crate) fn parts(self) -> (Option<V>, Option<Activation>, Option<V>) {
        match self {
            Epilogue::None => (None, None, None),
            Epilogue::Bias(bias) => (Some(bias), None, None),
            Epilogue::Act(activation) => (None, Some(activation), None),
            Epilogue::BiasAct(bias, activation) => (Some(bias), Some(activation), None),
            Epilogue::Residual(residual) => (None, None, Some(residual)),
            Epilogue::BiasResidual { bias, residual } => (Some(bias), None, Some(residual)),
        }
    }

    /// The number of rows of the product of `x` into `out`, if all buffers fit it.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    pub(crate) fn check(
        self,
        kernel: &'static str,
        [out_features, in_features]: [usize; 2],
        x: &impl Values,
        out: &impl Values,
    ) -> Result<usize, KernelError>
    where
        V: Values + Copy,
    {
        let rows = KernelError::check_rows(kernel, "out", out_features, out.len())?;
        KernelError::check_length(kernel, "x", rows.saturating_mul(in_features), x.len())?;
        let (bias, _, residual) = self.parts();
        for (argument, expected, got) in [("bias", out_features, bias), ("residual", out.len(), residual)] {
            got.map_or(Ok(()), |got| KernelError::check_length(kernel, argument, expected, got.len()))?;
        }
        Ok(rows)
    }
}

/// Products with a constant matrix.
pub trait Gemm: Device {
    /// A weight in the order in which this device's kernel reads it.
    type Weight: Send + Sync;

    /// Whether the matrices of experts are packed one by one, as on a device that computes a row only by the experts
    /// that the row has. Any other device computes all experts for every row, by one matrix.
    const EXPERTS_APART: bool;

    /// The types in which this device computes products, always with [`DType::F32`]; [`Gemm::pack`] takes no other.
    fn dtypes(&self) -> &'static [DType] {
        &DType::ALL
    }

    /// Packs `weight`, `[out_features, in_features]` row-major as published checkpoints store it, for products in
    /// `dtype`.
    ///
    /// # Errors
    /// [`KernelError::Length`]; [`KernelError::Size`] for more than 65536 inputs in int8 on the CPU, whose sums might
    /// not fit 32 bits; [`KernelError::Device`] when there is no device memory.
    fn pack(
        &self,
        weight: &[f32],
        out_features: usize,
        in_features: usize,
        dtype: DType,
    ) -> Result<Self::Weight, KernelError>;

    /// The bytes of a packed weight, for a cache of them; `None` if the device does not give them out.
    fn image<'w>(&self, weight: &'w Self::Weight) -> Option<&'w [u8]>;

    /// The weight whose [`Gemm::image`] is `image`, made under the same [`Gemm::packing`].
    ///
    /// # Errors
    /// [`KernelError::Length`] when a weight of this shape has another number of bytes; [`KernelError::Size`] and
    /// [`KernelError::Device`] as for [`Gemm::pack`].
    fn restore(
        &self,
        image: &[u8],
        out_features: usize,
        in_features: usize,
        dtype: DType,
    ) -> Result<Self::Weight, KernelError>;

    /// The name of the byte order of an image: images of one name can be exchanged. It is safe in a file's name.
    fn packing(&self, dtype: DType) -> String;

    /// `x` is `[rows, in_features]`, `out` is `[rows, out_features]`; `rows` follows from `out`.
    ///
    /// Every value is one chain of multiply-adds over ascending `k`, from zero, or in int8 an exact sum; the epilogue
    /// follows. On a CPU with tile registers, each link of the chain in bf16 is the sum of 32 products.
    ///
    /// # Errors
    /// [`KernelError::Length`] when a buffer does not fit the weight's shape.
    fn gemm(
        &self,
        queue: &mut Self::Queue,
        x: Self::View<'_, Self::Float>,
        weight: &Self::Weight,
        epilogue: Epilogue<Self::View<'_, Self::Float>>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// `out = layer_norm(x · weightᵀ + bias + residual)` in one operation: [`Gemm::gemm`], then
    /// [`crate::Norm::layer_norm`], to the bit where the device promises bits.
    ///
    /// `x` is `[rows, in_features]`, `bias` `[out_features]`, `residual` and `out` are `[rows, out_features]`.
    ///
    /// # Errors
    /// [`KernelError::Length`] when a buffer does not fit the weight's shape.
    #[allow(clippy::too_many_arguments)]
    fn gemm_norm(
        &self,
        queue: &mut Self::Queue,
        x: Self::View<'_, Self::Float>,
        weight: &Self::Weight,
        bias: Option<Self::View<'_, Self::Float>>,
        residual: Option<Self::View<'_, Self::Float>>,
        norm: NormWeights<Self::View<'_, Self::Float>>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// A whole feed-forward layer, one block of rows after another, so that the wide values between its products stay
    /// in cache.
    ///
    /// Where the device promises bits, they are those of the layer's parts, computed one after another.
    ///
    /// # Errors
    /// [`KernelError::Length`] when a buffer does not fit the weights' shapes, [`KernelError::Size`] when the weights
    /// do not fit each other.
    fn feed_forward(
        &self,
        queue: &mut Self::Queue,
        x: Self::View<'_, Self::Float>,
        layer: FeedForward<'_, Self::Weight, Self::View<'_, Self::Float>>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// The sum of the outputs of each row's experts, each times its weight.
    ///
    /// Where experts are apart ([`Gemm::EXPERTS_APART`]), each output is that of [`Gemm::feed_forward`] to the bit, and
    /// the sum is one chain of multiply-adds over the experts in ascending order. Elsewhere, values are weighted before
    /// the second product, as [`crate::BiasAct::weigh_experts`] does.
    ///
    /// # Errors
    /// [`KernelError::Length`] when a buffer does not fit the matrices' shapes, [`KernelError::Size`] when the matrices
    /// do not fit each other or the number of experts.
    fn experts(
        &self,
        queue: &mut Self::Queue,
        x: Self::View<'_, Self::Float>,
        logits: Self::View<'_, Self::Float>,
        layer: Experts<'_, Self::Weight>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// The greatest product of each sequence, column by column: `out[b] = max over its tokens of x · weightᵀ + bias`.
    ///
    /// `x` is `[rows, in_features]` in `layout`, `bias` `[out_features]`, `out` `[batch_size, out_features]`. The
    /// products themselves, `[rows, out_features]`, are never stored. A sequence without tokens gives 0; a NaN is kept.
    ///
    /// # Errors
    /// [`KernelError::Length`]; [`KernelError::Size`] when the layout contradicts itself (where the device can tell).
    fn gemm_max_pool(
        &self,
        queue: &mut Self::Queue,
        layout: Layout<Self::View<'_, u32>>,
        x: Self::View<'_, Self::Float>,
        weight: &Self::Weight,
        bias: Option<Self::View<'_, Self::Float>>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;
}
