//! What is known of a model, and what serving it adds.

use std::sync::Arc;

use turbo_models::{RowLens, ScoreFunction, Task};

use super::{OutputKind, Prompts, Truncation};

/// What is known of a model before it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// As it was given: a path or a name.
    pub model_id: String,
    /// Its commit on the Hub, where it came from there.
    pub sha: Option<String>,
    /// What people call it: the last part of its name.
    pub name: String,
    /// What products are computed in: `float32`, `bfloat16`, `int8`.
    pub dtype: &'static str,
    /// What the model runs on, as a person calls it: `cpu (avx512, 2 threads)`.
    pub device: String,
    /// What is computed of an input.
    pub task: Task,
    /// What the logits of a classifier are about, in their order; shared, for every answer names some.
    pub labels: Arc<[String]>,
    /// How these logits become scores.
    pub score_function: ScoreFunction,
    /// How the only one of a cross-encoder does where its folder is taken at its word: by the function that it names.
    pub pair_score_function: ScoreFunction,
    /// What stands for a word that a masked language model is to guess, where its tokenizer has it.
    pub mask_token: Option<MaskToken>,
    /// What may be put before texts.
    pub prompts: Prompts,
    /// The rows it gives.
    pub rows: RowLens,
    /// Most tokens of one input.
    pub max_input_length: usize,
    /// Ids are below this.
    pub vocab_size: usize,
    /// Token types are below this.
    pub type_vocab_size: usize,
}

/// What stands for a word to be guessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskToken {
    /// Its id.
    pub id: u32,
    /// As it is written in a text: `[MASK]`.
    pub text: String,
}

impl ModelInfo {
    /// Values of a row of this kind; `None` where the model's task has no such rows.
    #[must_use]
    pub fn row_len(&self, output: OutputKind) -> Option<usize> {
        match output {
            OutputKind::Pooled { .. } => self.rows.pooled,
            OutputKind::Tokens => self.rows.tokens,
            OutputKind::Selected => self.rows.selected,
        }
    }
}

/// What is served, and within which limits.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineInfo {
    /// What is known of the model.
    pub model: ModelInfo,
    /// Most tokens of one input: what the model takes, and what fits into a batch.
    pub max_input_length: usize,
    /// Most tokens of one batch.
    pub max_batch_tokens: usize,
    /// Most inputs of one batch, where there is a limit beside the tokens.
    pub max_batch_requests: Option<usize>,
    /// Most inputs of one request.
    pub max_client_batch_size: usize,
    /// Most inputs in the server at a time.
    pub max_concurrent_requests: usize,
    /// What happens to inputs that are too long when a request does not say: cut at the end, or refused.
    pub auto_truncate: bool,
    /// Threads that make tokens; 0 where the model has no tokenizer and inputs must be ids.
    pub tokenization_workers: usize,
    /// Most bytes that answers are kept in; `None` where none are kept.
    pub cache_bytes: Option<usize>,
    /// Version of this server.
    pub version: &'static str,
}

impl EngineInfo {
    /// What happens to an input that is too long when its request does not say.
    #[must_use]
    pub fn default_truncation(&self) -> Truncation {
        if self.auto_truncate { Truncation::Right } else { Truncation::Off }
    }
}
