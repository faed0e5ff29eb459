//! From inputs to rows: admission, tokens, queue, batches, answers. No protocol, no device.
//!
//! ```text
//! caller's task            caller's, tokenizer or cache thread    worker thread
//! ───────────────────────  ─────────────────────────────────────  ──────────────────────────────────────────────
//! infer ──▶ admit ───────▶ tokens ───────▶ answers::recall ─────▶ compute::queue ──▶ compute::worker ──▶ Runner
//!           slots? in time?   │            room? known? in time?  forms batches      submits, polls
//!                             │                  │ known rows                             │ computed rows
//!                             │                  ▼                                        │
//! answer ◀─ answers::finish ◀─┼─────────── answers::ticket ◀──────────────────────────────┘
//!           cuts, normalises  │            gathers a request's rows
//!                             │
//! tokens, texts ◀─────────────┘  of `tokenize` and `decode`, which take slots and run no model
//! ```
//!
//! | folder | what it does |
//! |---|---|
//! | `admit` | decides whether a request is accepted: slots, deadline, room for its answer |
//! | `tokens` | turns texts into ids, within the model's limits |
//! | `answers` | finds the answers that are known, and gathers those of one request |
//! | `compute` | queues inputs, forms batches of them and runs these on the device |
//! | `start` | measures batches, and decides how large they may be, before the first request |
//! | `observed` | records recent activity for dashboards |
//!
//! * [`Engine`] is started from a [`Model`] and an [`EngineConfig`]; [`Model::open`] makes a model from a folder.
//! * Protocols call an engine through the trait [`Infer`], so that they can be tested against a fake. The trait deals
//!   in rows; [`tasks`](crate::tasks) knows what they mean.
//! * A model on a device is a [`Runner`]; its tokenizer is a [`Tokenize`]. Callers may implement both.
//!
//! # Metrics
//! [`metric_names`](crate::metric_names) says which part of the server records which metric. Install the recorder
//! before an engine starts; without one nothing is counted.

mod admit;
mod answers;
mod causes;
mod compute;
mod config;
mod encoder_runner;
mod error;
mod health;
mod info;
mod metrics;
pub mod observed;
mod published;
mod runner;
mod server;
mod spent;
mod start;
mod tokens;
mod types;

pub use admit::answer_room::{AnswerRoom, HoldAnswers};
pub use admit::urgency::{Priority, Urgency};
pub(crate) use causes::with_causes;
pub use compute::turns::{DeviceTurns, Seat, Turn};
pub use config::{EngineConfig, Model, StartError};
pub use error::EngineError;
pub use info::{EngineInfo, MaskToken, ModelInfo};
pub use published::{DefaultPrompt, OpenError, OpenOptions, packed_cache};
pub use runner::{BuildRunner, Capacity, DeviceLost, HeldBytes, Progress, Rows, RunError, Runner, Sequence};
pub use server::Engine;
pub use spent::Spent;
pub use start::batch_tokens::BatchTokens;
pub use start::fastest::{LONG_RUN, fastest};
pub(crate) use start::resident::available_bytes;
pub use start::resident::resident_bytes;
pub use tokens::instruction::Instruction;
pub use tokens::prompts::{Prompt, PromptName, Prompts};
pub use tokens::tokenize::{
    DecodeRequest, Extent, Texts, Tokenize, TokenizeError, TokenizeRequest, Tokenized,
};
pub use types::{
    Encoded, Health, InferRequest, InferResponse, Input, MAX_SELECTED, OutputKind, Row, Timings, Usage,
};

/// Types of the crates below that an engine's configuration and requests use.
pub use {
    turbo_models::{
        Cpu, CpuOptions, DType, EncoderKernels, Encoding, ModelError, PackedCache, Pooling, RowLens,
        ScoreFunction, SpecialTokens, Task, Text, Truncation,
    },
    turbo_sched::{Candidate, Dispatch, Layout, Policy},
};

use std::{collections::BTreeMap, future::Future, pin::Pin};

use self::observed::Observed;

/// A pending answer. Dropping it cancels the request.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, EngineError>> + Send + 'a>>;

/// What a protocol needs from an engine.
pub trait Infer: Send + Sync + 'static {
    /// What is served, and within which limits.
    fn info(&self) -> &EngineInfo;

    /// Answers a request: all of its inputs, or the first error. Dropping the future cancels the request: its inputs
    /// that are not yet in a running batch are not computed, unless another request waits for the same answer. With a
    /// deadline the future has to be polled in a tokio runtime with its clock enabled.
    fn infer(&self, request: InferRequest) -> Pending<'_, InferResponse>;

    /// Tokenizes texts and reports the tokens. Texts take slots as inputs do.
    fn tokenize(&self, request: TokenizeRequest) -> Pending<'_, Vec<Tokenized>>;

    /// Decodes token ids to texts. Lists of ids take slots as inputs do.
    fn decode(&self, request: DecodeRequest) -> Pending<'_, Vec<String>>;

    /// The batches computed since the start, by their number of inputs; empty where the engine does not count them.
    fn batches(&self) -> BTreeMap<usize, Spent> {
        BTreeMap::new()
    }

    /// Whether there is room for `inputs` inputs now. Nothing is reserved: another request may take the room. Cheap: a
    /// waiting caller polls it, and while one waits for several inputs an engine may reject new requests. `true` where
    /// the engine cannot tell in advance.
    fn has_room(&self, inputs: usize) -> bool {
        let _ = inputs;
        true
    }

    /// The urgency that all of its requests share; a request may name its own, too.
    fn urgency(&self) -> Urgency {
        Urgency::default()
    }

    /// Whether requests are answered. Cheap: asked by load balancers all the time.
    fn health(&self) -> Health;

    /// Its recent activity, for dashboards; `None` where the engine does not record it.
    fn observed(&self) -> Option<Observed> {
        None
    }
}
