/// Which of the rows that a task has are computed.
///
/// It matters where a task has two kinds: an [embedding](crate::Task::Embedding) has the vector and the last hidden state
/// of every token. Where only the vector is wanted, and it is that of one token (`cls`, the last one), the last layer
/// computes that token alone: its query, its part of the feed-forward. What is computed has the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outputs {
    /// All that the task has.
    #[default]
    All,
    /// A row per input alone, where the task has one; else all.
    Pooled,
}
