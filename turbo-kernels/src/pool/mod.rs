//! From one row per token to one row per sequence.

mod cpu;
#[cfg(any(feature = "cuda", feature = "testing", test))]
pub(crate) mod cuda;

pub(crate) use cpu::{L2Row, SumRows};

use crate::{KernelError, Layout, device::Device};

/// Which row, or which combination of rows, stands for the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// The first token.
    Cls,
    /// The mean of all tokens.
    Mean,
    /// The last token.
    LastToken,
    /// The greatest of all tokens, column by column; a NaN is kept.
    Max,
    /// The sum of all tokens over the square root of their number.
    MeanSqrtLen,
    /// The mean of all tokens, token `i` (from 0) with weight `i + 1`.
    WeightedMean,
}

impl Pooling {
    /// All of them.
    pub const ALL: [Pooling; 6] = [
        Pooling::Cls,
        Pooling::Mean,
        Pooling::LastToken,
        Pooling::Max,
        Pooling::MeanSqrtLen,
        Pooling::WeightedMean,
    ];
}

/// Pooling and normalisation of pooled rows.
pub trait Pool: Device {
    /// `x` is `[rows, hidden_size]` in `layout`, `out` is `[batch_size, hidden_size]`. A sequence without tokens gives 0.
    ///
    /// # Errors
    /// [`KernelError::Length`]; [`KernelError::Size`] when the layout contradicts itself (where the device can tell).
    fn pool(
        &self,
        queue: &mut Self::Queue,
        pooling: Pooling,
        layout: Layout<Self::View<'_, u32>>,
        x: Self::View<'_, Self::Float>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// `out[b] = x[b] / ‖x[b]‖₂` for rows of `hidden_size` values; a row of norm below 1e-12 is divided by 1e-12,
    /// as the reference does.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn l2_normalize(
        &self,
        queue: &mut Self::Queue,
        hidden_size: usize,
        x: Self::View<'_, Self::Float>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;
}
