//! Which rows of a batch somebody wants.

/// Which of the rows that a task has can be asked for.
///
/// It matters where a task has two kinds: an [embedding](crate::Task::Embedding) has the vector and the last hidden state
/// of every token. Where only the vector is wanted, be it of all batches or of
/// [this one](crate::Encoder::run_for), and it is that of one token (`cls`, the last one), that token alone asks in the
/// last attention, and what stands behind it is computed for that token alone. Keys and values are still those of all
/// tokens; so are queries that are turned by position or normed (ModernBERT, Nomic, GTE, Qwen3), while other families
/// compute those of that token alone. What is computed has the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outputs {
    /// All that the task has.
    #[default]
    All,
    /// A row per input alone, where the task has one; else all.
    Pooled,
}
