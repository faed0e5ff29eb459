//! The interface to a model's tokenizer, with that of turbo-models behind it, and the requests that need only a
//! tokenizer.

use std::sync::Arc;

use turbo_models::{Encoding, SpecialTokens, Text, TextTokenizer, Truncation};

use crate::engine::{Encoded, Prompt};

/// From text to tokens and back; shared by all tokenizer threads.
pub trait Tokenize: Send + Sync {
    /// Encodes `text` for the model: adds special tokens, and cuts to the limit if `truncation` says so.
    ///
    /// # Errors
    /// [`TokenizeError::TooLong`] with truncation off; [`TokenizeError::Failed`].
    fn encode(&self, text: Text<'_>, truncation: Truncation) -> Result<Encoded, TokenizeError>;

    /// The tokens of `text`, with everything that is known about each: one list, or one for each window.
    ///
    /// # Errors
    /// Those of [`Tokenize::encode`]; also if the first text leaves no room in a window.
    fn tokens(&self, text: Text<'_>, extent: Extent) -> Result<Vec<Encoding>, TokenizeError>;

    /// The text of `ids`, with special tokens or without.
    ///
    /// # Errors
    /// [`TokenizeError::Failed`].
    fn decode(&self, ids: &[u32], special: SpecialTokens) -> Result<String, TokenizeError>;

    /// The same tokenizer with another limit of tokens per input.
    fn limited_to(&self, max_input_length: usize) -> Arc<dyn Tokenize>;

    /// The same tokenizer, which tells the model to judge pairs by `instruction`. Called only for models with
    /// [`ModelInfo::takes_instruction`](crate::engine::ModelInfo::takes_instruction).
    ///
    /// # Errors
    /// [`TokenizeError::Failed`], as where the tokenizer has no place for an instruction.
    fn with_instruction(&self, instruction: &str) -> Result<Arc<dyn Tokenize>, TokenizeError> {
        Err(TokenizeError::Failed(format!("it has no place for the instruction {instruction:?}")))
    }
}

/// How much of a text is tokenized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it, however long, with special tokens around it or without.
    Whole(SpecialTokens),
    /// All of it as the one token that the vocabulary spells like this: `##ing`. If there is none, as the tokens of the
    /// text, without special ones.
    Word,
    /// As much as one input of the model may have, special tokens included.
    Input(Truncation),
    /// All of the second text of a pair, in windows; each window is one input, and holds all of the first text.
    Windows {
        /// Most tokens of one window; the model's limit, if that is less.
        max_len: usize,
        /// Tokens that two neighbouring windows share.
        stride: usize,
    },
}

/// Why a text was not tokenized, or ids were not decoded.
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
    /// The tokenizer failed on this text, or on these ids.
    #[error("{0}")]
    Failed(String),
}

/// A request to tokenize texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizeRequest {
    /// One to `max_client_batch_size` texts.
    pub texts: Vec<Texts>,
    /// How much of each is tokenized.
    pub extent: Extent,
    /// The prompt before each: one from [`Prompts::choose`](crate::engine::Prompts::choose), or none.
    pub prompt: Prompt,
    /// Whether the caller waits and retries where there is no room, as of
    /// [`InferRequest::retries`](crate::engine::InferRequest::retries).
    pub retries: bool,
}

impl TokenizeRequest {
    /// A request of texts without a prompt, whose caller does not retry.
    #[must_use]
    pub fn new(texts: Vec<Texts>, extent: Extent) -> Self {
        Self { texts, extent, prompt: Prompt::None, retries: false }
    }
}

/// A text by itself, or two that the model reads together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Texts {
    /// One text.
    One(String),
    /// A question and its context.
    Pair(String, String),
}

impl Texts {
    pub(in crate::engine) fn bytes(&self) -> usize {
        match self {
            Self::One(text) => text.len(),
            Self::Pair(first, second) => first.len() + second.len(),
        }
    }
}

/// The tokens of one of [`TokenizeRequest::texts`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokenized {
    /// The text that was tokenized, its prompt included; offsets refer to it.
    pub texts: Texts,
    /// One, or one for each window.
    pub encodings: Vec<Encoding>,
}

/// A request to decode token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeRequest {
    /// One to `max_client_batch_size` lists of them.
    pub ids: Vec<Vec<u32>>,
    /// Whether special tokens are kept.
    pub special: SpecialTokens,
    /// Whether the caller waits and retries where there is no room, as of
    /// [`InferRequest::retries`](crate::engine::InferRequest::retries).
    pub retries: bool,
}

impl DecodeRequest {
    /// A request whose caller does not retry.
    #[must_use]
    pub fn new(ids: Vec<Vec<u32>>, special: SpecialTokens) -> Self {
        Self { ids, special, retries: false }
    }
}

impl Tokenize for TextTokenizer {
    fn encode(&self, text: Text<'_>, truncation: Truncation) -> Result<Encoded, TokenizeError> {
        let turbo_models::Encoded { input_ids, token_type_ids } = self.encode(text, truncation)?;
        Ok(Encoded { input_ids, token_type_ids, selected: Vec::new() })
    }

    fn tokens(&self, text: Text<'_>, extent: Extent) -> Result<Vec<Encoding>, TokenizeError> {
        Ok(match (extent, text) {
            (Extent::Whole(special), _) => vec![self.tokenize(text, special)?],
            (Extent::Word, Text::One(word)) => vec![self.word(word)?],
            (Extent::Word, Text::Pair(..)) => vec![self.tokenize(text, SpecialTokens::Without)?],
            (Extent::Input(truncation), _) => vec![self.encode_detailed(text, truncation)?],
            (Extent::Windows { max_len, stride }, Text::Pair(question, context)) => {
                self.windows(question, context, max_len, stride)?
            }
            (Extent::Windows { .. }, Text::One(_)) => {
                return Err(TokenizeError::Failed("windows are over the second of two texts".into()));
            }
        })
    }

    fn decode(&self, ids: &[u32], special: SpecialTokens) -> Result<String, TokenizeError> {
        Ok(self.decode(ids, special)?)
    }

    fn limited_to(&self, max_input_length: usize) -> Arc<dyn Tokenize> {
        Arc::new(self.limited_to(max_input_length))
    }

    fn with_instruction(&self, instruction: &str) -> Result<Arc<dyn Tokenize>, TokenizeError> {
        let told = self.with_instruction(instruction).map_err(|error| {
            TokenizeError::Failed(match error {
                // a client need not know where the template lies
                turbo_models::ModelError::Field { field, why, .. } => format!("the model's {field}: {why}"),
                other => other.to_string(),
            })
        });
        Ok(Arc::new(told?))
    }
}

impl From<turbo_models::TokenizeError> for TokenizeError {
    fn from(error: turbo_models::TokenizeError) -> Self {
        match error {
            turbo_models::TokenizeError::TooLong { tokens, limit } => Self::TooLong { tokens, limit },
            other => Self::Failed(other.to_string()),
        }
    }
}
