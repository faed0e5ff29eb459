//! Labels of a whole input.

use std::cmp::Ordering;

use super::{
    TaskError,
    scores::{check, finite, sigmoid, softmax},
};
use crate::ScoreFunction;

/// A label and how well it fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LabelScore {
    /// Index of the label among the model's, which is that of its logit.
    pub index: usize,
    /// Between 0 and 1; any number for [`ScoreFunction::Identity`].
    pub score: f32,
}

/// Every label with its score, best first; labels of equal score in the model's order.
///
/// * `logits`: one per label.
///
/// # Errors
/// [`TaskError::NotANumber`].
pub fn classify(logits: &[f32], function: ScoreFunction) -> Result<Vec<LabelScore>, TaskError> {
    let scores = scores(logits, function)?;
    Ok(rank(&scores).into_iter().map(|index| LabelScore { index, score: scores[index] }).collect())
}

/// The score of every label, in the model's order.
///
/// * `logits`: one per label.
///
/// # Errors
/// [`TaskError::NotANumber`].
pub fn scores(logits: &[f32], function: ScoreFunction) -> Result<Vec<f32>, TaskError> {
    check(logits, logits.len())?;
    Ok(match function {
        ScoreFunction::Softmax => softmax(logits.iter().copied()).into_iter().map(|it| it as f32).collect(),
        ScoreFunction::Sigmoid => logits.iter().map(|logit| sigmoid(*logit) as f32).collect(),
        ScoreFunction::Identity => logits.iter().map(|logit| finite(*logit) as f32).collect(),
    })
}

/// Indices of `scores` from the greatest to the least; equal scores in their order, NaN last.
pub fn rank(scores: &[f32]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..scores.len()).collect();
    places.sort_by(|a, b| descending(scores[*a], scores[*b]));
    places
}

/// A total order from the greatest to the least: both zeros are equal, NaN is behind all numbers.
pub(super) fn descending(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_ranked_and_sum_to_one() {
        let scores = classify(&[0.0, 2.0, -1.0, 2.0], ScoreFunction::Softmax).unwrap();
        assert_eq!(scores.iter().map(|it| it.index).collect::<Vec<_>>(), [1, 3, 0, 2]);
        assert!((scores.iter().map(|it| it.score).sum::<f32>() - 1.0).abs() < 1e-6);
        let raw = classify(&[-3.0, 7.5], ScoreFunction::Identity).unwrap();
        assert_eq!(raw, [LabelScore { index: 1, score: 7.5 }, LabelScore { index: 0, score: -3.0 }]);
        assert_eq!(classify(&[0.0], ScoreFunction::Sigmoid).unwrap()[0].score, 0.5);
        assert_eq!(classify(&[], ScoreFunction::Softmax), Ok(vec![]));
    }

    #[test]
    fn extremes_have_scores_and_nan_has_none() {
        let scores = |logits: &[f32], function| -> Vec<f32> {
            classify(logits, function).unwrap().iter().map(|it| it.score).collect()
        };
        assert_eq!(
            scores(&[f32::INFINITY, f32::NEG_INFINITY, f32::MAX], ScoreFunction::Softmax),
            [0.5, 0.5, 0.0]
        );
        assert_eq!(scores(&[f32::NEG_INFINITY; 2], ScoreFunction::Softmax), [0.5, 0.5]);
        assert_eq!(scores(&[f32::MAX, f32::MIN], ScoreFunction::Sigmoid), [1.0, 0.0]);
        let nan = classify(&[1.0, f32::NAN], ScoreFunction::Identity).unwrap_err();
        assert_eq!(nan.to_string(), "the model gave NaN in place 1 of 2 logits");
    }

    #[test]
    fn ranks_are_total() {
        assert_eq!(rank(&[f32::NAN, 0.0, 3.0, -0.0, f32::NAN, f32::INFINITY]), [5, 2, 1, 3, 0, 4]);
    }
}
