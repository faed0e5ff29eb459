//! Why a text does not become an input that the model takes.

/// Why an input cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizeError {
    /// More tokens than the model takes.
    #[error("the input is longer than {limit} tokens: {tokens} counted")]
    TooLong {
        /// Its tokens, special ones included; fewer than it really has if counting stopped early.
        tokens: usize,
        /// Most tokens of one input.
        limit: usize,
    },
    /// A question that leaves too little of a window to its context.
    #[error(
        "the question leaves {room} tokens of a window to the context, expected more than the stride of {stride}"
    )]
    Window {
        /// Tokens of the context in one window.
        room: usize,
        /// Tokens that two neighbouring windows share.
        stride: usize,
    },
    /// Nothing to run.
    #[error("the input has no tokens, expected at least one")]
    Empty,
    /// The lists of one input differ in length.
    #[error("expected {tokens} token types, one per token, got {token_types}")]
    Uneven {
        /// Number of tokens.
        tokens: usize,
        /// Number of token types.
        token_types: usize,
    },
    /// An id without a row in the word embedding table.
    #[error("token {id} is outside the model's vocabulary of {vocab_size}")]
    Vocabulary {
        /// The id.
        id: u32,
        /// Rows of the table.
        vocab_size: usize,
    },
    /// An id without a row in the token type table.
    #[error("token type {id} is outside the model's {type_vocab_size} token types")]
    TokenType {
        /// The id.
        id: u32,
        /// Rows of the table.
        type_vocab_size: usize,
    },
    /// The tokenizer failed.
    #[error("the tokenizer failed: {why}")]
    Tokenizer {
        /// Its message.
        why: String,
    },
}
