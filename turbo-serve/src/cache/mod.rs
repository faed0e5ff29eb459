//! Answers that are kept, so that the same input need not be computed again.
//!
//! In: the [`Key`] of an input (the model, its ids, the kind of rows that are wanted). Out: the rows as the model left
//! them, bit for bit, or nothing. What is done with rows afterwards (cut, normalised) is not in the key, so requests that
//! differ in that share an answer.
//!
//! ```text
//! tokens ─▶ key ─▶ in memory? ──▶ answered at once
//!                    │ no
//!                    ├─▶ being computed for somebody else: waits for that
//!                    ├─▶ in the folder? ──▶ answered from there
//!                    └─▶ queue ─▶ worker ─▶ answered, and kept here
//! ```
//!
//! Several engines may share one: a [`Scope`] keeps their models apart. Only keys that mean the same in other processes
//! ([`Key::is_lasting`]) leave memory. Nothing here stops an engine: what is not found is computed, and what cannot be
//! written is lost, and a line of the log says so.

mod behind;
mod folder;
mod generation;
mod key;
mod memory;
mod metrics;
mod record;

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

pub use self::key::{Key, Scope};
pub(crate) use self::record::Wanted;
use self::{
    behind::Behind,
    folder::Folder,
    memory::{Inserted, Memory, Values},
    metrics::HeldMetrics,
};
use crate::metric_names::tier;

/// Of the bytes of memory, one part of so many is for what waits to be written to the folder, and as much for its pages.
const BEHIND: usize = 16;
/// Answers are gathered for so long before they are written to the folder: a crash costs no more.
const GATHER: Duration = Duration::from_secs(1);

/// Where answers are kept; clones are handles to the same.
#[derive(Clone)]
pub struct ResponseCache(Arc<Shared>);

struct Shared {
    bytes: usize,
    memory: Memory,
    metrics: HeldMetrics,
    folder: Option<Behind>,
}

/// Where answers are to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Most bytes of memory, keys, tables and what waits to be written counted. An answer of more than a sixty-fourth of
    /// that is not kept.
    pub bytes: usize,
    /// A folder in which they are kept from one start to the next.
    pub folder: Option<FolderOptions>,
}

/// A folder for answers. One process at a time uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderOptions {
    /// The folder; made where it is missing.
    pub dir: PathBuf,
    /// Most bytes that its files take together; but for one that was found damaged, which is kept beside them.
    pub bytes: u64,
}

/// Why there is no such cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// Too few bytes for any use.
    #[error("a cache of {got} bytes {place} is too small, expected {least} or more")]
    TooSmall {
        /// What was asked for.
        got: u64,
        /// Of which place.
        place: &'static str,
        /// The least there can be.
        least: u64,
    },
}

/// Called with what was found.
pub(crate) type Callback = behind::Callback;

impl ResponseCache {
    /// The least that is of use in memory: some dozens of answers.
    pub const LEAST_BYTES: usize = 64 << 10;
    /// The least that is of use in a folder.
    pub const LEAST_FOLDER_BYTES: u64 = Folder::LEAST_BYTES;

    /// A cache in memory that takes `bytes` at most.
    ///
    /// # Errors
    /// [`CacheError::TooSmall`].
    pub fn in_memory(bytes: usize) -> Result<Self, CacheError> {
        Self::open(&CacheOptions { bytes, folder: None })
    }

    /// A cache in memory, and in what `options` say beside it. A folder that cannot be used is a warning.
    ///
    /// # Errors
    /// [`CacheError::TooSmall`].
    pub fn open(options: &CacheOptions) -> Result<Self, CacheError> {
        let bytes = options.bytes;
        check(bytes as u64, "of memory", Self::LEAST_BYTES as u64)?;
        let folder = match &options.folder {
            Some(folder) => {
                check(folder.bytes, "in a folder", Self::LEAST_FOLDER_BYTES)?;
                open_folder(folder, bytes / BEHIND)
            }
            None => None,
        };
        let of_folder = if folder.is_some() { 2 * (bytes / BEHIND) } else { 0 };
        let (memory, metrics) = (Memory::open(bytes - of_folder), HeldMetrics::new(tier::MEMORY));
        let usage = memory.usage();
        metrics.held(usage.bytes as f64, usage.entries as f64);
        Ok(Self(Arc::new(Shared { bytes, memory, metrics, folder })))
    }

    /// The most bytes that it takes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Whether answers may outlive the process, or come from others: where keys are to be lasting.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        self.0.folder.is_some()
    }

    /// The values that memory has under `key`.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<[f32]>> {
        self.0.memory.get(key)
    }

    /// Keeps a copy of `values` under `key`, for as long as there is no better use for its place.
    pub fn put(&self, key: Key, values: &[f32]) {
        if let Some(values) = self.hold(key, values)
            && key.is_lasting()
            && let Some(folder) = &self.0.folder
        {
            folder.put(key, values);
        }
    }

    /// Looks for answers, which memory does not have, behind it; calls back on another thread, or at once where nothing is
    /// behind it.
    pub(crate) fn look_behind(&self, wanted: Vec<Wanted>, callback: Callback) {
        match &self.0.folder {
            Some(folder) => folder.look(wanted, callback),
            None => callback(vec![None; wanted.len()]),
        }
    }

    /// Keeps in memory what was found behind it.
    pub(crate) fn hold(&self, key: Key, values: &[f32]) -> Option<Values> {
        let Inserted { values, evicted, usage } = self.0.memory.insert(key, values)?;
        self.0.metrics.held(usage.bytes as f64, usage.entries as f64);
        self.0.metrics.evicted(evicted);
        Some(values)
    }

    /// Writes what is not yet written. From then on it is a cache in memory.
    pub fn close(&self) {
        if let Some(folder) = &self.0.folder {
            folder.close();
        }
    }
}

fn check(got: u64, place: &'static str, least: u64) -> Result<(), CacheError> {
    if got < least { Err(CacheError::TooSmall { got, place, least }) } else { Ok(()) }
}

/// The folder, with so many bytes of memory for its pages and as many for what waits to be written.
fn open_folder(options: &FolderOptions, memory: usize) -> Option<Behind> {
    let FolderOptions { dir, bytes } = options;
    let opened = Folder::open(dir, *bytes, memory).map_err(|error| error.to_string()).and_then(|folder| {
        Behind::start(Arc::new(folder), tier::FOLDER, memory, GATHER).map_err(|error| error.to_string())
    });
    match opened {
        Ok(folder) => Some(folder),
        Err(why) => {
            tracing::warn!(dir = %dir.display(), why, "answers are kept in memory only");
            None
        }
    }
}

impl fmt::Debug for ResponseCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseCache").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}
