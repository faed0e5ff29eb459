//! A count and a total time.

use std::time::Duration;

/// How often something was done, and how long that took in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// How often it was done.
    pub count: u64,
    /// The total time.
    pub time: Duration,
}

impl Spent {
    /// Adds one time.
    pub fn add(&mut self, time: Duration) {
        self.count += 1;
        self.time = self.time.saturating_add(time);
    }
}
