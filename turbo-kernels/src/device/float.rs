//! The types that activations are stored as: f32, f16 and bf16.

use std::borrow::Cow;

use half::{bf16, f16};

use super::Element;

/// A type in which a device stores activations and the constants of row kernels (gains, biases, tables).
///
/// Kernels widen the values that they read, compute in f32 and round each result once.
pub trait Float: Element {
    /// Half a unit in the last place near 1: the error of one rounding, relative to its result.
    const ROUNDING: f64;
    /// The smallest positive value. Below the smallest normal value a rounding errs by up to half of this.
    const SMALLEST: f64;
    /// The greatest finite value.
    const GREATEST: f32;

    /// Rounds `value` to the nearest value of this type, ties to even. Beyond [`Float::GREATEST`] the result is
    /// infinite.
    #[must_use]
    fn from_f32(value: f32) -> Self;

    /// The same value as an f32.
    #[must_use]
    fn to_f32(self) -> f32;

    /// [`Float::from_f32`] of each value; nothing is copied where that changes nothing.
    #[must_use]
    fn from_f32s(values: &[f32]) -> Cow<'_, [Self]> {
        values.iter().map(|&value| Self::from_f32(value)).collect()
    }
}

impl Float for f32 {
    const ROUNDING: f64 = 1.0 / (1u64 << 24) as f64;
    const SMALLEST: f64 = f32::from_bits(1) as f64;
    const GREATEST: f32 = f32::MAX;

    #[inline(always)]
    fn from_f32(value: f32) -> f32 {
        value
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    fn from_f32s(values: &[f32]) -> Cow<'_, [f32]> {
        Cow::Borrowed(values)
    }
}

impl Float for f16 {
    const ROUNDING: f64 = 1.0 / (1u64 << 11) as f64;
    const SMALLEST: f64 = 1.0 / (1u64 << 24) as f64;
    const GREATEST: f32 = 65_504.0;

    #[inline]
    fn from_f32(value: f32) -> f16 {
        f16::from_f32(value)
    }

    #[inline]
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
}

impl Float for bf16 {
    const ROUNDING: f64 = 1.0 / (1u64 << 8) as f64;
    const SMALLEST: f64 = f32::from_bits(1 << 16) as f64;
    const GREATEST: f32 = f32::from_bits(0x7f7f << 16);

    #[inline]
    fn from_f32(value: f32) -> bf16 {
        bf16::from_f32(value)
    }

    #[inline]
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the constants against the conversions: ties go to the even neighbour, all other values to the nearer one.
    fn constants_are_those_of<F: Float + PartialEq>() {
        let rounded = |value: f64| f64::from(F::from_f32(value as f32).to_f32());
        if F::NAME != f32::NAME {
            assert_eq!(rounded(1.0 + F::ROUNDING), 1.0, "{}: a tie goes to the even value", F::NAME);
            assert_eq!(rounded(1.0 + 3.0 * F::ROUNDING), 1.0 + 4.0 * F::ROUNDING, "{}", F::NAME);
            assert_eq!(rounded(1.0 + 1.01 * F::ROUNDING), 1.0 + 2.0 * F::ROUNDING, "{}", F::NAME);
            assert_eq!(rounded(0.5 * F::SMALLEST), 0.0, "{}: below it there is nothing", F::NAME);
        }
        assert_eq!(rounded(1.0 + 2.0 * F::ROUNDING), 1.0 + 2.0 * F::ROUNDING, "{}", F::NAME);
        assert_eq!(rounded(F::SMALLEST), F::SMALLEST, "{}", F::NAME);
        let greatest = f64::from(F::GREATEST);
        assert_eq!(rounded(greatest), greatest, "{}", F::NAME);
        assert_eq!(rounded(greatest * (1.0 + F::ROUNDING)), f64::INFINITY, "{}", F::NAME);
        assert!(rounded(f64::NAN).is_nan() && rounded(f64::NEG_INFINITY) == f64::NEG_INFINITY);
    }

    #[test]
    fn constants_are_those_of_the_types() {
        constants_are_those_of::<f32>();
        constants_are_those_of::<f16>();
        constants_are_those_of::<bf16>();
    }
}
