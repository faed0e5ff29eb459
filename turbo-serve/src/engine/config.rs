//! How an engine is configured, what it serves, and why it may not start.

use std::{
    num::{NonZeroU64, NonZeroUsize},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use turbo_models::Task;
use turbo_sched::{Candidate, Dispatch, Layout, Limits, Policy};

use super::{
    BatchTokens, BuildRunner, Capacity, DeviceTurns, EngineInfo, MAX_SELECTED, ModelInfo, RunError, Tokenize,
};
use crate::cache::ResponseCache;

/// How an engine forms batches and admits requests. The limits are those of text-embeddings-inference.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Which inputs share a batch.
    pub batching: Policy,
    /// When a batch is formed.
    pub dispatch: Dispatch,
    /// Time within which every request that names no deadline is to be answered. A request that is predicted to miss it
    /// is rejected; one whose batch has not begun by then expires. Requests that take longer even alone are exempt.
    /// `None`: no limit.
    pub slo: Option<Duration>,
    /// Most tokens of one batch.
    pub max_batch_tokens: BatchTokens,
    /// Most inputs of one batch; `None`: as many as the tokens allow, and for models whose rows are as wide as their
    /// vocabulary no more than have 256 MiB of rows.
    pub max_batch_requests: Option<usize>,
    /// Most inputs of one request.
    pub max_client_batch_size: usize,
    /// Most inputs in the server at a time.
    pub max_concurrent_requests: usize,
    /// Whether inputs that are too long are cut at the end or rejected when their request does not say.
    pub auto_truncate: bool,
    /// Threads that tokenize texts, see [`EngineConfig::workers_beside`]; one or two more wait for texts of 16 KiB
    /// and more, and sleep while there are none.
    pub tokenization_workers: usize,
    /// Time for measuring batches before the engine is ready.
    pub warm_up: Duration,
    /// Folder in which measured costs are kept between runs; `None`: they are measured at every start.
    pub cost_cache: Option<PathBuf>,
    /// The turns on the device, shared with the other engines on it; by default the engine has the device alone.
    pub turns: DeviceTurns,
    /// Value of the label `model` of its metrics, which tells several engines of a process apart.
    pub label: Option<String>,
    /// Where answers are kept, so that the same input need not be computed again; several engines may share it. `None`:
    /// each input is computed.
    pub cache: Option<ResponseCache>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            batching: Policy::OptimalSplit,
            dispatch: Dispatch::Hungry,
            slo: None,
            max_batch_tokens: BatchTokens::default(),
            max_batch_requests: None,
            max_client_batch_size: 32,
            max_concurrent_requests: 512,
            auto_truncate: true,
            tokenization_workers: 1,
            warm_up: Duration::from_secs(10),
            cost_cache: None,
            turns: DeviceTurns::default(),
            label: None,
            cache: None,
        }
    }
}

/// A bound, because the queue's memory for them is reserved at start.
const MOST_CONCURRENT_REQUESTS: usize = 1 << 20;

/// A model to serve: what is known of it, and how to build its runner.
pub struct Model {
    /// What is known of it.
    pub info: ModelInfo,
    /// How the sequences of a batch share a tensor.
    pub layout: Layout,
    /// Without one, inputs must be ids.
    pub tokenizer: Option<Arc<dyn Tokenize>>,
    /// The padding id. It is removed from the end of inputs, so that nothing is computed for it. `None`: all ids are
    /// kept.
    pub padding_id: Option<u32>,
    /// What is computed, operator by operator: the key that measured costs are kept under. `None`: they are not kept.
    pub identity: Option<String>,
    /// Everything that the bits of its rows depend on: rows that any process has kept under it are this model's.
    /// `None`: its rows are not kept beyond this process.
    pub fingerprint: Option<String>,
    /// Builds its runner, on the worker's thread.
    pub build: BuildRunner,
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A limit of 0.
    #[error("{name} must be at least 1")]
    Zero {
        /// Which limit.
        name: &'static str,
    },
    /// One input would not fit into a batch.
    #[error(
        "max_batch_tokens is {max_batch_tokens}, but one input of this model may have {max_input_length} tokens: raise it to at least that, or let inputs be cut (auto_truncate)"
    )]
    BatchTokens {
        /// What was asked for.
        max_batch_tokens: usize,
        /// What the model needs.
        max_input_length: usize,
    },
    /// More inputs, or threads, than a server can sensibly have.
    #[error("{name} is {got}, at most {limit} are possible")]
    TooMany {
        /// Which limit.
        name: &'static str,
        /// What was asked for.
        got: usize,
        /// The most there can be.
        limit: usize,
    },
    /// The configured largest batch, or one input alone, does not fit into memory.
    #[error(
        "a batch of {tokens} tokens needs {} of memory, but {} are free: {}",
        megabytes(*needed), megabytes(*free), what_fits(*fits)
    )]
    Memory {
        /// Tokens of that batch.
        tokens: usize,
        /// Bytes planned for it.
        needed: u64,
        /// Bytes that are free, without what other models of the process have reserved.
        free: u64,
        /// The largest `max_batch_tokens` that fits; `None` where no batch does.
        fits: Option<usize>,
    },
    /// The model could not be made ready.
    #[error("the model could not be made ready")]
    Runner(#[source] RunError),
    /// The worker's thread panicked while it built or warmed up the model.
    #[error("the model panicked while it was being made ready: {0}")]
    Panicked(String),
    /// A thread could not be started.
    #[error("a thread could not be started")]
    Thread(#[from] std::io::Error),
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

fn what_fits(fits: Option<usize>) -> String {
    match fits {
        Some(tokens) => format!("set max_batch_tokens to {tokens} or less, or free some memory"),
        None => "there is no room for any batch: free some memory".to_owned(),
    }
}

impl EngineConfig {
    /// Most tokenizer threads: a system that runs out of threads ends the whole process.
    pub const MOST_TOKENIZATION_WORKERS: usize = 1 << 10;

    /// The number of threads that the system lets this process run at once, less those that compute: 1 to 64. More
    /// tokenizer threads than that would slow down the model.
    #[must_use]
    pub fn workers_beside(compute_threads: NonZeroUsize) -> usize {
        let all = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        workers_beside(all, compute_threads)
    }

    /// Checks the limits that do not depend on the model.
    ///
    /// # Errors
    /// [`StartError::Zero`], [`StartError::TooMany`].
    pub fn check_limits(&self) -> Result<(), StartError> {
        for (name, value) in [
            ("max_batch_tokens", self.max_batch_tokens.most()),
            ("max_batch_requests", self.max_batch_requests.unwrap_or(1)),
            ("max_client_batch_size", self.max_client_batch_size),
            ("max_concurrent_requests", self.max_concurrent_requests),
            ("tokenization_workers", self.tokenization_workers),
        ] {
            if value == 0 {
                return Err(StartError::Zero { name });
            }
        }
        for (name, got, limit) in [
            ("max_concurrent_requests", self.max_concurrent_requests, MOST_CONCURRENT_REQUESTS),
            ("tokenization_workers", self.tokenization_workers, Self::MOST_TOKENIZATION_WORKERS),
        ] {
            if got > limit {
                return Err(StartError::TooMany { name, got, limit });
            }
        }
        Ok(())
    }

    /// Whether `model` can be served with these limits.
    pub(super) fn check(&self, model: &Model) -> Result<(), StartError> {
        self.check_limits()?;
        let max_input_length = model.info.max_input_length;
        if self.max_batch_tokens.longest_input(max_input_length) < max_input_length && !self.auto_truncate {
            let max_batch_tokens = self.max_batch_tokens.most();
            return Err(StartError::BatchTokens { max_batch_tokens, max_input_length });
        }
        Ok(())
    }

    /// What is served with these limits. `max_batch_tokens` is the most there can be, until costs are measured.
    pub(super) fn info(&self, model: &Model) -> EngineInfo {
        let (own, limit) = (model.info.max_input_length, self.max_batch_tokens.most());
        let max_input_length = self.max_batch_tokens.longest_input(own);
        if own > max_input_length {
            // Models of 32k tokens are common, inputs of that length are not, and memory is reserved for the longest.
            tracing::warn!(
                max_input_length = own,
                max_batch_tokens = limit,
                "inputs are cut to fit into a batch"
            );
        }
        // A request larger than all slots together can never be admitted: it fails for good, and is not told to retry.
        let max_client_batch_size = self.max_client_batch_size.min(self.max_concurrent_requests);
        if self.max_client_batch_size > max_client_batch_size {
            tracing::warn!(
                max_client_batch_size = self.max_client_batch_size,
                max_concurrent_requests = self.max_concurrent_requests,
                "requests may have no more inputs than max_concurrent_requests"
            );
        }
        let admitted = self.max_concurrent_requests.min(limit);
        let by_rows = bounded_by_rows(&model.info).filter(|&most| most < admitted);
        EngineInfo {
            model: model.info.clone(),
            max_input_length,
            max_batch_tokens: limit,
            max_batch_requests: self.max_batch_requests.or(by_rows),
            max_client_batch_size,
            max_concurrent_requests: self.max_concurrent_requests,
            auto_truncate: self.auto_truncate,
            tokenization_workers: if model.tokenizer.is_some() { self.tokenization_workers } else { 0 },
            cache_bytes: self.cache.as_ref().map(ResponseCache::bytes),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// Memory that rows as wide as the vocabulary may take by default. A batch of 512 inputs with 128 masked tokens each
/// would have 8 GB of such rows with BERT's vocabulary, and 65 GB with XLM-R's.
const VOCABULARY_ROWS: usize = 256 << 20;

/// Most inputs of a batch whose rows fit into [`VOCABULARY_ROWS`], for models whose rows are as wide as the vocabulary:
/// one row per input of a sparse embedding, [`MAX_SELECTED`] of a masked language model. (Inputs and not rows are
/// limited, because the batcher counts only inputs and tokens.)
fn bounded_by_rows(model: &ModelInfo) -> Option<usize> {
    let (width, rows) = match model.task {
        Task::SparseEmbedding => (model.rows.pooled?, 1),
        Task::MaskedLm => (model.rows.selected?, MAX_SELECTED),
        _ => return None,
    };
    let bytes = width.saturating_mul(rows * size_of::<f32>()).max(1);
    Some((VOCABULARY_ROWS / bytes).max(1))
}

fn workers_beside(all: NonZeroUsize, compute: NonZeroUsize) -> usize {
    all.get().saturating_sub(compute.get()).clamp(1, 64)
}

impl EngineInfo {
    /// The largest batch of at most `tokens` tokens that can be formed: no more inputs than are admitted, at least one
    /// token for each, and room for the longest input alone, even if that has more tokens.
    pub(super) fn capacity_of(&self, tokens: usize) -> Capacity {
        let total_tokens = tokens.max(self.max_input_length);
        let admitted = self.max_concurrent_requests.min(total_tokens);
        Capacity {
            batch_size: self.max_batch_requests.unwrap_or(admitted).min(admitted),
            total_tokens,
            max_seq_len: self.max_input_length,
        }
    }
}

impl Capacity {
    /// Room for one token: what a runner is built with before it is known whether more fits.
    pub(super) const LEAST: Self = Self { batch_size: 1, total_tokens: 1, max_seq_len: 1 };

    /// The same with at most `tokens` tokens, even if inputs have to be cut.
    pub(super) fn at_most(self, tokens: usize) -> Self {
        let Self { batch_size, total_tokens, max_seq_len } = self;
        Self {
            batch_size: batch_size.min(tokens),
            total_tokens: total_tokens.min(tokens),
            max_seq_len: max_seq_len.min(tokens),
        }
    }

    /// The batch that takes the most memory.
    pub(super) fn largest(&self, layout: Layout) -> Candidate {
        let Self { batch_size, total_tokens, max_seq_len } = *self;
        match layout {
            Layout::Packed => Candidate {
                batch_size,
                max_seq_len: u32::try_from(max_seq_len).unwrap_or(u32::MAX),
                total_tokens: total_tokens as u64,
                sum_len_sq: (total_tokens as u64).saturating_mul(max_seq_len as u64),
            },
            Layout::Padded => {
                let rows = (total_tokens / max_seq_len.max(1)).clamp(1, batch_size.max(1));
                std::iter::repeat_n(u32::try_from(max_seq_len).unwrap_or(u32::MAX), rows).collect()
            }
        }
    }

    /// The batcher's limits: several inputs share at most `shared_tokens` tokens.
    pub(super) fn limits(&self, shared_tokens: usize) -> Limits {
        Limits {
            max_batch_size: NonZeroUsize::new(self.batch_size).unwrap_or(NonZeroUsize::MIN),
            max_batch_tokens: NonZeroU64::new(shared_tokens as u64).unwrap_or(NonZeroU64::MIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_made_on_the_cores_that_compute_leaves() {
        for (all, compute, workers) in
            [(1, 1, 1), (2, 2, 1), (2, 1, 1), (4, 1, 3), (8, 6, 2), (4, 9, 1), (64, 1, 63), (192, 16, 64)]
        {
            let [of, used] = [all, compute].map(|threads| NonZeroUsize::new(threads).unwrap());
            assert_eq!(workers_beside(of, used), workers, "{compute} of {all} compute");
        }
    }
}
