//! Normalisation of rows: layer norm, alone or with the bias and residual that come before it, and RMS norm. The
//! variance takes two passes, in f32 lanes; it is never the mean square less the squared mean, which cancels.

mod cpu;
#[cfg(any(feature = "cuda", feature = "testing", test))]
pub(crate) mod cuda;
mod row;

pub(crate) use cpu::{NormGroup, for_each_piece, for_each_row};
pub(crate) use row::{NormRows, normalize};

use crate::{ColumnsOn, HeadSizes, KernelError, device::Device};

/// Gain and offset of a layer norm, each `[hidden_size]`, and its epsilon.
#[derive(Clone, Copy, Debug)]
pub struct NormWeights<V> {
    /// `weight` in published checkpoints.
    pub gain: V,
    /// `bias` in published checkpoints; some have none.
    pub offset: Option<V>,
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
        x: Self::View<'_, Self::Float>,
        weights: NormWeights<Self::View<'_, Self::Float>>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// `out = layer_norm((x + bias) + residual)`; `bias` is `[hidden_size]`, the others `[rows, hidden_size]`.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn bias_residual_layer_norm(
        &self,
        queue: &mut Self::Queue,
        x: Self::View<'_, Self::Float>,
        bias: Option<Self::View<'_, Self::Float>>,
        residual: Self::View<'_, Self::Float>,
        weights: NormWeights<Self::View<'_, Self::Float>>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// `out = x / √(mean of x² + ε) · gain`, per row of `gain.len()` values.
    ///
    /// Source: Zhang and Sennrich, NeurIPS 2019.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn rms_norm(
        &self,
        queue: &mut Self::Queue,
        x: Self::View<'_, Self::Float>,
        gain: Self::View<'_, Self::Float>,
        epsilon: f32,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// [`Norm::rms_norm`] of each head by itself: `x` has `num_heads · head_dim` columns, `gain` is `[head_dim]` and
    /// the same for every head, `out` is `[rows, num_heads · head_dim]`.
    ///
    /// # Errors
    /// [`KernelError::Length`]; [`KernelError::Size`] for columns that reach beyond their row.
    fn head_rms_norm(
        &self,
        queue: &mut Self::Queue,
        heads: HeadSizes,
        x: ColumnsOn<'_, Self>,
        gain: Self::View<'_, Self::Float>,
        epsilon: f32,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;
}
