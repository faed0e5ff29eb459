//! Before anything is timed: do all rivals compute the same?

use anyhow::{Result, bail};

use super::Field;

/// Sequences whose first and last vectors are compared: of different lengths, so that whoever pads has to mask.
const LENS: [u32; 3] = [37, 11, 5];
/// Differences of f32 arithmetic in another order stay far below this, a wrong model does not: its vectors have values
/// around 1.
const TOLERANCE: f32 = 1e-3;

/// The largest difference between the first rival's vectors and another's.
///
/// # Errors
/// When it is above the tolerance.
pub(super) fn largest_difference(field: &mut Field) -> Result<f32> {
    let Some((first, others)) = field.rivals.split_first_mut() else { return Ok(0.0) };
    let expected = first.rows(&LENS)?;
    let mut largest = 0.0;
    for rival in others {
        let found = difference(&expected, &rival.rows(&LENS)?);
        if found > TOLERANCE {
            let (model, other, one) = (&field.model, rival.name(), first.name());
            bail!("{model}: {other} computes something else than {one}, up to {found} apart");
        }
        largest = f32::max(largest, found);
    }
    Ok(largest)
}

/// The largest distance of two values; infinite where the shapes differ or a value is no number.
fn difference(expected: &[Vec<f32>], rows: &[Vec<f32>]) -> f32 {
    let same = expected.len() == rows.len() && expected.iter().zip(rows).all(|(a, b)| a.len() == b.len());
    if !same {
        return f32::INFINITY;
    }
    let pairs = expected.iter().flatten().zip(rows.iter().flatten());
    pairs
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |most, it| if it.is_nan() { f32::INFINITY } else { most.max(it) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_compared_differs_most() {
        assert_eq!(difference(&[vec![1.0, 2.0]], &[vec![1.5, 1.75]]), 0.5);
        assert_eq!(difference(&[vec![1.0]], &[vec![f32::NAN]]), f32::INFINITY);
        assert_eq!(difference(&[vec![1.0]], &[vec![1.0, 1.0]]), f32::INFINITY);
        assert_eq!(difference(&[vec![1.0]], &[]), f32::INFINITY);
    }
}
