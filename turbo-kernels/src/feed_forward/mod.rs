//! Two products with something between them, as one operation: the feed-forward layer of a transformer.

mod cpu;

pub(crate) use cpu::{feed_forward, on_team, scratch_values};

use crate::{Activation, KernelError, device::Values, norm::NormWeights};

/// The name in messages.
const NAME: &str = "feed_forward";

/// `out = norm(hidden(x · upᵀ + up_bias) · downᵀ + down_bias + residual)`.
///
/// `x` is `[rows, up.in_features]`, `out` is `[rows, down.out_features]`; between them lie `down.in_features` values a
/// row, which no buffer of the caller's holds.
pub struct FeedForward<'w, W, V> {
    /// The first product; [`Hidden`] says how its results become the input of the second.
    pub up: &'w W,
    /// `[up.out_features]`.
    pub up_bias: Option<V>,
    /// What stands between the products.
    pub hidden: Hidden,
    /// The second product.
    pub down: &'w W,
    /// `[down.out_features]`.
    pub down_bias: Option<V>,
    /// `[rows, down.out_features]`.
    pub residual: Option<V>,
    /// Each `[down.out_features]`.
    pub norm: Option<NormWeights<V>>,
}

impl<W, V> FeedForward<'_, W, V> {
    /// Checks that everything fits `x` and `out`, and gives the rows; `features` are results and inputs of `up` and of
    /// `down`.
    ///
    /// # Errors
    /// [`KernelError::Length`], or [`KernelError::Size`] when the products do not fit each other.
    pub(crate) fn check(
        &self,
        features: [[usize; 2]; 2],
        x: &impl Values,
        out: &impl Values,
    ) -> Result<usize, KernelError>
    where
        V: Values + Copy,
    {
        let [[up_features, in_features], [out_features, down_inputs]] = features;
        let wide = self.hidden.up_features(down_inputs);
        if up_features != wide {
            let expected = match self.hidden {
                Hidden::Activation(_) => format!("in_features of down, {wide}"),
                Hidden::Gate(_) => format!("twice in_features of down, {wide}"),
            };
            let (argument, expected) = ("out_features of up", expected.into());
            return Err(KernelError::Size { kernel: NAME, argument, expected, got: up_features });
        }
        let length = |argument, expected, got: Option<V>| {
            got.map_or(Ok(()), |got| KernelError::check_length(NAME, argument, expected, got.len()))
        };
        let rows = KernelError::check_rows(NAME, "out", out_features, out.len())?;
        KernelError::check_length(NAME, "x", rows.saturating_mul(in_features), x.len())?;
        length("up_bias", wide, self.up_bias)?;
        length("down_bias", out_features, self.down_bias)?;
        length("residual", out.len(), self.residual)?;
        self.norm.map_or(Ok(()), |norm| norm.fits(NAME, out_features))?;
        Ok(rows)
    }
}

/// What stands between the two products of a [`FeedForward`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hidden {
    /// `activation(·)`: `up` has as many results as `down` has inputs.
    Activation(Activation),
    /// `activation(left) · right`: `up` has twice as many results as `down` has inputs, `left` is their first half, as
    /// in [`crate::BiasAct::gate`].
    Gate(Activation),
}

impl Hidden {
    /// Results that the first product must have for `in_features` inputs of the second.
    #[must_use]
    pub fn up_features(self, in_features: usize) -> usize {
        match self {
            Hidden::Activation(_) => in_features,
            Hidden::Gate(_) => in_features.saturating_mul(2),
        }
    }
}
