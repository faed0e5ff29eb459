//! What the cache counts. Handles are made once: an insertion has no lookup by name.

use metrics::{Counter, Gauge, counter, gauge};

use super::memory::Usage;
use crate::metric_names as names;

pub(super) struct CacheMetrics {
    evictions: Counter,
    bytes: Gauge,
    entries: Gauge,
}

impl CacheMetrics {
    pub(super) fn new() -> Self {
        Self {
            evictions: counter!(names::CACHE_EVICTIONS, names::TIER => names::tier::MEMORY),
            bytes: gauge!(names::CACHE_BYTES, names::TIER => names::tier::MEMORY),
            entries: gauge!(names::CACHE_ENTRIES, names::TIER => names::tier::MEMORY),
        }
    }

    /// What is held now, and how many answers had to go for it.
    pub(super) fn held(&self, usage: Usage, evicted: u64) {
        self.bytes.set(usage.bytes as f64);
        self.entries.set(usage.entries as f64);
        self.evictions.increment(evicted);
    }
}
