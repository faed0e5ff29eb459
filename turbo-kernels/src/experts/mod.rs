//! Feed-forward layers side by side, called experts, of which a router chooses a few for each row.

mod cpu;

pub(crate) use cpu::experts;

use crate::{Activation, KernelError, Routing, device::Values};

/// The name in messages.
const NAME: &str = "experts";

/// `out[r] = Σ weights[r, e] · (activation(x[r] · up[e]ᵀ) · down[e]ᵀ)`, over the experts that row `r` has.
///
/// `x` is `[rows, in_features]`, the router's logits are `[rows, num_experts]`, `out` is `[rows, out_features]`. Which
/// experts a row has, and their weights, are those of [`BiasAct::weigh_experts`](crate::BiasAct::weigh_experts).
///
/// Matrices are packed as [`Gemm::EXPERTS_APART`](crate::Gemm::EXPERTS_APART) says: one for each expert, or a single
/// one. On each side all of them are packed for the same dtype.
pub struct Experts<'w, W> {
    /// How many experts there are, and how many a row has.
    pub routing: Routing,
    /// The first products: `[n, in_features]` for each expert, or one matrix of all of them below each other.
    pub up: &'w [W],
    /// What stands between the products.
    pub activation: Activation,
    /// The second products: `[out_features, n]` for each expert, or one matrix of all of them side by side.
    pub down: &'w [W],
}

impl<W> Experts<'_, W> {
    /// Checks that each side has `matrices` matrices and that everything fits them, and gives the rows; `features` are
    /// results and inputs of a matrix.
    ///
    /// # Errors
    /// [`KernelError::Length`], or [`KernelError::Size`] when the matrices do not fit each other.
    pub(crate) fn check(
        &self,
        matrices: usize,
        features: impl Fn(&W) -> [usize; 2],
        x: &impl Values,
        logits: &impl Values,
        out: &impl Values,
    ) -> Result<usize, KernelError> {
        self.routing.check_counts(NAME)?;
        let is = |argument, expected: usize, got: usize| match got == expected {
            true => Ok(()),
            false => {
                Err(KernelError::Size { kernel: NAME, argument, expected: expected.to_string().into(), got })
            }
        };
        is("number of matrices of up", matrices, self.up.len())?;
        is("number of matrices of down", matrices, self.down.len())?;
        let [wide, in_features] = features(&self.up[0]);
        let [out_features, _] = features(&self.down[0]);
        for (up, down) in self.up.iter().zip(self.down).map(|(up, down)| (features(up), features(down))) {
            is("out_features of up", wide, up[0])?;
            is("in_features of up", in_features, up[1])?;
            is("out_features of down", out_features, down[0])?;
            is("in_features of down", wide, down[1])?;
        }
        let num_experts = self.routing.num_experts;
        if !wide.is_multiple_of(num_experts / matrices) {
            let (argument, expected) = ("out_features of up", format!("a multiple of {num_experts}").into());
            return Err(KernelError::Size { kernel: NAME, argument, expected, got: wide });
        }
        let rows = KernelError::check_rows(NAME, "logits", num_experts, logits.len())?;
        KernelError::check_length(NAME, "x", rows.saturating_mul(in_features), x.len())?;
        KernelError::check_length(NAME, "out", rows.saturating_mul(out_features), out.len())?;
        Ok(rows)
    }
}
