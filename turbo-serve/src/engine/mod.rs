//! From inputs to rows: admission, tokens, queue, batches, answers. No protocol, no device.
//!
//! ```text
//! embed ─▶ admission ─▶ tokens ─────▶ queue ────▶ worker ─▶ runner (encoder)
//!          a slot per   threads make  Batcher of  owns all
//!          input        ids, or fail  turbo-sched state
//!   ▲                                               │
//!   └──── finish ◀──── ticket ◀───── rows ──────────┘
//!         cut, norm    gathers, one reply per request
//! ```
//!
//! * [`Engine`] is started from a [`Model`] and an [`EngineConfig`]; [`Model::open`] makes a model from a folder.
//! * Protocols speak to the trait [`Embedder`], so that they can be tested against a fake.
//! * A model on a device is a [`Runner`]; its own tokenizer is a [`Tokenize`]. Both can be one's own.
//!
//! # Metrics
//! Which side records what is said in [`metric_names`](crate::metric_names). The recorder has to be installed before
//! an engine starts; without one nothing is counted.

mod admission;
mod config;
mod encoder;
mod error;
mod finish;
mod health;
mod metrics;
mod queue;
mod runner;
mod server;
mod ticket;
mod tokens;
mod types;
mod warm_up;
mod worker;

pub use config::{EngineConfig, Model, StartError};
pub use encoder::OpenError;
pub use error::EngineError;
pub use runner::{BuildRunner, Capacity, Progress, Rows, RunError, Runner, Sequence};
pub use server::Engine;
pub use tokens::{Encoded, Tokenize, TokenizeError};
pub use types::{
    EmbedRequest, EmbedResponse, Health, Input, ModelInfo, OutputKind, Row, Timings, Truncation,
};

/// What an engine is configured with, from the crates below.
pub use {
    turbo_models::{Cpu, CpuOptions, Pooling},
    turbo_sched::{Dispatch, Layout, Policy},
};

use std::{future::Future, pin::Pin};

/// An answer that is still being worked on. Dropping it withdraws the request.
pub type Pending<'a> = Pin<Box<dyn Future<Output = Result<EmbedResponse, EngineError>> + Send + 'a>>;

/// What a protocol needs of an engine.
pub trait Embedder: Send + Sync + 'static {
    /// What is served, and within which limits.
    fn info(&self) -> &ModelInfo;

    /// Answers a request: all of its inputs, or the first error. Dropping the future withdraws the request: inputs
    /// that are not yet in a running batch are never computed.
    fn embed(&self, request: EmbedRequest) -> Pending<'_>;

    /// Whether requests are answered. Cheap: asked by load balancers all the time.
    fn health(&self) -> Health;
}
