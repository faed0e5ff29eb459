//! Element-wise steps: bias, activation, sum, product, scale, gate, weights of experts.

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
    /// `ln(1 + max(x, 0))`, which SPLADE applies to logits.
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

/// How many experts a router chooses for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Routing {
    /// The number of experts, at most [`Routing::MOST_EXPERTS`].
    pub num_experts: usize,
    /// The number of experts that a row has, at least one.
    pub top_k: usize,
}

impl Routing {
    /// The most experts whose weights of a row a kernel keeps at hand.
    pub const MOST_EXPERTS: usize = 64;

    /// Checks that a kernel takes both numbers.
    ///
    /// # Errors
    /// [`KernelError::Size`].
    pub(crate) fn check_counts(&self, kernel: &'static str) -> Result<(), KernelError> {
        let Self { num_experts, top_k } = *self;
        for (argument, most, got) in
            [("num_experts", Self::MOST_EXPERTS, num_experts), ("top_k", num_experts, top_k)]
        {
            if !(1..=most).contains(&got) {
                return Err(KernelError::Size {
                    kernel,
                    argument,
                    expected: format!("1 to {most}").into(),
                    got,
                });
            }
        }
        Ok(())
    }

    /// The rows of `logits`, and the values of each expert in a row of `x`, if everything fits.
    pub(crate) fn check(&self, logits: usize, x: usize, out: usize) -> Result<(usize, usize), KernelError> {
        const NAME: &str = "weigh_experts";
        self.check_counts(NAME)?;
        let rows = KernelError::check_rows(NAME, "logits", self.num_experts, logits)?;
        let values = x / logits.max(1);
        KernelError::check_length(NAME, "x", logits.saturating_mul(values), x)?;
        KernelError::check_length(NAME, "out", x, out)?;
        Ok((rows, values))
    }
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

    /// `out = activation(x + bias)`, rows of `bias.len()` values; the sum is not rounded to the stored type.
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

    /// `out[r, e · n + i] = weights[r, e] · x[r, e · n + i]`, the values of each expert times its weight in the row.
    ///
    /// `x` is `[rows, num_experts · n]`, the values of all experts side by side, and `logits` is `[rows, num_experts]`.
    /// The weights of a row are the softmax of its logits, but 0 for all that are not among the `top_k` greatest, where
    /// the first of equal ones come first; nothing of the experts with weight 0 is in `out`. Where a logit is NaN, or
    /// the greatest is infinite, all weights of the row are NaN, whichever experts it has.
    ///
    /// Source: Shazeer et al., arXiv 1701.06538, section 2.1, without noise; the softmax is over all logits, not only
    /// over the chosen ones (Fedus et al., JMLR 23 (2022), section 2.1).
    ///
    /// # Errors
    /// [`KernelError::Length`], [`KernelError::Size`].
    fn weigh_experts(
        &self,
        queue: &mut Self::Queue,
        x: Self::View<'_, Self::Float>,
        logits: Self::View<'_, Self::Float>,
        routing: Routing,
        out: Self::ViewMut<'_, Self::Float>,
    ) -> Result<(), KernelError>;
}
