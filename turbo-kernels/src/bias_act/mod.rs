//! Element-wise steps: bias, activation, sum, scale.

mod activation;
mod cpu;

pub(crate) use activation::apply;
pub(crate) use cpu::Activate;

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
        x: Self::View<'_, f32>,
        bias: Self::View<'_, f32>,
        out: Self::ViewMut<'_, f32>,
    ) -> Result<(), KernelError>;

    /// `out = activation(x)`.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn activate(
        &self,
        queue: &mut Self::Queue,
        x: Self::View<'_, f32>,
        activation: Activation,
        out: Self::ViewMut<'_, f32>,
    ) -> Result<(), KernelError>;

    /// `out = a + b`.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn add(
        &self,
        queue: &mut Self::Queue,
        a: Self::View<'_, f32>,
        b: Self::View<'_, f32>,
        out: Self::ViewMut<'_, f32>,
    ) -> Result<(), KernelError>;

    /// `out = factor · x`.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    fn scale(
        &self,
        queue: &mut Self::Queue,
        x: Self::View<'_, f32>,
        factor: f32,
        out: Self::ViewMut<'_, f32>,
    ) -> Result<(), KernelError>;
}
