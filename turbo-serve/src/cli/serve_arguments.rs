//! Arguments of `turbo serve`, and what they say of a model and its server.

use std::{num::NonZeroUsize, path::PathBuf};

use anyhow::{Error, Result, anyhow, ensure};
use clap::{ArgAction, Args};
use turbo_serve::{
    engine::{BatchTokens, DefaultPrompt, EngineConfig, OpenError, OpenOptions, StartError},
    http::HttpOptions,
    net::{self, InFlightLimits},
};

use super::{
    batching_arguments::BatchingArguments,
    bytes::Bytes,
    cache_arguments::CacheArguments,
    caches::{self, CacheArgument, PackedCacheArguments},
    device::Wish,
    environment,
    log::LogArguments,
    model_arguments::{LayoutArgument, ModelArguments, PoolingArgument},
    model_id::Place,
    net_arguments::NetArguments,
    number::{above_0, count, whole},
    tei_arguments::TeiArguments,
};

const EXAMPLES: &str = "\
Examples:
  turbo serve minilm                      the model that `cargo xtask model` fetches
  turbo serve path/to/folder --port 0     a free port; the line on standard output says which
  turbo serve minilm --batching none      one input at a time, to see what batching brings
  turbo serve --config turbo.toml         several models; `turbo check-config` checks the file
  MODEL_ID=minilm PORT=8080 turbo serve   every flag can be set by its variable

Try it:
  curl 127.0.0.1:3000/embed -H content-type:application/json -d '{\"inputs\": \"A good soup?\"}'";

/// Serve a model over HTTP and gRPC
///
/// The routes are those of text-embeddings-inference (/embed, /embed_all, /embed_sparse, /similarity, /predict,
/// /rerank, /tokenize, /decode, /info, /health, /metrics), OpenAI (/v1/embeddings), Cohere (/v2/embed), Cohere and Jina
/// (/v1/rerank, /v2/rerank), vLLM (/score, /classify, /pooling), Hugging Face's inference clients (/pipeline/TASK),
/// KServe (/v2/models/NAME/infer and the rest of its protocol) and Vertex AI (/vertex). The same port answers gRPC: the
/// services of text-embeddings-inference and KServe, health and reflection. The model's folder says which task the
/// model is for; routes for other tasks refuse requests and name the route to use.
///
/// When the server is ready, it prints `listening on http://ADDRESS` on standard output; logs go to standard error.
/// SIGTERM and Ctrl-C stop it once the accepted requests are answered. A second signal stops it at once, and so does
/// the end of `--shutdown-grace-ms`: requests that still wait are then refused, and the exit code is 1.
///
/// With `--config` it serves several models, in several versions and under several names.
#[derive(Args, Clone)]
#[command(after_help = EXAMPLES, after_long_help = environment::long_help(EXAMPLES))]
pub(super) struct Arguments {
    /// Serve what this TOML file describes
    ///
    /// The file describes models, with their versions, names and limits, and sets the flags of the server;
    /// docs/config.md lists the keys. If a flag of the server or its variable is given as well, it takes precedence
    /// over the file. Flags of a model are refused with `--config`.
    #[arg(long, env, value_name = "FILE", help_heading = "Model")]
    config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) model: ModelArguments,
    /// How token vectors become one vector per input
    ///
    /// By default, as the model folder says. `splade` gives a sparse vector: a weight for each word of the vocabulary.
    #[arg(long, env, value_enum, help_heading = "Model")]
    pooling: Option<PoolingArgument>,
    /// Name of the prompt for requests that name none
    ///
    /// One of the model's prompts, which is put before texts. By default, the one that the model folder names.
    #[arg(long, env, value_name = "NAME", conflicts_with = "default_prompt", help_heading = "Model")]
    default_prompt_name: Option<String>,
    /// Text to put before texts when a request names no prompt
    ///
    /// For a reranker whose template writes pairs, this is the instruction in the template instead.
    #[arg(long, env, value_name = "TEXT", help_heading = "Model")]
    default_prompt: Option<String>,
    /// Folder of the dense module behind pooling
    ///
    /// A folder below the model's, such as `2_Dense_1024`, for models that have a module for each width of vectors. By
    /// default, the modules that the model folder names.
    #[arg(long, env, value_name = "DIR", help_heading = "Model")]
    pub(super) dense_path: Option<PathBuf>,
    /// Cut the ends of inputs that are too long
    ///
    /// For requests that do not say themselves. With `false`, such inputs are refused, except at /v2/embed: Cohere cuts
    /// them by default.
    #[arg(long, env, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = false,
          default_missing_value = "true", action = ArgAction::Set, help_heading = "Model")]
    auto_truncate: bool,

    /// Threads that tokenize texts
    ///
    /// By default, as many as `--threads` leaves of the threads that the system lets this process use, at least one and
    /// at most 64. One or two further threads tokenize long texts.
    #[arg(long, env, value_name = "N", value_parser = above_0::<NonZeroUsize>, help_heading = "Machine")]
    tokenization_workers: Option<NonZeroUsize>,
    #[command(flatten)]
    packed_cache: PackedCacheArguments,

    #[command(flatten)]
    batching: BatchingArguments,
    /// How the sequences of a batch share a tensor
    #[arg(long, env, value_enum, default_value_t = LayoutArgument::Packed, help_heading = "Batches")]
    layout: LayoutArgument,
    /// Maximum number of tokens in one batch
    ///
    /// With `--layout padded`, padding counts too. Memory for this many tokens is reserved at start. By default, as
    /// many as this machine computes in 100 ms, measured at start, and at most 16384; one input alone may be as long as
    /// the model allows. If you give a number, longer inputs are cut to it, and with `--auto-truncate false` it must be
    /// at least the model's limit. If free memory has no room for the number, the server does not start and names the
    /// largest that fits.
    #[arg(long, env, value_name = "N", value_parser = count, help_heading = "Batches")]
    max_batch_tokens: Option<usize>,
    /// Maximum number of inputs in one batch, up to 1024
    ///
    /// By default, as many as the tokens allow; for models whose answers are as long as their vocabulary, as many as
    /// have 256 MiB of answers together.
    #[arg(long, env, value_name = "N", value_parser = count, help_heading = "Batches")]
    max_batch_requests: Option<usize>,
    /// Folder in which measured costs of batches are kept, or `off`
    ///
    /// The next start then need not measure them again; with `off`, every start measures. By default, turbo/costs in
    /// the user's cache folder (XDG_CACHE_HOME; if that is not set, ~/.cache, on macOS ~/Library/Caches, on Windows
    /// LOCALAPPDATA).
    #[arg(long, env, value_name = "DIR|off", help_heading = "Batches")]
    cost_cache: Option<CacheArgument>,

    #[command(flatten)]
    pub(super) cache: CacheArguments,
    #[command(flatten)]
    pub(super) net: NetArguments,
    #[command(flatten)]
    pub(super) tei: TeiArguments,
    /// Maximum number of inputs in the server at a time
    ///
    /// Requests beyond that are refused with 429 and `Retry-After`. A waiting input may take 12 bytes for every token
    /// of the model's longest input; `--max-answer-bytes-in-flight` bounds the answers.
    #[arg(long, env, value_name = "N", value_parser = count, default_value_t = EngineConfig::default().max_concurrent_requests, help_heading = "HTTP")]
    max_concurrent_requests: usize,
    /// Maximum number of inputs in one request
    ///
    /// /v1/embeddings, /v2/embed, /classify and /pooling take at least 2048, in parts of this many. A number above
    /// `--max-concurrent-requests` is lowered to that, with a warning.
    #[arg(long, env, value_name = "N", value_parser = count, default_value_t = EngineConfig::default().max_client_batch_size, help_heading = "HTTP")]
    max_client_batch_size: usize,
    /// Maximum documents per request to /v1/rerank and /v2/rerank, and pairs per request to /score
    ///
    /// These are the routes of Cohere's, Jina's and vLLM's clients. Documents are ranked in parts of
    /// `--max-client-batch-size`; that many are always accepted, even if the number here is lower, or 0.
    #[arg(long, env, value_name = "N", value_parser = whole::<usize>, default_value_t = HttpOptions::default().max_rerank_documents, help_heading = "HTTP")]
    pub(super) max_rerank_documents: usize,
    /// Maximum bytes of the body of a request, or of a gRPC message
    ///
    /// A number of bytes, or a size such as 2MB or 64MiB.
    #[arg(long, env, value_name = "BYTES", default_value_t = Bytes(HttpOptions::default().payload_limit), help_heading = "HTTP")]
    pub(super) payload_limit: Bytes,
    /// Maximum bytes of all request bodies held at a time
    ///
    /// A body counts while it is read and until its request is answered; a request beyond that is refused with 429. A
    /// compressed body counts as it arrives, and once more as it is unpacked. What the server makes of a body may take
    /// several times as much memory. By default, 1/32 of the memory that is free at start, and at least eight times
    /// `--payload-limit`. The smallest accepted number is twice `--payload-limit` plus five bytes.
    #[arg(long, env, value_name = "BYTES", help_heading = "HTTP")]
    max_body_bytes_in_flight: Option<Bytes>,
    /// Maximum bytes of all answers held at a time
    ///
    /// An answer counts while it is computed and until its client has read it; beyond that, new requests are refused
    /// with 429. A request whose answer alone would take more, as one for /embed_all with long texts may, is refused
    /// with 422. By default, 1/16 of the memory that is free at start, and at least eight times `--payload-limit`.
    #[arg(long, env, value_name = "BYTES", help_heading = "HTTP")]
    max_answer_bytes_in_flight: Option<Bytes>,
    /// Time to answer accepted requests after the signal to stop
    ///
    /// Requests that are not answered by then are refused.
    #[arg(long, env, value_name = "MS", value_parser = whole::<u64>, default_value_t = net::GRACE.as_millis() as u64, help_heading = "HTTP")]
    pub(super) shutdown_grace_ms: u64,
    #[command(flatten)]
    pub(super) log: LogArguments,
}

impl Arguments {
    /// The flags that say which model it is.
    pub(super) fn model(&self) -> &ModelArguments {
        &self.model
    }

    /// The same for a model that is elsewhere.
    pub(super) fn of(mut self, model_id: String, place: Place, revision: Option<String>) -> Self {
        self.model = ModelArguments { model_id, place: Some(place), revision, ..self.model };
        self
    }

    /// The same for a model on another device.
    pub(super) fn on(mut self, device: Wish) -> Self {
        self.model.device = device;
        self
    }

    /// Looks at what of the server can be told before anything is opened or loaded.
    ///
    /// # Errors
    /// Arguments that contradict each other, limits under which a server would refuse its clients for ever.
    pub(super) fn check(&self) -> Result<()> {
        self.check_model().map_err(of_flags)?;
        self.cache.check()?;
        self.net.check()?;
        self.log.check()?;
        ensure!(
            self.payload_limit.0 > 0,
            "--payload-limit 0: expected at least 1, or no request could have a body"
        );
        if let Some(Bytes(bytes)) = self.max_body_bytes_in_flight {
            let least = self.payload_limit.0.saturating_mul(2).saturating_add(5);
            ensure!(
                bytes >= least,
                "--max-body-bytes-in-flight {bytes}: expected at least {least}, twice --payload-limit ({}) plus the head \
                 of a message, or the largest body could never be read (a compressed one counts once more as it is \
                 unpacked): raise the first or lower the second",
                self.payload_limit
            );
        }
        ensure!(
            self.max_answer_bytes_in_flight != Some(Bytes(0)),
            "--max-answer-bytes-in-flight 0: expected at least 1, or no request could be accepted; leave it out to use a \
             share of the free memory"
        );
        Ok(())
    }

    /// The same for what is said of the model.
    ///
    /// # Errors
    /// Limits that no model could be served with, by their keys in a file; a dtype that the device does not have.
    pub(super) fn check_model(&self) -> Result<()> {
        self.model.dtype.check_on(self.model.device)?;
        Ok(self.config(NonZeroUsize::MIN).check_limits()?)
    }

    /// What may be held at a time for all clients; beside the models, which have theirs by now.
    pub(super) fn in_flight(&self) -> InFlightLimits {
        let usual = InFlightLimits::of_this_machine(self.payload_limit.0);
        InFlightLimits {
            bodies: self.max_body_bytes_in_flight.map_or(usual.bodies, |bytes| bytes.0),
            answers: self.max_answer_bytes_in_flight.map_or(usual.answers, |bytes| bytes.0),
        }
    }

    /// What is chosen about the model beside where it is.
    pub(super) fn open_options(&self) -> OpenOptions {
        let named = self.default_prompt_name.clone().map(DefaultPrompt::Named);
        OpenOptions {
            model_id: Some(self.model.model_id.clone()),
            layout: self.layout.into(),
            task: self.pooling.map(Into::into),
            packed_cache: self.packed_cache.folder(),
            dense_path: self.dense_path.clone(),
            default_prompt: named.or(self.default_prompt.clone().map(DefaultPrompt::Text)),
            ..OpenOptions::default()
        }
    }

    /// The limits of its engine, beside so many threads that compute.
    pub(super) fn config(&self, threads: NonZeroUsize) -> EngineConfig {
        let default = EngineConfig::default();
        EngineConfig {
            batching: self.batching.policy(),
            dispatch: self.batching.dispatch(),
            slo: self.batching.slo(),
            max_batch_tokens: self.max_batch_tokens.map_or(default.max_batch_tokens, BatchTokens::AtMost),
            max_batch_requests: self.max_batch_requests,
            max_client_batch_size: self.max_client_batch_size,
            max_concurrent_requests: self.max_concurrent_requests,
            auto_truncate: self.auto_truncate,
            tokenization_workers: self
                .tokenization_workers
                .map_or_else(|| EngineConfig::workers_beside(threads), NonZeroUsize::get),
            cost_cache: caches::costs(self.cost_cache.as_ref()),
            ..default
        }
    }
}

/// An error in the words of a command line: the library and a file name fields and keys, and here they are flags.
pub(super) fn of_flags(error: Error) -> Error {
    let flag = |name: &str| format!("--{}", name.replace('_', "-"));
    if let Some(OpenError::Pooling { folder }) = error.downcast_ref() {
        return anyhow!(
            "{folder}: it does not say how to pool token vectors: pass --pooling cls, mean, last-token or max"
        );
    }
    match error.downcast_ref::<StartError>() {
        Some(&StartError::Zero { name }) => anyhow!("{} 0: expected at least 1", flag(name)),
        Some(&StartError::TooMany { name, got, limit }) => {
            anyhow!("{} {got}: expected at most {limit}", flag(name))
        }
        Some(StartError::BatchTokens { max_batch_tokens, max_input_length }) => anyhow!(
            "--max-batch-tokens {max_batch_tokens}: one input of this model may have {max_input_length} tokens: raise \
             it to at least that, or let inputs be cut (--auto-truncate)"
        ),
        Some(StartError::Memory { fits: Some(tokens), .. }) => {
            anyhow!("{error} (--max-batch-tokens {tokens})")
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_library_name_flags_on_a_command_line() {
        let pooling = OpenError::Pooling { folder: "models/x".into() };
        let tokens = StartError::BatchTokens { max_batch_tokens: 7, max_input_length: 8 };
        let memory = |fits| StartError::Memory { tokens: 64, needed: 9_000_000, free: 7_000_000, fits };
        for (error, field, flag) in [
            (
                Error::from(pooling),
                "pooling to cls, mean, last-token or max",
                "--pooling cls, mean, last-token or max",
            ),
            (tokens.into(), "(auto_truncate)", "--max-batch-tokens 7: "),
            (memory(Some(9)).into(), "max_batch_tokens to 9", "(--max-batch-tokens 9)"),
            (memory(None).into(), "no room for any batch", "no room for any batch"),
        ] {
            let said = error.to_string();
            assert!(said.contains(field) && !said.contains("--"), "{said}");
            let said = of_flags(error).to_string();
            assert!(said.contains(flag), "{said}");
        }
    }
}
