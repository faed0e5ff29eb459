//! The row kernels as plain functions: slices in, slices out, one thread, no device and no queue.
//!
//! Matrices are row-major. A row has the bits that a [`crate::Cpu`] with default options gives it: the vector
//! instructions are those that `TURBO_CPU` names when one of these functions is first called, or else the best of the
//! machine. A name that such a device refuses counts as none here.
//!
//! ```
//! use turbo_kernels::{Activation, norm::NormWeights, slices};
//!
//! let x = [1.0, 2.0, 3.0, -1.0, 0.0, 1.0]; // [2, 3]
//! let mut y = [0.0; 6];
//! slices::softmax_rows(&x, 3, &mut y)?;
//! assert!((y[..3].iter().sum::<f32>() - 1.0).abs() < 1e-6);
//!
//! let weights = NormWeights { gain: &[1.0; 3][..], offset: Some(&[0.5; 3][..]), epsilon: 1e-12 };
//! slices::layer_norm_rows(&x, weights, &mut y)?;
//! assert!((y[0] - (0.5 - 1.5f32.sqrt())).abs() < 1e-6 && y[1] == 0.5);
//!
//! slices::activate(Activation::GeluErf, &x, &mut y)?;
//! assert!((y[0] - 0.841_344_7).abs() < 1e-6 && y[4] == 0.0);
//! # Ok::<(), turbo_kernels::KernelError>(())
//! ```

use std::sync::LazyLock;

use crate::{
    Activation, Isa, KernelError,
    bias_act::Activate,
    lanes, math,
    norm::{NormRows, NormWeights},
    pool::{L2Row, SumRows},
    simd::{Kernel, Simd, SupportedIsa},
    softmax::SoftmaxRow,
};

/// `out = softmax(x)` for each row of `columns` values. A row of nothing but −∞ is all 0.
///
/// # Errors
/// [`KernelError::Length`] unless `x` is whole rows and `out` has its length.
pub fn softmax_rows(x: &[f32], columns: usize, out: &mut [f32]) -> Result<(), KernelError> {
    KernelError::check_rows("softmax_rows", "x", columns, x.len())?;
    KernelError::check_length("softmax_rows", "out", x.len(), out.len())?;
    out.copy_from_slice(x);
    let isa = best();
    out.chunks_exact_mut(columns.max(1))
        .for_each(|row| isa.run(SoftmaxRow { row, scale: 1.0, biases: None }));
    Ok(())
}

/// `out = (x − mean) / √(variance + ε) · gain + offset` for each row of `gain.len()` values; two passes, corrected.
///
/// # Errors
/// [`KernelError::Length`] unless `gain` and `offset` have one length, `x` is whole rows and `out` has its length.
pub fn layer_norm_rows(x: &[f32], weights: NormWeights<&[f32]>, out: &mut [f32]) -> Result<(), KernelError> {
    weights.checked("layer_norm_rows", x, out)?;
    out.copy_from_slice(x);
    best().run(NormRows { rows: out, weights });
    Ok(())
}

/// `out = activation(x)`, off by at most 3e-7 · max(1, |x|).
///
/// # Errors
/// [`KernelError::Length`] unless both have one length.
pub fn activate(activation: Activation, x: &[f32], out: &mut [f32]) -> Result<(), KernelError> {
    KernelError::check_length("activate", "out", x.len(), out.len())?;
    best().run(Activate { x, activation, out });
    Ok(())
}

/// `out = erf(x)`, the error function, off by at most 1 unit in the last place (2 without FMA).
///
/// # Errors
/// [`KernelError::Length`] unless both have one length.
pub fn erf(x: &[f32], out: &mut [f32]) -> Result<(), KernelError> {
    KernelError::check_length("erf", "out", x.len(), out.len())?;
    best().run(Erf { x, out });
    Ok(())
}

/// `row / ‖row‖₂` for each row of `columns` values, in place; a norm below 1e-12 counts as 1e-12.
///
/// # Errors
/// [`KernelError::Length`] unless `rows` is whole rows.
pub fn l2_normalize_rows(rows: &mut [f32], columns: usize) -> Result<(), KernelError> {
    KernelError::check_rows("l2_normalize_rows", "rows", columns, rows.len())?;
    let isa = best();
    rows.chunks_exact_mut(columns.max(1)).for_each(|row| isa.run(L2Row { row }));
    Ok(())
}

/// `out` = the mean of the rows of `x`, `[rows, out.len()]`; 0 where there is no row. The bits depend on nothing else.
///
/// # Errors
/// [`KernelError::Length`] unless `x` is whole rows.
pub fn mean_of_rows(x: &[f32], out: &mut [f32]) -> Result<(), KernelError> {
    KernelError::check_rows("mean_of_rows", "x", out.len(), x.len())?;
    if x.is_empty() {
        out.fill(0.0);
    } else {
        let divisor = (x.len() / out.len()) as f32;
        best().run(SumRows { rows: x, divisor, out });
    }
    Ok(())
}

struct Erf<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Erf<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (x, out) in self.x.chunks(S::LANES).zip(self.out.chunks_mut(S::LANES)) {
            lanes::write(s, math::erf(s, lanes::read(s, x, 0.0)), out);
        }
    }
}

fn best() -> SupportedIsa {
    // reading the environment locks and copies it
    static BEST: LazyLock<SupportedIsa> = LazyLock::new(|| {
        let isa = Isa::from_env().unwrap_or_else(|_| Isa::detect());
        SupportedIsa::check(isa).expect("what was detected, or let pass by name, is supported")
    });
    *BEST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_independent() {
        let x = [3.0, 4.0, 0.0, 0.0, f32::NEG_INFINITY, 1.0];
        let mut out = [9.0; 6];
        out[..4].copy_from_slice(&x[..4]);
        l2_normalize_rows(&mut out[..4], 2).unwrap();
        assert_eq!(out[..4], [0.6, 0.8, 0.0, 0.0]);
        softmax_rows(&x[2..], 2, &mut out[2..]).unwrap();
        assert_eq!(out[2..], [0.5, 0.5, 0.0, 1.0]);
        mean_of_rows(&x[..4], &mut out[..2]).unwrap();
        assert_eq!(out[..2], [1.5, 2.0]);
        erf(&[0.0, -0.5, 9.0], &mut out[..3]).unwrap();
        assert_eq!(out[..3], [0.0, -0.520_499_9, 1.0]);
        mean_of_rows(&[], &mut out[..2]).unwrap();
        assert_eq!(out[..2], [0.0, 0.0]);
    }

    #[test]
    fn wrong_lengths_are_errors() {
        let mut out = [0.0; 6];
        let weights = NormWeights { gain: &[1.0; 4][..], offset: Some(&[1.0; 4][..]), epsilon: 1e-5 };
        let refused = [
            softmax_rows(&[0.0; 6], 4, &mut out),
            softmax_rows(&[0.0; 4], 2, &mut out),
            softmax_rows(&[0.0; 6], 0, &mut out),
            layer_norm_rows(&[0.0; 6], weights, &mut out),
            activate(Activation::Relu, &[0.0; 5], &mut out),
            erf(&[0.0; 5], &mut out),
            l2_normalize_rows(&mut out, 5),
            mean_of_rows(&[0.0; 7], &mut out),
        ];
        for (i, result) in refused.into_iter().enumerate() {
            assert!(matches!(result, Err(KernelError::Length { .. })), "case {i}: {result:?}");
        }
    }
}
