//! Whether the device computes what it should: before anything of its speed is believed.

use serde::{Deserialize, Serialize};

use super::Dtype;

/// One family of kernels, or one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// `kernels: softmax`, `model: bert-base`.
    pub what: String,
    /// In what it was computed.
    pub dtype: Dtype,
    /// The greatest difference to the reference, of a model.
    pub worst: Option<f64>,
    /// Why it failed, if it did.
    pub failed: Option<String>,
    /// What it took, s.
    pub seconds: f64,
}

/// The most that one value of a golden model may be off, and all of them in the mean: a value of magnitude 3 is rounded by
/// half a unit of its type some ten times in three layers, and errors of weights and attention come on top of that. The
/// same bounds hold on the emulated GPU.
#[must_use]
pub fn allowed(dtype: Dtype) -> (f64, f64) {
    match dtype {
        Dtype::Bf16 => (0.15, 0.015),
        Dtype::F16 => (0.02, 0.002),
        Dtype::F32 => (1e-4, 1e-4),
    }
}

/// The greatest difference of two values, and the mean of all; infinite where they cannot be compared.
#[must_use]
pub fn differences(got: &[f32], expected: &[f32]) -> (f64, f64) {
    if got.len() != expected.len() || got.is_empty() {
        return (f64::INFINITY, f64::INFINITY);
    }
    let apart = got.iter().zip(expected).map(|(&got, &want)| f64::from((got - want).abs()));
    let sum: f64 = apart.clone().sum();
    if sum.is_nan() {
        return (f64::INFINITY, f64::INFINITY);
    }
    (apart.fold(0.0, f64::max), sum / got.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_compared_differs_most() {
        assert_eq!(differences(&[1.0, 2.0], &[1.5, 2.0]), (0.5, 0.25));
        for got in [&[f32::NAN, 0.0][..], &[0.0], &[]] {
            assert_eq!(differences(got, &[0.0, 0.0]).0, f64::INFINITY, "{got:?}");
        }
    }
}
