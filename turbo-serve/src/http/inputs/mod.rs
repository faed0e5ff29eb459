//! The inputs of a request, in the forms that each route takes.
//!
//! | route | forms | |
//! |---|---|---|
//! | `/embed` and similar routes | a text, a list of ids, or a list that mixes both | [`Inputs`] |
//! | `/predict` | a text, a pair of texts, or a list of lists of one or two | [`PredictInputs`] |
//! | `/tokenize` | a text, or a list of texts | [`TextList`] |
//! | `/decode` | a list of ids, or a list of such lists | [`IdLists`] |
//! | `documents` of rerankers | a list of texts, or of objects with a text | [`Documents`] |
//! | `/similarity`, questions, `parameters` | an object | [`Object`] |
//! | `dimensions`, `top_k` and similar fields | a whole number | [`Count`] |
//! | `truncate_prompt_tokens` | a whole number, also -1 | [`Whole`] |
//!
//! Each is read in one pass, without trying one form after another: the first element of a list determines what the
//! others must be. So an error can name the value, its position and what was expected there, which an untagged enum
//! cannot.

mod count;
mod documents;
mod element;
mod embed;
mod lists;
mod object;
mod predict;

use super::metrics::Arity;
use crate::engine::Input;

pub(super) use count::{Count, Whole, at_least_one};
pub(super) use documents::Documents;
pub(super) use embed::Inputs;
pub(super) use lists::{IdLists, TextList};
pub(super) use object::Object;
pub(super) use predict::PredictInputs;

/// The inputs of a request, and whether they came as one or as a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) inputs: Vec<Input>,
    pub(super) arity: Arity,
}

impl Counted {
    fn single(input: Input) -> Self {
        Self { inputs: vec![input], arity: Arity::Single }
    }

    /// A list, which may be empty.
    fn batch(inputs: Vec<Input>) -> Self {
        Self { inputs, arity: Arity::Batch }
    }
}
