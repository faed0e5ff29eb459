//! What goes into an [`Embedder`](super::Embedder) and what comes out: plain values, no protocol, no device.

use std::time::Duration;

/// One text to embed, or its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A text; the model's tokenizer adds its special tokens.
    Text(String),
    /// Token ids, used verbatim: no special tokens are added.
    Ids(Vec<u32>),
}

/// What a request wants back for each input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// One row per input.
    Pooled {
        /// Whether the row is divided by its L2 norm.
        normalize: bool,
        /// Keep the first so many values, before normalising (Matryoshka); `None` keeps all.
        dimensions: Option<usize>,
    },
    /// One row per token of the input, as the last layer leaves them.
    Tokens,
}

/// What happens to an input longer than the model's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// It is refused with [`EngineError::TooLong`](super::EngineError::TooLong).
    Off,
    /// Tokens at the start are dropped.
    Left,
    /// Tokens at the end are dropped.
    Right,
}

/// Inputs that are answered together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbedRequest {
    /// One to `max_client_batch_size` inputs.
    pub inputs: Vec<Input>,
    /// What is wanted for each of them.
    pub output: OutputKind,
    /// What happens to inputs that are too long; `None` is the server's default.
    pub truncation: Option<Truncation>,
}

/// The answer to one input.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// `[rows, row_len]`: one row for [`OutputKind::Pooled`], `tokens` rows for [`OutputKind::Tokens`].
    pub values: Vec<f32>,
    /// Values per row: `hidden_size`, or the `dimensions` asked for.
    pub row_len: usize,
    /// Tokens of the input after truncation, special tokens included.
    pub tokens: usize,
}

/// The answers to a request, in the order of its inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbedResponse {
    /// One per input.
    pub rows: Vec<Row>,
    /// Where the time went.
    pub timings: Timings,
    /// Unicode characters of all text inputs.
    pub characters: usize,
    /// Tokens of all inputs after truncation.
    pub tokens: usize,
}

/// Where the time of a request went. `total` is of the request; the others are the mean over its inputs, as
/// text-embeddings-inference reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From the call to the answer.
    pub total: Duration,
    /// From the call until the input was tokens (waiting for a tokenizer thread included).
    pub tokenization: Duration,
    /// From tokens until its batch started.
    pub queue: Duration,
    /// Its batch.
    pub inference: Duration,
}

/// Whether requests are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// They are.
    Ready,
    /// The model is being built or measured; requests wait.
    Starting,
    /// The model cannot be run any more; every request fails.
    Failing,
    /// New requests are refused, accepted ones are being answered.
    Stopping,
}

/// What is served, and within which limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// As it was given: a path or a short name.
    pub model_id: String,
    /// Last component of the model's path.
    pub name: String,
    /// What is computed in: `float32`.
    pub dtype: &'static str,
    /// `cls`, `mean` or `last_token`.
    pub pooling: &'static str,
    /// Most tokens of one input.
    pub max_input_length: usize,
    /// Most tokens of one batch.
    pub max_batch_tokens: usize,
    /// Most inputs of one batch, where the server was given a limit.
    pub max_batch_requests: Option<usize>,
    /// Most inputs of one request.
    pub max_client_batch_size: usize,
    /// Most inputs in the server at a time.
    pub max_concurrent_requests: usize,
    /// What happens to inputs that are too long when a request does not say: cut at the end, or refused.
    pub auto_truncate: bool,
    /// Threads that make tokens.
    pub tokenization_workers: usize,
    /// Values of one row.
    pub hidden_size: usize,
    /// Ids are below this.
    pub vocab_size: usize,
    /// What the model runs on, as a person calls it: `cpu (avx512, 2 threads)`.
    pub device: String,
    /// Without one, inputs must be ids.
    pub has_tokenizer: bool,
    /// Version of this server.
    pub version: &'static str,
}

impl ModelInfo {
    /// What happens to an input that is too long when its request does not say.
    #[must_use]
    pub fn default_truncation(&self) -> Truncation {
        if self.auto_truncate { Truncation::Right } else { Truncation::Off }
    }
}
