//! The errors of building, compiling, binding and running a graph.

use turbo_alloc::AllocError;
use turbo_kernels::{DeviceError, KernelError};

use crate::dim::Shape;

/// Why a graph could not be built, compiled, bound or run.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// An operator was given a value of the wrong shape.
    #[error("{op}: input {input} has shape {got}, expected {expected}")]
    Shape {
        /// The operator.
        op: &'static str,
        /// Which of its inputs.
        input: usize,
        /// The shape it takes.
        expected: String,
        /// The shape it was given.
        got: Shape,
    },
    /// An operator was given too few or too many values.
    #[error("{op}: takes {expected} inputs, got {got}")]
    Arity {
        /// The operator.
        op: &'static str,
        /// Inputs it takes, `2 or 3` if one is optional.
        expected: String,
        /// Inputs it was given.
        got: usize,
    },
    /// A graph breaks a rule that every graph must obey.
    #[error("after {stage}: node {node} ({op}): {why}")]
    Malformed {
        /// The pass after which it was found, or `build`.
        stage: &'static str,
        /// Position of the node.
        node: usize,
        /// Its operator.
        op: &'static str,
        /// The rule.
        why: String,
    },
    /// A result was given a name that it cannot have.
    #[error("output {name:?}: {why}")]
    Output {
        /// The name.
        name: String,
        /// Why not.
        why: String,
    },
    /// A graph without an output computes nothing.
    #[error("the graph {0:?} has no output")]
    NoOutput(String),
    /// The packed layout was requested, but an operator needs padded rows.
    #[error(
        "{op} needs padded rows: the packed layout needs the attention pass, which fuses softmax(mask(q·kᵀ))·v only if \
         nothing else reads its steps"
    )]
    NotPackable {
        /// The operator.
        op: &'static str,
    },
    /// A weight could not be read.
    #[error("weight {name}: {why}")]
    Weight {
        /// Its published name.
        name: String,
        /// Why.
        why: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A weight has another number of values than its shape says.
    #[error("weight {name}: expected {expected} values, got {got}")]
    WeightLength {
        /// Its published name.
        name: String,
        /// Values of the declared shape.
        expected: usize,
        /// Values received.
        got: usize,
    },
    /// A batch without sequences, or with an empty one.
    #[error("a batch needs at least one sequence, and each at least one token")]
    EmptyBatch,
    /// The caller of [`Executor::run_while`](crate::Executor::run_while) stopped the run.
    #[error("stopped between two layers")]
    Stopped,
    /// Token types that do not match their ids.
    #[error("expected {expected} token types, one per token, got {got}")]
    TokenTypes {
        /// Tokens of the sequence.
        expected: usize,
        /// Token types given.
        got: usize,
    },
    /// A token was selected that its sequence does not have.
    #[error("token {position} was selected, expected one of the {seq_len} of its sequence, counted from 0")]
    NoSuchToken {
        /// The selected position, counted from 0.
        position: u32,
        /// Tokens of the sequence.
        seq_len: usize,
    },
    /// A sequence that the last batch did not have.
    #[error("expected one of the {batch_size} sequences of the last batch, counted from 0, got {sequence}")]
    NoSuchSequence {
        /// The requested index.
        sequence: usize,
        /// The number of sequences in the batch.
        batch_size: usize,
    },
    /// An output that the last run did not compute.
    #[error("output {output:?} was not computed: add it to the outputs that the batch is run for")]
    NotComputed {
        /// Its name.
        output: String,
    },
    /// The most batches that may wait to be read are waiting.
    #[error("{depth} batches were run but not yet read: read the oldest, then forget it")]
    Full {
        /// How many may wait.
        depth: usize,
    },
    /// The planner refused.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A kernel refused its arguments or failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl GraphError {
    /// Whether the device is lost for good.
    pub(crate) fn is_lost_device(&self) -> bool {
        let (Self::Device(error) | Self::Kernel(KernelError::Device(error))) = self else { return false };
        matches!(error, DeviceError::Lost { .. })
    }
}
