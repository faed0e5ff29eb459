//! Element-wise steps: bias, activation, sum, product, scale, gate.

mod activation;
mod cpu;
#[cfg(any(feature = "cuda", feature = "testing", test))]
pub(crate) mod cuda;
mod table;

pub(crate) use activation::{Accuracy, apply, with_activation};
pub(crate) use cpu::{Activate, Add};

use crate::{KernelError, device::Device};

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x · Φ(x)` with the error function: `gelu` in published configs.
    GeluErf,
    /// The tanh form: `gelu_new`, `gelu_pytorch_tanh`.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `x · sigmoid(x)`: `silu`, `swish`.
    Silu,
    /// `tanh(x)`.
    Tanh,
    /// `1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// `ln(1 + max(x, 0))`: what SPLADE makes of a logit.
    Log1pRelu,
}

impl Activation {
    /// All of them.
    pub const ALL: [Activation; 7] = [
        Activation::GeluErf,
        Activation::GeluTanh,
        Activation::Relu,
        Activation::Silu,
        Activation::Tanh,
        Activation::Sigmoid,
        Activation::Log1pRelu,
    ];
}

/// Element-wise steps.
pub trait BiasAct: Device {
    /// `out = x + bias`, rows of `bias.len()` values.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn add_bias(
        &self,
        queue: &mut Self::Queue,
        x: Self::View<'_, Self::Float>,
        bias: Self::View<'_, Self::Float>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// `out = activation(x)`.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn activate(
        &self,
        queue: &mut Self::Queue,
        x: Self::View<'_, Self::Float>,
        activation: Activation,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// `out = activation(x + bias)`, rows of `bias.len()` values; the sum is not rounded to what is stored.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn bias_activate(
        &self,
        queue: &mut Self::Queue,
        x: Self::View<'_, Self::Float>,
        bias: Self::View<'_, Self::Float>,
        activation: Activation,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// `out = a + b`.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn add(
        &self,
        queue: &mut Self::Queue,
        a: Self::View<'_, Self::Float>,
        b: Self::View<'_, Self::Float>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// `out = a · b`, value by value.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn mul(
        &self,
        queue: &mut Self::Queue,
        a: Self::View<'_, Self::Float>,
        b: Self::View<'_, Self::Float>,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// `out = activation(left) · right`, where `x` is `[rows, 2 · n]`, `left` the first `n` values of a row, `right`
    /// the others, and `out` is `[rows, n]`.
    ///
    /// Source: Shazeer, arXiv 2002.05202.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn gate(
        &self,
        queue: &mut Self::Queue,
        activation: Activation,
        x: Self::View<'_, Self::Float>,
        n: usize,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;

    /// `out = factor · x`.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn scale(
        &self,
        queue: &mut Self::Queue,
        x: Self::View<'_, Self::Float>,
        factor: f32,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;
}
