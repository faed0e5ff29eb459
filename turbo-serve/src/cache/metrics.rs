//! The metrics of a place where answers are kept. Handles are made once, so that no insertion looks one up by name.

use metrics::{Counter, Gauge, counter, gauge};

use crate::metric_names as names;

pub(super) struct HeldMetrics {
    evictions: Counter,
    bytes: Gauge,
    entries: Gauge,
}

impl HeldMetrics {
    pub(super) fn new(tier: &'static str) -> Self {
        Self {
            evictions: counter!(names::CACHE_EVICTIONS, names::TIER => tier),
            bytes: gauge!(names::CACHE_BYTES, names::TIER => tier),
            entries: gauge!(names::CACHE_ENTRIES, names::TIER => tier),
        }
    }

    /// Sets the bytes and the number of answers kept now.
    pub(super) fn held(&self, bytes: f64, entries: f64) {
        self.bytes.set(bytes);
        self.entries.set(entries);
    }

    /// Counts answers that were evicted for others.
    pub(super) fn evicted(&self, entries: u64) {
        self.evictions.increment(entries);
    }
}
