//! How often something was done, and how long that took.

use std::time::Duration;

/// How often something was, and how long it took altogether.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// How often.
    pub count: u64,
    /// How long.
    pub time: Duration,
}

impl Spent {
    /// Once more, for so long.
    pub fn add(&mut self, time: Duration) {
        self.count += 1;
        self.time = self.time.saturating_add(time);
    }
}
