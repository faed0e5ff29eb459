//! Embedding tables: rows by id, and the sum of several tables with its layer norm.

mod cpu;
#[cfg(any(feature = "cuda", feature = "testing", test))]
pub(crate) mod cuda;

use crate::{
    KernelError,
    device::{Device, FloatsOn},
    norm::NormWeights,
};

/// One table and the row that each token takes from it.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<T, I> {
    /// `[rows, hidden_size]`.
    pub table: T,
    /// `[tokens]`, u32.
    pub ids: I,
}

/// A lookup in memory of device `D`.
pub type LookupOn<'a, D> = Lookup<FloatsOn<'a, D>, <D as Device>::View<'a, u32>>;

/// Rows of tables.
pub trait Embed: Device {
    /// `out[t] = table[ids[t]]`; `hidden_size` follows from `out` and `ids`.
    ///
    /// # Errors
    /// [`KernelError::Length`]; [`KernelError::Index`] for an id outside the table (where the device can tell).
    fn embed(
        &self,
        queue: &mut Self::Queue,
        lookup: LookupOn<'_, Self>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// `out[t] = layer_norm((a[t] + b[t]) + …)` over the lookups, of which there is at least one, in their order.
    ///
    /// # Errors
    /// As [`Embed::embed`].
    fn embed_sum_layer_norm(
        &self,
        queue: &mut Self::Queue,
        lookups: &[LookupOn<'_, Self>],
        weights: NormWeights<Self::View<'_, Self::Float>>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;
}
