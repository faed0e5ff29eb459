//! The seam below the engine: one model on one device, behind an object-safe trait.
//!
//! In: token ids of a batch. Out: rows of its answers. The engine knows nothing of the device; many models, devices
//! and pipelines can stand behind this trait.

use turbo_sched::Candidate;

/// What a runner failed with. The engine tells the clients of the batch, and goes on; unless that, or a cause of it, is
/// [`DeviceLost`].
pub type RunError = Box<dyn std::error::Error + Send + Sync>;

/// The device is lost: no runner of this process can use it any more, be it built anew. From then on an engine is
/// [`Health::Failing`](super::Health::Failing).
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DeviceLost(pub RunError);

/// Makes a runner with memory for the capacity. Called once at start, and again after a batch has panicked: what a
/// panic leaves behind is not trusted.
pub type BuildRunner = Box<dyn FnMut(Capacity) -> Result<Box<dyn Runner>, RunError> + Send>;

/// The largest batch a runner has memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Sequences.
    pub batch_size: usize,
    /// Tokens of all of them; counted with padding where the runner pads.
    pub total_tokens: usize,
    /// Tokens of one.
    pub max_seq_len: usize,
}

/// Bytes that a runner has of its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBytes {
    /// Weights, as its kernels read them.
    pub weights: usize,
    /// Activations and rows: about what the largest batch plans, for all batches share chunks.
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
    /// Which of its rows will be read; `None`: any that the model has. What no sequence of a batch wants need not be
    /// computed.
    pub rows: Option<Rows>,
}

impl<'a> Sequence<'a> {
    /// Of one segment, with its first token selected, for any rows.
    #[must_use]
    pub fn of(input_ids: &'a [u32]) -> Self {
        Self { input_ids, token_type_ids: &[], selected: &[0], rows: None }
    }
}

/// How far the oldest submitted batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Its rows are not there yet.
    Running,
    /// Its rows can be read until it is released.
    Done,
    /// It was given up on the way, for nobody waits for it; there is nothing to read.
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
/// released; then it is the next one's turn.
pub trait Runner: Send {
    /// The largest batch it has memory for.
    fn capacity(&self) -> Capacity;

    /// Batches that may be submitted before the oldest is released. More than one lets a device that computes by itself
    /// find the next batch when it is done.
    fn depth(&self) -> usize {
        1
    }

    /// Gets memory for batches up to `capacity`, which is no smaller than the one it has. Called as often as it becomes
    /// known that batches may be larger.
    ///
    /// # Errors
    /// No such memory.
    fn reserve(&mut self, capacity: Capacity) -> Result<(), RunError>;

    /// Bytes that the activations of `batch` take.
    fn footprint(&mut self, batch: &Candidate) -> usize;

    /// Bytes that it has now; none where nobody counts.
    fn held_bytes(&self) -> HeldBytes {
        HeldBytes::default()
    }

    /// Bytes of the device's memory that nobody has taken or reserved; `None` where nothing bounds batches but their time.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Starts a batch within the capacity, behind those that were submitted before: copies the ids to where the device
    /// reads them, and returns. A device that computes on the calling thread returns when it has computed, and asks
    /// `keep_going` now and then, such as between layers; when that says no it gives the batch up
    /// ([`Progress::Stopped`]). Others need not ask.
    ///
    /// # Errors
    /// Whatever the device fails with; this batch counts as never submitted, those before are as they were, and the runner
    /// can be used on.
    fn submit(
        &mut self,
        batch: &mut dyn Iterator<Item = Sequence<'_>>,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<(), RunError>;

    /// How far the oldest batch is; does not block.
    ///
    /// # Errors
    /// Whatever the device fails with; the batch is lost, is released like others, and the runner can be used on.
    fn poll(&mut self) -> Result<Progress, RunError>;

    /// Appends rows of sequence number `sequence` of the oldest batch, which is done, as the model leaves them: `[pooled]`,
    /// `[seq_len, tokens]` or `[selected.len(), selected]`, as wide as [`RowLens`](super::RowLens) says.
    ///
    /// # Errors
    /// Whatever the device fails with; rows that the model does not have, or that no [`Sequence::rows`] named.
    fn read(&mut self, sequence: usize, rows: Rows, to: &mut Vec<f32>) -> Result<(), RunError>;

    /// Lets go of the oldest batch: it was read, given up, or lost. Who has one batch at a time need not know.
    fn release(&mut self) {}
}
