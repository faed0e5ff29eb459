//! Checks that the device computes what it should, before any of its times is believed.

use serde::{Deserialize, Serialize};

use super::Dtype;

/// The check of one family of kernels, or of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// `kernels: softmax`, `model: bert-base`.
    pub what: String,
    /// The type that it was computed in.
    pub dtype: Dtype,
    /// The greatest difference from the reference; for models only.
    pub worst: Option<f64>,
    /// Why it failed, if it did.
    pub failed: Option<String>,
    /// Seconds that it took.
    pub seconds: f64,
}

/// How far values are off, or may be: the worst one, and the mean of all.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Off {
    /// The greatest difference.
    pub worst: f64,
    /// The mean of all.
    pub mean: f64,
}

impl Off {
    /// The allowance in f32; PyTorch itself loses up to 1e-5 in it.
    pub const IN_F32: Self = Self { worst: 1e-4, mean: 1e-4 };

    /// The allowance in a narrower type, given what PyTorch loses when it stores everything in that type. The mean of
    /// thousands of values is steady, while the worst one is a matter of luck. The emulated GPU keeps the same bounds.
    #[must_use]
    pub fn beside_reference(self) -> Self {
        Self { worst: 2.5 * self.worst, mean: 1.5 * self.mean }
    }

    /// Whether both are within `allowed`.
    #[must_use]
    pub fn is_within(self, allowed: Self) -> bool {
        self.worst <= allowed.worst && self.mean <= allowed.mean
    }

    /// The greater one of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { worst: self.worst.max(other.worst), mean: self.mean.max(other.mean) }
    }
}

/// How far values are from the expected ones; infinitely far if they cannot be compared.
#[must_use]
pub fn differences(got: &[f32], expected: &[f32]) -> Off {
    let incomparable = Off { worst: f64::INFINITY, mean: f64::INFINITY };
    if got.len() != expected.len() || got.is_empty() {
        return incomparable;
    }
    let apart = got.iter().zip(expected).map(|(&got, &want)| f64::from((got - want).abs()));
    let sum: f64 = apart.clone().sum();
    if sum.is_nan() {
        return incomparable;
    }
    Off { worst: apart.fold(0.0, f64::max), mean: sum / got.len() as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_compared_differs_most() {
        assert_eq!(differences(&[1.0, 2.0], &[1.5, 2.0]), Off { worst: 0.5, mean: 0.25 });
        for got in [&[f32::NAN, 0.0][..], &[0.0], &[]] {
            let off = differences(got, &[0.0, 0.0]);
            assert!(!off.is_within(Off::IN_F32) && off.worst == f64::INFINITY, "{got:?}");
        }
    }

    #[test]
    fn both_the_worst_and_the_mean_are_within_what_is_allowed() {
        let lost = Off { worst: 0.1, mean: 0.01 };
        let allowed = lost.beside_reference();
        assert!(lost.is_within(allowed) && allowed.is_within(allowed));
        assert!(!Off { worst: 0.26, ..lost }.is_within(allowed));
        assert!(!Off { mean: 0.016, ..lost }.is_within(allowed));
    }
}
