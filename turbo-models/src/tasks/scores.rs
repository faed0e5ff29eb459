//! From logits of any size to scores between 0 and 1, in f64.

use super::TaskError;

/// Checks that there are `expected` logits and that all are numbers.
pub(super) fn check(logits: &[f32], expected: usize) -> Result<(), TaskError> {
    if logits.len() != expected {
        return Err(TaskError::Length { expected, got: logits.len() });
    }
    match logits.iter().position(|logit| logit.is_nan()) {
        Some(index) => Err(TaskError::NotANumber { index, len: logits.len() }),
        None => Ok(()),
    }
}

/// A logit, with the largest number in place of infinity.
pub(super) fn finite(logit: f32) -> f64 {
    f64::from(logit.clamp(f32::MIN, f32::MAX))
}

/// Scores that sum to 1, from logits without NaN.
pub(super) fn softmax(logits: impl Iterator<Item = f32>) -> Vec<f64> {
    let mut scores: Vec<f64> = logits.map(finite).collect();
    let max = scores.iter().copied().fold(f64::MIN, f64::max);
    scores.iter_mut().for_each(|score| *score = (*score - max).exp());
    let sum: f64 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
    scores
}

pub(super) fn sigmoid(logit: f32) -> f64 {
    1.0 / (1.0 + (-finite(logit)).exp())
}

/// The first of the greatest scores, which contain no NaN; `None` if there are none.
pub(super) fn greatest(scores: &[f64]) -> Option<(usize, f64)> {
    let better = |best: Option<(usize, f64)>, (index, &score): (usize, &f64)| match best {
        Some((_, greatest)) if score <= greatest => best,
        _ => Some((index, score)),
    };
    scores.iter().enumerate().fold(None, better)
}
