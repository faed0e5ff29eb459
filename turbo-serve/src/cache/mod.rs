//! Answers that are kept, so that the same input need not be computed again.
//!
//! In: the [`Key`] of an input (the model, its ids, the kind of rows that are wanted). Out: the rows as the model left
//! them, bit for bit, or nothing. What is done with rows afterwards (cut, normalised) is not in the key, so requests that
//! differ in that share an answer.
//!
//! ```text
//! tokens ─▶ key ─▶ known? ──▶ answered at once
//!                    │ no
//!                    ├─▶ being computed for somebody else: waits for that
//!                    └─▶ queue ─▶ worker ─▶ answered, and kept here
//! ```
//!
//! Several engines may share one: a [`Scope`] keeps their models apart. Nothing here stops an engine: what is not found is
//! computed.

mod key;
mod memory;
mod metrics;

use std::{fmt, sync::Arc};

pub use self::key::{Key, Scope};
use self::{memory::Memory, metrics::CacheMetrics};

/// Where answers are kept; clones are handles to the same.
#[derive(Clone)]
pub struct ResponseCache(Arc<Shared>);

struct Shared {
    bytes: usize,
    memory: Memory,
    metrics: CacheMetrics,
}

/// Why there is no such cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// Too few bytes for any use.
    #[error("a cache of {got} bytes is too small, expected {least} or more")]
    TooSmall {
        /// What was asked for.
        got: usize,
        /// The least there can be.
        least: usize,
    },
}

impl ResponseCache {
    /// The least that is of use: some dozens of answers.
    pub const LEAST_BYTES: usize = 64 << 10;

    /// A cache in memory that takes `bytes` at most, keys and tables counted. An answer of more than a sixty-fourth of
    /// that is not kept.
    ///
    /// # Errors
    /// [`CacheError::TooSmall`].
    pub fn in_memory(bytes: usize) -> Result<Self, CacheError> {
        let least = Self::LEAST_BYTES;
        if bytes < least {
            return Err(CacheError::TooSmall { got: bytes, least });
        }
        let (memory, metrics) = (Memory::open(bytes), CacheMetrics::new());
        metrics.held(memory.usage(), 0);
        Ok(Self(Arc::new(Shared { bytes, memory, metrics })))
    }

    /// The most bytes that it takes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// The values that are kept under `key`.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<[f32]>> {
        self.0.memory.get(key)
    }

    /// Keeps a copy of `values` under `key`, for as long as there is no better use for its place.
    pub fn put(&self, key: Key, values: &[f32]) {
        if let Some(inserted) = self.0.memory.insert(key, values) {
            self.0.metrics.held(inserted.usage, inserted.evicted);
        }
    }
}

impl fmt::Debug for ResponseCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseCache").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}
