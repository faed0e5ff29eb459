//! A checkpoint compiled for a device: from ids to vectors.

use turbo_graph::kernels::{DType, EncoderKernels};
use turbo_graph::{
    Capacity, Executor, GraphError, LayoutKind, OutputId, OutputSet, PackedStore, PlannerConfig, Pooling,
    Program, Staging, WeightBytes, passes,
};

use crate::{
    CacheUse, Checkpoint, Encoded, InputLimits, ModelError, Outputs, PackedCache, RowKind, RowLens, Task,
    packed::PackedImages,
    rows::{HIDDEN, POOLED, SELECTED, TOKEN_LOGITS},
    tanh_int8,
};

/// How an [`Encoder`] computes.
#[derive(Clone, Debug)]
pub struct EncoderOptions {
    /// How the sequences of a batch share a tensor.
    pub layout: LayoutKind,
    /// The task.
    pub task: Task,
    /// Which of the task's rows can be read.
    pub outputs: Outputs,
    /// Type in which the layers' products with weights and the product with the vocabulary are computed. For bf16 and
    /// int8, attention computes in bf16 if the device has fast instructions for it. Everything else, heads included, is
    /// f32.
    pub dtype: DType,
    /// How activation memory is planned.
    pub planner: PlannerConfig,
    /// Where packed weights are kept from one start to the next; `None` packs them at every start.
    pub packed_cache: Option<PackedCache>,
}

/// Memory that an encoder holds, in bytes.
///
/// A few vectors of batch size are not counted. The weight files stay mapped as long as the [`Checkpoint`] lives, but
/// their memory is released once the weights are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderMemory {
    /// Matrices, packed for products.
    pub packed_bytes: usize,
    /// Embedding tables, biases and norms.
    pub table_bytes: usize,
    /// Chunks of activations: as much as the largest batch so far needed, or the reserved capacity.
    pub footprint_bytes: usize,
    /// Outputs of such a batch. Rows of logits, with one value per vocabulary token, can be the largest part of all.
    pub output_bytes: usize,
    /// Scratch memory of the kernels, for such a batch.
    pub scratch_bytes: usize,
}

impl EncoderOptions {
    /// Packed rows in f32, for the folder's task, or for mean-pooled vectors if it has none; all outputs, no cache.
    pub fn of(checkpoint: &Checkpoint) -> Self {
        Self {
            layout: LayoutKind::Packed,
            task: checkpoint.task().unwrap_or(Pooling::Mean.into()),
            outputs: Outputs::All,
            dtype: DType::F32,
            planner: PlannerConfig::default(),
            packed_cache: None,
        }
    }
}

/// A model ready to run. It owns its weights, so the checkpoint may be dropped.
pub struct Encoder<D: EncoderKernels> {
    executor: Executor<D>,
    task: Task,
    pooled: Option<OutputId>,
    tokens: Option<OutputId>,
    selected: Option<OutputId>,
    row_lens: RowLens,
    limits: InputLimits,
    /// Id that is dropped from the end of an input.
    padding_id: Option<u32>,
    /// Whether the values of pooled rows become whole numbers.
    tanh_int8: bool,
    cache_use: Option<CacheUse>,
    staging: Staging,
}

impl<D: EncoderKernels> Encoder<D> {
    /// Compiles `checkpoint` with every pass, and packs its weights for `device` or copies them from the cache. Then
    /// releases the memory behind the checkpoint's files.
    ///
    /// # Errors
    /// [`ModelError`]; [`ModelError::Range`] for a device whose float type cannot hold the activations of the model's
    /// family.
    pub fn new(device: D, checkpoint: &Checkpoint, options: EncoderOptions) -> Result<Self, ModelError> {
        let EncoderOptions { layout, task, outputs, dtype, planner, packed_cache } = options;
        checkpoint.check_float::<D::Float>()?;
        let graph = checkpoint.graph_with(task, outputs)?;
        let padding_id = checkpoint.padding_id(task)?;
        let program = Program::compile(&graph, layout, passes::ALL)?.with_dtype(dtype);
        let packing = device.packing(dtype);
        let images = packed_cache.map(|cache| cache.images(checkpoint.name(), checkpoint.key(), &packing));
        let store = images.as_ref().map(|images| images as &dyn PackedStore);
        let executor = Executor::load(device, program, checkpoint, store, planner)?;
        checkpoint.release_weights();
        Ok(Self {
            pooled: executor.output(POOLED),
            tokens: executor.output(HIDDEN).or(executor.output(TOKEN_LOGITS)),
            selected: executor.output(SELECTED),
            row_lens: RowLens::of(&graph),
            executor,
            task,
            limits: checkpoint.limits(),
            padding_id,
            tanh_int8: checkpoint.makes_whole_numbers(task),
            cache_use: images.map(PackedImages::finish),
            staging: Staging::new(),
        })
    }

    /// The task that it computes.
    pub fn task(&self) -> Task {
        self.task
    }

    /// Values of a row of [`Self::pooled`]; `None` where the task has no such rows.
    pub fn pooled_len(&self) -> Option<usize> {
        self.row_lens.pooled
    }

    /// Values of a row of [`Self::tokens`]; `None` where the task has no such rows.
    pub fn token_len(&self) -> Option<usize> {
        self.row_lens.tokens
    }

    /// Values of a row of [`Self::selected`]; `None` where the task has no such rows.
    pub fn selected_len(&self) -> Option<usize> {
        self.row_lens.selected
    }

    /// The bounds inside which every input must lie.
    pub fn limits(&self) -> InputLimits {
        self.limits
    }

    /// How the cache of packed weights was used; `None` without one.
    pub fn cache_use(&self) -> Option<&CacheUse> {
        self.cache_use.as_ref()
    }

    /// Memory that it holds now.
    pub fn memory(&self) -> EncoderMemory {
        let WeightBytes { packed, tables } = self.executor.weight_bytes();
        EncoderMemory {
            packed_bytes: packed,
            table_bytes: tables,
            footprint_bytes: self.executor.footprint_bytes(),
            output_bytes: self.executor.output_bytes(),
            scratch_bytes: self.executor.scratch_bytes(),
        }
    }

    /// Plans memory ahead: batches within `capacity` then allocate nothing.
    ///
    /// # Errors
    /// [`ModelError::Graph`].
    pub fn reserve(&mut self, capacity: Capacity) -> Result<(), ModelError> {
        Ok(self.executor.reserve(capacity)?)
    }

    /// Appends an input to `batch` as the task reads it. A classifier that reads the last token takes the last one that
    /// is not padding, so padding at the end is dropped. Tokens of a decoder do not see it, so nothing else changes.
    ///
    /// # Errors
    /// As [`Staging::push`].
    pub fn push(
        &self,
        batch: &mut Staging,
        input_ids: &[u32],
        token_type_ids: &[u32],
    ) -> Result<(), ModelError> {
        Ok(push(batch, input_ids, token_type_ids, self.padding_id)?)
    }

    /// Runs `batch`, whose inputs must all have passed [`InputLimits::check`] and been appended by [`Self::push`].
    ///
    /// # Errors
    /// [`ModelError::Graph`].
    pub fn run(&mut self, batch: &Staging) -> Result<(), ModelError> {
        Ok(self.executor.run(batch)?)
    }

    /// Like [`Self::run`], but stops when `keep_going`, which is called between layers, returns `false`.
    ///
    /// # Errors
    /// As [`Self::run`]; [`GraphError::Stopped`](turbo_graph::GraphError::Stopped) if it stopped: then there is nothing
    /// to read, and the encoder is ready for the next batch.
    pub fn run_while(&mut self, batch: &Staging, keep_going: impl FnMut() -> bool) -> Result<(), ModelError> {
        Ok(self.executor.run_while(batch, keep_going)?)
    }

    /// Like [`Self::run_while`], for these kinds of rows alone: the others cannot be read then. If the vector of one
    /// token is wanted (`cls`, the last one) and the hidden states of all tokens are not, everything behind the last
    /// attention is computed for that token alone. What is computed has the same bits.
    ///
    /// # Errors
    /// As [`Self::run_while`].
    pub fn run_for(
        &mut self,
        batch: &Staging,
        rows: impl IntoIterator<Item = RowKind>,
        keep_going: impl FnMut() -> bool,
    ) -> Result<(), ModelError> {
        Ok(self.executor.run_for(batch, self.outputs(rows), keep_going)?)
    }

    /// Most batches in flight, that is, run but not yet read: 2 on a device that computes by itself, else 1.
    pub fn depth(&self) -> usize {
        self.executor.depth()
    }

    /// Like [`Self::run_for`] without `keep_going`, behind batches that are still to be read. Reading always takes the
    /// oldest batch first. On a device that computes by itself, this returns as soon as the batch is launched.
    ///
    /// # Errors
    /// As [`Self::run`]; [`GraphError::Full`](turbo_graph::GraphError::Full) if [`Self::depth`] batches wait to be
    /// read. The earlier batches are unaffected.
    pub fn run_behind(
        &mut self,
        batch: &Staging,
        rows: impl IntoIterator<Item = RowKind>,
    ) -> Result<(), ModelError> {
        Ok(self.executor.run_behind(batch, self.outputs(rows))?)
    }

    /// Whether the oldest batch can be read without waiting. Does not wait.
    ///
    /// # Errors
    /// [`ModelError::Graph`].
    pub fn is_done(&mut self) -> Result<bool, ModelError> {
        Ok(self.executor.is_done()?)
    }

    /// Drops the oldest batch, so that the one behind it is read next.
    pub fn forget_oldest(&mut self) {
        self.executor.forget_oldest();
    }

    /// Waits until all runs are done; on a device that computes by itself, [`Self::run`] returns before. Reading rows
    /// waits for their run, too.
    ///
    /// # Errors
    /// [`ModelError::Graph`].
    pub fn finish(&mut self) -> Result<(), ModelError> {
        Ok(self.executor.finish()?)
    }

    /// Free device memory in bytes; `None` if the device uses the system's memory.
    ///
    /// # Errors
    /// [`ModelError::Graph`].
    pub fn free_bytes(&self) -> Result<Option<u64>, ModelError> {
        Ok(self.executor.device().free_bytes().map_err(GraphError::from)?)
    }

    /// Appends the row of input `sequence` of the batch that was run, or of the oldest such batch: `[pooled_len]`.
    /// Embeddings are not normalised, but they are whole numbers if the folder makes them so ([`tanh_int8`]).
    ///
    /// # Errors
    /// [`ModelError::Rows`] if the task has no such rows, [`ModelError::Graph`] if there was no such input or the batch
    /// was run for other rows.
    pub fn pooled(&mut self, sequence: usize, to: &mut Vec<f32>) -> Result<(), ModelError> {
        let first = to.len();
        self.read(RowKind::Pooled, sequence, to)?;
        if self.tanh_int8 {
            tanh_int8(&mut to[first..]);
        }
        Ok(())
    }

    /// Appends the rows of all tokens of input `sequence` of that batch, `[seq_len, token_len]`.
    ///
    /// # Errors
    /// As [`Self::pooled`].
    pub fn tokens(&mut self, sequence: usize, to: &mut Vec<f32>) -> Result<(), ModelError> {
        self.read(RowKind::Tokens, sequence, to)
    }

    /// Appends the rows of the selected tokens of input `sequence` of that batch, in the order in which they were
    /// selected, `[selected, selected_len]`.
    ///
    /// # Errors
    /// As [`Self::pooled`].
    pub fn selected(&mut self, sequence: usize, to: &mut Vec<f32>) -> Result<(), ModelError> {
        self.read(RowKind::Selected, sequence, to)
    }

    fn outputs(&self, rows: impl IntoIterator<Item = RowKind>) -> OutputSet {
        rows.into_iter().filter_map(|rows| self.output(rows)).collect()
    }

    fn output(&self, rows: RowKind) -> Option<OutputId> {
        match rows {
            RowKind::Pooled => self.pooled,
            RowKind::Tokens => self.tokens,
            RowKind::Selected => self.selected,
        }
    }

    fn read(&mut self, rows: RowKind, sequence: usize, to: &mut Vec<f32>) -> Result<(), ModelError> {
        let output = self.output(rows).ok_or(ModelError::Rows { task: self.task, rows: rows.name() })?;
        Ok(self.executor.read(output, sequence, to)?)
    }

    /// Bytes of activations and outputs that a batch of `capacity` would need, found by planning alone. On a device
    /// with memory of its own, includes what operators take there in addition. `usize::MAX` for sizes that the planner
    /// refuses.
    pub fn planned_bytes(&self, capacity: Capacity) -> usize {
        let planned = self.executor.planned_bytes(capacity).unwrap_or(usize::MAX);
        planned.saturating_add(self.executor.output_bytes_of(capacity))
    }

    /// The pooled rows of `inputs`, in their order, as one batch; not normalised.
    ///
    /// # Errors
    /// [`ModelError::Input`] for an input outside the limits, [`ModelError::Rows`] when the task has no such rows,
    /// [`ModelError::Graph`].
    pub fn embed_batch(&mut self, inputs: &[Encoded]) -> Result<Vec<Vec<f32>>, ModelError> {
        if inputs.is_empty() {
            return Ok(Vec::new());
        }
        self.pooled.ok_or(ModelError::Rows { task: self.task, rows: RowKind::Pooled.name() })?;
        self.staging.clear();
        for input in inputs {
            self.limits.check(input)?;
            push(&mut self.staging, &input.input_ids, &input.token_type_ids, self.padding_id)?;
        }
        self.executor.run(&self.staging)?;
        let mut row = |sequence| {
            let mut row = Vec::with_capacity(self.pooled_len().unwrap_or(0));
            self.pooled(sequence, &mut row)?;
            Ok(row)
        };
        (0..inputs.len()).map(&mut row).collect()
    }
}

/// Appends an input without the ids `padding_id` at its end; if it has no others, the first one stays.
fn push(
    batch: &mut Staging,
    input_ids: &[u32],
    token_type_ids: &[u32],
    padding_id: Option<u32>,
) -> Result<(), GraphError> {
    let last = input_ids.iter().rposition(|id| Some(*id) != padding_id).unwrap_or(0);
    let left_out = input_ids.len().saturating_sub(last + 1);
    let token_types = token_type_ids.len().saturating_sub(left_out);
    batch.push(&input_ids[..input_ids.len() - left_out], &token_type_ids[..token_types])
}
