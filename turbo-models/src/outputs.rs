//! Which rows of a batch a caller wants.

/// Which of a task's rows can be read.
///
/// The choice matters for tasks with two kinds of rows: an [embedding](crate::Task::Embedding) has the pooled vector
/// and the last hidden state of every token. It saves work if only the vector is wanted, for all batches or for
/// [one](crate::Encoder::run_for), and if that vector is taken from one token (`cls`, the last one). Then the last
/// attention has a single query, that of this token, and everything behind it is computed for this token alone. Keys
/// and values are still computed for all tokens. So are queries that are rotated by position or normed (ModernBERT,
/// Nomic, GTE, Qwen3); other families compute the query of this token alone. What is computed has the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outputs {
    /// All rows of the task.
    #[default]
    All,
    /// Only the row per input, if the task has one; otherwise all rows.
    Pooled,
}
