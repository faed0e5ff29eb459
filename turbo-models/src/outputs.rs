//! Which rows of a batch a caller wants.

/// Which of the rows that a task has can be read.
///
/// It matters where a task has two kinds: an [embedding](crate::Task::Embedding) has the vector and the last hidden state
/// of every token. Where only the vector is wanted, be it of all batches or of
/// [this one](crate::Encoder::run_for), and it is that of one token (`cls`, the last one), the last attention has the
/// query of that token alone, and so has all that follows. Keys and values are still those of all
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
