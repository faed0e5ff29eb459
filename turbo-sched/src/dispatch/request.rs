//! What the batcher knows of a request. It never sees the text.

use std::time::Duration;

/// The caller's name for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Higher goes first; [`Priority::default`] is the lowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Priority(pub u8);

/// A waiting request. Times are since the epoch of the batcher's caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The caller's name for it.
    pub id: RequestId,
    /// Tokens.
    pub seq_len: u32,
    /// When it arrived.
    pub arrived: Duration,
    /// When its answer becomes worthless. A request past its deadline is still served unless the caller cancels it.
    pub deadline: Option<Duration>,
    /// It may overtake requests of lower priority.
    pub priority: Priority,
}

impl Request {
    /// A request without deadline, of lowest priority.
    #[must_use]
    pub fn new(id: RequestId, seq_len: u32, arrived: Duration) -> Self {
        Self { id, seq_len, arrived, deadline: None, priority: Priority::default() }
    }
}
