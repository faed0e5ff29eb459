//! What is known of a model, and the limits within which it is served.

use std::sync::Arc;

use turbo_models::{RowLens, ScoreFunction, Task};

use super::{OutputKind, Prompts, Truncation};

/// What is known of a model before it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// The id under which it was given: a path or a name.
    pub model_id: String,
    /// Its commit on the Hub, where it came from there.
    pub sha: Option<String>,
    /// Its short name: the last part of its name.
    pub name: String,
    /// Data type that products are computed in: `float32`, `float16`, `bfloat16`, `int8`.
    pub dtype: &'static str,
    /// The device it runs on, in readable form: `cpu (avx512, 2 threads)`.
    pub device: String,
    /// What is computed of an input.
    pub task: Task,
    /// Labels of a classifier's logits, in their order; shared, since every answer names some.
    pub labels: Arc<[String]>,
    /// How these logits become scores.
    pub score_function: ScoreFunction,
    /// How the logit of a cross-encoder becomes a score: by the function that its folder names, else by a sigmoid.
    pub pair_score_function: ScoreFunction,
    /// The mask token of a masked language model, where its tokenizer has one.
    pub mask_token: Option<MaskToken>,
    /// The prompts that may be put before texts.
    pub prompts: Prompts,
    /// Whether a request may name the instruction by which pairs are judged: its template has a place for one.
    pub takes_instruction: bool,
    /// The rows it gives.
    pub rows: RowLens,
    /// Most tokens of one input.
    pub max_input_length: usize,
    /// Ids are below this.
    pub vocab_size: usize,
    /// Token types are below this.
    pub type_vocab_size: usize,
}

/// The token that stands for a word to be predicted.
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
    /// Most tokens of one input: the model's limit, or fewer if a batch holds fewer.
    pub max_input_length: usize,
    /// Most tokens of one batch.
    pub max_batch_tokens: usize,
    /// Most inputs of one batch, where inputs are limited in addition to tokens.
    pub max_batch_requests: Option<usize>,
    /// Most inputs of one request.
    pub max_client_batch_size: usize,
    /// Most inputs in the server at a time.
    pub max_concurrent_requests: usize,
    /// Whether inputs that are too long are cut at the end or rejected when their request does not say.
    pub auto_truncate: bool,
    /// Tokenizer threads; 0 where the model has no tokenizer and inputs must be ids.
    pub tokenization_workers: usize,
    /// Most bytes of memory of the response cache; `None` without one.
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
