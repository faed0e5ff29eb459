//! Checks that all rivals compute the same, before anything is timed.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::rival::Rival;

/// Lengths of the sequences whose first and last vectors are compared. They differ, so that an engine that pads has to
/// mask.
pub(super) const LENS: [u32; 3] = [37, 11, 5];

/// How close a rival's vectors are to those of turbo in f32.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// The rival's name.
    pub rival: String,
    /// Name, version and variant of what computes.
    pub library: String,
    /// The smallest cosine between two vectors.
    pub cosine: f64,
    /// The largest difference between two values.
    pub difference: f64,
}

/// turbo's vectors, which the others are compared with.
pub(super) fn expected(turbo: &mut Rival) -> Result<Vec<Vec<f32>>> {
    turbo.rows(&LENS)
}

/// Compares a rival's vectors with `expected`.
///
/// # Errors
/// When a cosine is below `bound`.
pub(super) fn check(expected: &[Vec<f32>], rival: &mut Rival, bound: f64) -> Result<Agreement> {
    let rows = rival.rows(&LENS)?;
    judge((rival.name(), rival.library()), expected, &rows, bound)
}

/// Does the same as [`check`] for given vectors.
pub(super) fn judge(
    (rival, library): (&str, &str),
    expected: &[Vec<f32>],
    rows: &[Vec<f32>],
    bound: f64,
) -> Result<Agreement> {
    let (cosine, difference) = compare(expected, rows);
    if cosine.is_nan() || cosine < bound {
        bail!(
            "{rival}: computes something else than turbo in f32: a cosine is {cosine}, expected at least {bound}"
        );
    }
    Ok(Agreement { rival: rival.to_owned(), library: library.to_owned(), cosine, difference })
}

/// The smallest cosine and the largest difference; NaN and infinity where the vectors cannot be compared.
fn compare(expected: &[Vec<f32>], rows: &[Vec<f32>]) -> (f64, f64) {
    let same = expected.len() == rows.len() && expected.iter().zip(rows).all(|(a, b)| a.len() == b.len());
    if !same {
        return (f64::NAN, f64::INFINITY);
    }
    let (mut cosine, mut difference) = (1.0_f64, 0.0_f64);
    for (a, b) in expected.iter().zip(rows) {
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
        };
        let of_pair = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
        let apart = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs()));
        if of_pair.is_nan() || apart.clone().any(f64::is_nan) {
            return (f64::NAN, f64::INFINITY);
        }
        (cosine, difference) = (cosine.min(of_pair), apart.fold(difference, f64::max));
    }
    (cosine, difference)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_compared_differs_most() {
        let (cosine, difference) = compare(&[vec![3.0, 4.0]], &[vec![4.0, 3.0]]);
        assert_eq!((cosine, difference), (0.96, 1.0));
        let nothing = |a: &[Vec<f32>], b: &[Vec<f32>]| {
            let (cosine, difference) = compare(a, b);
            cosine.is_nan() && difference == f64::INFINITY
        };
        assert!(nothing(&[vec![1.0]], &[vec![f32::NAN]]));
        assert!(nothing(&[vec![1.0]], &[vec![1.0, 1.0]]));
        assert!(nothing(&[vec![1.0]], &[]));
    }
}
