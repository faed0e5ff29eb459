//! A checkpoint compiled for a device: from ids to vectors.

use turbo_graph::kernels::EncoderKernels;
use turbo_graph::{
    Capacity, Executor, LayoutKind, OutputId, PlannerConfig, Pooling, Program, Staging, dim::Extents, passes,
};

use crate::{
    Checkpoint, Encoded, InputLimits, ModelError,
    architectures::{POOLED, TOKENS},
};

/// How an [`Encoder`] computes.
#[derive(Clone, Debug)]
pub struct EncoderOptions {
    /// How the sequences of a batch share a tensor.
    pub layout: LayoutKind,
    /// How token vectors become one.
    pub pooling: Pooling,
    /// How activation memory is planned.
    pub planner: PlannerConfig,
}

impl EncoderOptions {
    /// Packed rows, pooled as the folder says, or else by the mean.
    pub fn of(checkpoint: &Checkpoint) -> Self {
        Self {
            layout: LayoutKind::Packed,
            pooling: checkpoint.pooling().unwrap_or(Pooling::Mean),
            planner: PlannerConfig::default(),
        }
    }
}

/// A model ready to run. Its weights are its own: the checkpoint may be dropped.
pub struct Encoder<D: EncoderKernels> {
    executor: Executor<D>,
    pooled: OutputId,
    tokens: OutputId,
    hidden_size: usize,
    limits: InputLimits,
    staging: Staging,
}

impl<D: EncoderKernels> Encoder<D> {
    /// Compiles `checkpoint` with every pass and copies its weights to `device`.
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn new(device: D, checkpoint: &Checkpoint, options: EncoderOptions) -> Result<Self, ModelError> {
        let graph = checkpoint.graph(options.pooling)?;
        let program = Program::compile(&graph, options.layout, passes::ALL)?;
        let executor = Executor::new(device, program, checkpoint, options.planner)?;
        let output = |name| executor.output(name).expect("every architecture's graph has both outputs");
        Ok(Self {
            pooled: output(POOLED),
            tokens: output(TOKENS),
            executor,
            hidden_size: checkpoint.config().hidden_size,
            limits: checkpoint.limits(),
            staging: Staging::new(),
        })
    }

    /// Width of every vector it gives.
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    /// The bounds inside which every input must lie.
    pub fn limits(&self) -> InputLimits {
        self.limits
    }

    /// Plans ahead: batches within `capacity` then allocate nothing.
    ///
    /// # Errors
    /// [`ModelError::Graph`].
    pub fn reserve(&mut self, capacity: Capacity) -> Result<(), ModelError> {
        Ok(self.executor.reserve(capacity)?)
    }

    /// Runs `batch`, whose inputs all passed [`InputLimits::check`].
    ///
    /// # Errors
    /// [`ModelError::Graph`].
    pub fn run(&mut self, batch: &Staging) -> Result<(), ModelError> {
        Ok(self.executor.run(batch)?)
    }

    /// Appends the pooled vector of input `sequence` of the last batch, `[hidden_size]`, not normalised.
    ///
    /// # Errors
    /// [`ModelError::Graph`] when there was no such input.
    pub fn pooled(&mut self, sequence: usize, to: &mut Vec<f32>) -> Result<(), ModelError> {
        Ok(self.executor.read(self.pooled, sequence, to)?)
    }

    /// Appends the vectors of all tokens of input `sequence` of the last batch, `[seq_len, hidden_size]`.
    ///
    /// # Errors
    /// [`ModelError::Graph`] when there was no such input.
    pub fn tokens(&mut self, sequence: usize, to: &mut Vec<f32>) -> Result<(), ModelError> {
        Ok(self.executor.read(self.tokens, sequence, to)?)
    }

    /// Bytes of activations that a batch of `capacity` would plan, without running it; `usize::MAX` for sizes that the
    /// planner refuses.
    pub fn footprint_bytes(&self, capacity: Capacity) -> usize {
        let Capacity { batch_size, total_tokens, max_seq_len } = capacity;
        let extents = Extents { batch_size, total_tokens, padded_len: max_seq_len, sum_len_sq: 0 };
        self.executor.planned_bytes(&extents).unwrap_or(usize::MAX)
    }

    /// The pooled vectors of `inputs`, in their order, as one batch; not normalised.
    ///
    /// # Errors
    /// [`ModelError::Input`] for an input outside the limits, [`ModelError::Graph`].
    pub fn embed_batch(&mut self, inputs: &[Encoded]) -> Result<Vec<Vec<f32>>, ModelError> {
        if inputs.is_empty() {
            return Ok(Vec::new());
        }
        self.staging.clear();
        for input in inputs {
            self.limits.check(input)?;
            self.staging.push(&input.input_ids, &input.token_type_ids)?;
        }
        self.executor.run(&self.staging)?;
        let mut vector = |sequence| {
            let mut vector = Vec::with_capacity(self.hidden_size);
            self.executor.read(self.pooled, sequence, &mut vector)?;
            Ok(vector)
        };
        (0..inputs.len()).map(&mut vector).collect()
    }
}
