//! The seam to a model's tokenizer, and what can be asked of it beside the answers of its model.

use std::sync::Arc;

use turbo_models::{Encoding, SpecialTokens, Text, Truncation};

use super::{Encoded, Prompt};

/// From text to tokens and back; shared by all tokenizer threads.
pub trait Tokenize: Send + Sync {
    /// What the model reads of `text`: special tokens added, cut to the limit if `truncation` says so.
    ///
    /// # Errors
    /// [`TokenizeError::TooLong`] with truncation off; [`TokenizeError::Failed`].
    fn encode(&self, text: Text<'_>, truncation: Truncation) -> Result<Encoded, TokenizeError>;

    /// The tokens of `text` with all that is known of each: one list of them, or as many as there are windows.
    ///
    /// # Errors
    /// As [`Tokenize::encode`]; a first text that leaves windows no room.
    fn tokens(&self, text: Text<'_>, extent: Extent) -> Result<Vec<Encoding>, TokenizeError>;

    /// The text of `ids`; without special tokens, those of the vocabulary are left out of it.
    ///
    /// # Errors
    /// [`TokenizeError::Failed`].
    fn decode(&self, ids: &[u32], special: SpecialTokens) -> Result<String, TokenizeError>;

    /// The same with another limit: most tokens of one input.
    fn limited_to(&self, max_input_length: usize) -> Arc<dyn Tokenize>;
}

/// How much of a text is made into tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it, however long, with special tokens around it or without.
    Whole(SpecialTokens),
    /// All of it as the one token that the vocabulary writes so: `##ing`. Where there is none, as its tokens, without
    /// special ones.
    Word,
    /// What one input of the model may have, special tokens included.
    Input(Truncation),
    /// All of the second of a pair, in windows that each are an input and hold all of the first.
    Windows {
        /// Most tokens of one window; what the model takes, if that is less.
        max_len: usize,
        /// Tokens that two neighbouring windows share.
        stride: usize,
    },
}

/// Why a text has no tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizeError {
    /// The text is longer than the model's limit.
    #[error("{tokens} tokens exceed the limit of {limit}")]
    TooLong {
        /// Its tokens, special tokens included.
        tokens: usize,
        /// The most a model takes.
        limit: usize,
    },
    /// The tokenizer does not take this text.
    #[error("{0}")]
    Failed(String),
}

/// Texts to be made into tokens, to be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizeRequest {
    /// One to `max_client_batch_size` texts.
    pub texts: Vec<Texts>,
    /// How much of each.
    pub extent: Extent,
    /// What is put before each: one that [`Prompts::choose`](super::Prompts::choose) gave, or nothing.
    pub prompt: Prompt,
}

/// A text by itself, or two that the model looks at together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Texts {
    /// One.
    One(String),
    /// A question and its context.
    Pair(String, String),
}

impl Texts {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::One(text) => text.len(),
            Self::Pair(first, second) => first.len() + second.len(),
        }
    }
}

/// What became of one of [`TokenizeRequest::texts`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokenized {
    /// What was made into tokens, its prompt included: offsets are into this.
    pub texts: Texts,
    /// One, or as many as there are windows.
    pub encodings: Vec<Encoding>,
}

/// Ids to be made into text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeRequest {
    /// One to `max_client_batch_size` lists of them.
    pub ids: Vec<Vec<u32>>,
    /// Whether special tokens are kept.
    pub special: SpecialTokens,
}
