//! Layer normalisation, alone or with the bias and residual that come before it. Variance by two passes, in f32 lanes;
//! never the mean square less the squared mean, which cancels.

mod cpu;
mod row;

pub(crate) use cpu::for_each_row;
pub(crate) use row::{NormRow, normalize};

use crate::{KernelError, device::Device};

/// Gain and offset of a layer norm, each `[hidden_size]`, and its epsilon.
#[derive(Clone, Copy, Debug)]
pub struct NormWeights<V> {
    /// `weight` in published checkpoints.
    pub gain: V,
    /// `bias` in published checkpoints.
    pub offset: V,
    /// Added to the variance.
    pub epsilon: f32,
}

/// Normalisation of rows.
pub trait Norm: Device {
    /// `out = (x − mean) / √(variance + ε) · gain + offset`, per row of `hidden_size` values.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn layer_norm(
        &self,
        queue: &mut Self::Queue,
        x: Self::View<'_, f32>,
        weights: NormWeights<Self::View<'_, f32>>,
        out: Self::ViewMut<'_, f32>,
    ) -> Result<(), KernelError>;

    /// `out = layer_norm((x + bias) + residual)`; `bias` is `[hidden_size]`, the others `[rows, hidden_size]`.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn bias_residual_layer_norm(
        &self,
        queue: &mut Self::Queue,
        x: Self::View<'_, f32>,
        bias: Self::View<'_, f32>,
        residual: Self::View<'_, f32>,
        weights: NormWeights<Self::View<'_, f32>>,
        out: Self::ViewMut<'_, f32>,
    ) -> Result<(), KernelError>;
}
