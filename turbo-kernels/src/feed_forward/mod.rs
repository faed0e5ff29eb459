//! Two products with something between them, as one operation: what a feed-forward layer of a transformer is.

mod cpu;

pub(crate) use cpu::feed_forward;

use crate::{Activation, norm::NormWeights};

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
