//! Graphs and weights of published transformer checkpoints: from a model folder to vectors.
//!
//! ```text
//! folder ─Checkpoint::open─▶ config, weights (mapped), tokenizer ─graph─▶ Graph ─Encoder::new─▶ compiled for a device
//!
//! text ─TextTokenizer::encode─▶ Encoded ─Encoder::push─▶ batch ─Encoder::run─▶ a vector per text, or per token
//! ```
//!
//! | item | what it is about |
//! |---|---|
//! | [`Checkpoint`], [`OpenOptions`], [`ModelConfig`], [`Prompts`] | what a folder holds, checked to the last tensor |
//! | [`Task`], [`RowLens`], [`ScoreFunction`] | what a model is used for, and which rows it returns |
//! | [`TextTokenizer`], [`Text`], [`Truncation`], [`InputLimits`] | from text to ids that the model accepts |
//! | [`Encoding`], [`CharOffsets`] | where in the text each token came from |
//! | [`Encoder`], [`EncoderOptions`], [`DType`], [`Outputs`], [`l2_normalize`] | from ids to vectors |
//! | [`PackedCache`], [`CacheUse`] | packed weights on disk, which a second start copies instead of packing again |
//! | [`tasks`] | from logits to labels, entities, answers, words |
//! | [`ModelError`], [`TokenizeError`] | one line that names file and field, or what is wrong with an input |
//!
#![doc = include_str!("../README.md")]

mod architectures;
mod checkpoint;
mod config;
mod drawing;
mod encoder;
mod error;
mod json;
mod limits;
mod modules;
mod normalize;
mod outputs;
mod packed;
mod position_table;
mod rows;
mod safetensors_file;
mod task;
pub mod tasks;
mod tokenize;
mod weights;

pub use checkpoint::{Checkpoint, OpenOptions};
pub use config::ModelConfig;
pub use encoder::{Encoder, EncoderMemory, EncoderOptions};
pub use error::ModelError;
pub use limits::{Encoded, InputLimits};
pub use modules::Prompts;
pub use normalize::{l2_normalize, tanh_int8};
pub use outputs::Outputs;
pub use packed::{CacheUse, PackedCache};
pub use rows::{RowKind, RowLens};
pub use task::{ScoreFunction, Task};
pub use tokenize::{CharOffsets, Encoding, SpecialTokens, Text, TextTokenizer, TokenizeError, Truncation};

// The layers below, exported so that a user of this crate need not depend on them.
pub use turbo_graph as graph;
pub use turbo_graph::kernels::{Cpu, CpuOptions, DType, EncoderKernels, Isa};

pub use turbo_graph::{
    Activation, Capacity, Graph, GraphError, LayoutKind, PlannerConfig, Pooling, Positions, Staging,
    WeightSource,
};
