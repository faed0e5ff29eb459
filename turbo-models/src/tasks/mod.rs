//! From a model's output to what callers want: labels, entities, answers, words. These are pure functions of logits and
//! of the [`Encoding`](crate::Encoding) that the model was given. They need no device, and a tokenizer only to write
//! text again.
//!
//! | function | takes | gives |
//! |---|---|---|
//! | [`classify`], [`rank`] | a logit per label; scores | labels or inputs, best first |
//! | [`entities`] | a logit per label, of each token | parts of the text with their label |
//! | [`answers`] | logits of start and end, of each token of each window | parts of the context |
//! | [`fill_mask`], [`filled_text`] | a logit per token of the vocabulary | tokens for the mask, and the text with one of them |
//! | [`sparse`] | a weight per token of the vocabulary | those that are not zero |
//!
//! They follow the pipelines of the transformers library; a function that departs from them says so. Every span is a
//! range of bytes of the text, at character boundaries. An infinite logit counts as the largest number, and NaN is an
//! error, so that every score is a number.
//!
//! ```
//! use turbo_models::{ScoreFunction, tasks::classify};
//!
//! let labels = ["negative", "neutral", "positive"];
//! let best = classify(&[-1.2, 0.3, 2.9], ScoreFunction::Softmax)?[0];
//! assert_eq!((labels[best.index], best.score > 0.9), ("positive", true));
//! # Ok::<(), turbo_models::tasks::TaskError>(())
//! ```

mod answers;
mod classify;
mod entities;
mod fill_mask;
mod scores;
mod sparse;

pub use self::{
    answers::{Answer, AnswerOptions, AnswerWindow, Edges, NullAnswer, answers},
    classify::{LabelScore, classify, rank, scores},
    entities::{Aggregation, Entity, entities},
    fill_mask::{TokenScore, fill_mask, filled_text, mask_positions},
    sparse::{SparseValue, sparse},
};

/// Why logits have no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// The model broke down: a logit is NaN.
    #[error("the model gave NaN in place {index} of {len} logits")]
    NotANumber {
        /// Index of that logit.
        index: usize,
        /// Number of logits.
        len: usize,
    },
    /// The logits are not those of the input.
    #[error("{got} logits, expected {expected}")]
    Length {
        /// Number of logits that the input has.
        expected: usize,
        /// Number of logits that there are.
        got: usize,
    },
}
