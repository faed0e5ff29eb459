//! Vectors of mostly zeros, such as those of SPLADE.

use super::{
    TaskError,
    scores::{check, finite},
};

/// A token of the vocabulary and its weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparseValue {
    /// The token's id.
    pub index: u32,
    /// Its weight, which is not 0.
    pub value: f32,
}

/// The weights that are not zero, in the order of ids.
///
/// * `weights`: `[vocab_size]`.
///
/// # Errors
/// [`TaskError::NotANumber`].
pub fn sparse(weights: &[f32]) -> Result<Vec<SparseValue>, TaskError> {
    check(weights, weights.len())?;
    let values =
        (0..).zip(weights).map(|(index, weight)| SparseValue { index, value: finite(*weight) as f32 });
    Ok(values.filter(|weight| weight.value != 0.0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_of_either_sign_are_left_out() {
        let expected = [SparseValue { index: 1, value: 0.5 }, SparseValue { index: 3, value: -1.0 }];
        assert_eq!(sparse(&[0.0, 0.5, -0.0, -1.0]).unwrap(), expected);
        assert_eq!(sparse(&[0.0, f32::NAN]), Err(TaskError::NotANumber { index: 1, len: 2 }));
    }
}
