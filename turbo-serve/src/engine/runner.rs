//! The interface below the engine: one model on one device, behind an object-safe trait.
//!
//! In: the token ids of a batch. Out: the rows of its answers. The engine knows nothing of the device: any model,
//! device or pipeline can implement this trait.

use turbo_sched::Candidate;

/// The error of a runner. The engine reports it to the clients of the batch and goes on, unless the error or one of its
/// causes is [`DeviceLost`].
pub type RunError = Box<dyn std::error::Error + Send + Sync>;

/// The device is lost: no runner of this process can use it any more, not even a rebuilt one. From then on an engine is
/// [`Health::Failing`](super::Health::Failing).
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DeviceLost(pub RunError);

/// Builds a runner with memory for the capacity. Called once at start. After a panic, when the runner's state is not
/// trusted, it is called again until it succeeds.
pub type BuildRunner = Box<dyn FnMut(Capacity) -> Result<Box<dyn Runner>, RunError> + Send>;

/// The largest batch a runner has memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Sequences.
    pub batch_size: usize,
    /// Tokens of all sequences; counted with padding where the runner pads.
    pub total_tokens: usize,
    /// Tokens of the longest sequence.
    pub max_seq_len: usize,
}

/// Bytes of device memory that a runner holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBytes {
    /// Weights, as its kernels read them.
    pub weights: usize,
    /// Activations and rows: about what the largest batch plans, since all batches share chunks.
    pub activations: usize,
}

/// Ids of one sequence. `token_type_ids` is as long as `input_ids`, or empty: all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence<'a> {
    /// Ids, below the model's `vocab_size`.
    pub input_ids: &'a [u32],
    /// Which segment each token belongs to.
    pub token_type_ids: &'a [u32],
    /// Positions of the tokens whose rows may be read as [`Rows::Selected`]; a model that has none ignores them.
    pub selected: &'a [u32],
    /// Which of its rows will be read; `None`: any that the model has. Rows that no sequence of a batch wants need not
    /// be computed.
    pub rows: Option<Rows>,
}

impl<'a> Sequence<'a> {
    /// A sequence of one segment, with its first token selected, for any rows.
    #[must_use]
    pub fn of(input_ids: &'a [u32]) -> Self {
        Self { input_ids, token_type_ids: &[], selected: &[0], rows: None }
    }
}

/// The state of the oldest submitted batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Its rows are not ready.
    Running,
    /// Its rows can be read until it is released.
    Done,
    /// It was cancelled because no client waits for it; there is nothing to read.
    Stopped,
}

/// Which rows of a sequence to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One row for the sequence.
    Pooled,
    /// One row per token.
    Tokens,
    /// One row per selected token, in the order of [`Sequence::selected`].
    Selected,
}

/// A model on a device. It is driven by one thread.
///
/// Batches are computed in the order in which they were submitted. The oldest is polled, read when it is done, and
/// released; then the next one is the oldest.
pub trait Runner: Send {
    /// The largest batch it has memory for.
    fn capacity(&self) -> Capacity;

    /// Most batches that may be submitted before the oldest is released. With a depth above 1, a device that computes
    /// asynchronously begins the next batch as soon as one is done.
    fn depth(&self) -> usize {
        1
    }

    /// Reserves memory for batches up to `capacity`, which is no smaller than the present one. Called whenever it
    /// becomes known that batches may be larger.
    ///
    /// # Errors
    /// If there is too little memory.
    fn reserve(&mut self, capacity: Capacity) -> Result<(), RunError>;

    /// Bytes that the activations of `batch` take.
    fn footprint(&mut self, batch: &Candidate) -> usize;

    /// Bytes that it holds now; 0 where the runner does not count them.
    fn held_bytes(&self) -> HeldBytes {
        HeldBytes::default()
    }

    /// Bytes of the device's memory that are neither used nor reserved; `None` where memory does not bound batches.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Starts a batch within the capacity, behind those that were submitted before: copies the ids to where the device
    /// reads them, and returns. A device that computes on the calling thread returns when the batch is computed. Such a
    /// device calls `keep_going` now and then, for example between layers, and cancels the batch when that returns
    /// `false` ([`Progress::Stopped`]). Other devices need not call it.
    ///
    /// # Errors
    /// Errors of the device. This batch then counts as never submitted, earlier batches are unaffected, and the runner
    /// can still be used.
    fn submit(
        &mut self,
        batch: &mut dyn Iterator<Item = Sequence<'_>>,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<(), RunError>;

    /// The state of the oldest batch; does not block.
    ///
    /// # Errors
    /// Errors of the device. The batch is then lost, and is released like others; the runner can still be used.
    fn poll(&mut self) -> Result<Progress, RunError>;

    /// Appends rows of sequence number `sequence` of the oldest batch, which is done, as the model leaves them:
    /// `[pooled]`, `[seq_len, tokens]` or `[selected.len(), selected]`, as wide as [`RowLens`](super::RowLens) says.
    ///
    /// # Errors
    /// Errors of the device; rows that the model does not have, or that no [`Sequence::rows`] of the batch named.
    fn read(&mut self, sequence: usize, rows: Rows, to: &mut Vec<f32>) -> Result<(), RunError>;

    /// Releases the oldest batch, which was read, cancelled or lost. A runner of depth 1 need not implement it.
    fn release(&mut self) {}
}
