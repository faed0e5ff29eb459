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
//!                    ├─▶ in the folder? in Redis? ──▶ answered from there
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
mod redis;

use std::{
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) use self::record::Wanted;
use self::{
    behind::Behind,
    folder::Folder,
    memory::{Inserted, Memory, Values},
    metrics::HeldMetrics,
    redis::Redis,
};
pub use self::{
    key::{Key, Scope},
    redis::{NoRedisUrl, RedisUrl},
};
use crate::{engine::available_bytes, metric_names::tier};

/// Of the bytes of memory, one part of so many is for what waits to be written to a place behind it; and as much for pages
/// of the folder.
const BEHIND: usize = 16;
/// Answers are gathered for so long before they are written to the folder: a crash costs no more.
const GATHER_FOR_FOLDER: Duration = Duration::from_secs(1);
/// The same for Redis, where others wait for them.
const GATHER_FOR_REDIS: Duration = Duration::from_millis(10);
/// What waits to be written when a cache is closed may take so long: no slow disk or server keeps a process from ending.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// Where answers are kept; clones are handles to the same.
#[derive(Clone)]
pub struct ResponseCache(Arc<Shared>);

struct Shared {
    bytes: usize,
    memory: Memory,
    metrics: HeldMetrics,
    /// The places behind memory, in the order in which they are asked.
    behind: Vec<Behind>,
}

/// A place where answers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    Memory,
    Folder,
    Redis,
}

impl Tier {
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Folder, Self::Redis];

    /// Value of the label of its metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Memory => tier::MEMORY,
            Self::Folder => tier::FOLDER,
            Self::Redis => tier::REDIS,
        }
    }
}

/// Where answers are to be kept.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Most bytes of memory, keys, tables and what waits to be written counted. An answer of more than a sixty-fourth of
    /// that is not kept.
    pub bytes: usize,
    /// A folder in which they are kept from one start to the next.
    pub folder: Option<FolderOptions>,
    /// A server that keeps them for others, too.
    pub redis: Option<RedisOptions>,
}

/// A folder for answers. One process at a time uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderOptions {
    /// The folder; made where it is missing.
    pub dir: PathBuf,
    /// Most bytes that its files take together; but for one that was found damaged, which is kept beside them.
    pub bytes: u64,
}

/// A Redis or Valkey server for answers.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Where it is.
    pub url: RedisUrl,
    /// How long an answer stays there after it was written.
    pub ttl: Duration,
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
    /// More bytes than there is room for now.
    #[error("a cache of {got} bytes of memory is too large, {free} bytes are free")]
    TooLarge {
        /// What was asked for.
        got: u64,
        /// What the system says.
        free: u64,
    },
}

/// Called with what was found, and where.
pub(crate) type Callback = Box<dyn FnOnce(Vec<Option<(Tier, Arc<[f32]>)>>) + Send>;

impl ResponseCache {
    /// The least that is of use in memory: some dozens of answers.
    pub const LEAST_BYTES: usize = 64 << 10;
    /// The least that is of use in a folder.
    pub const LEAST_FOLDER_BYTES: u64 = Folder::LEAST_BYTES;

    /// A cache in memory that takes `bytes` at most.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn in_memory(bytes: usize) -> Result<Self, CacheError> {
        Self::open(&CacheOptions { bytes, folder: None, redis: None })
    }

    /// A cache in memory, and in what `options` say beside it. A folder or server that cannot be used is a warning.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn open(options: &CacheOptions) -> Result<Self, CacheError> {
        let bytes = options.bytes;
        check(bytes as u64, "of memory", Self::LEAST_BYTES as u64)?;
        check_room(bytes as u64)?;
        let share = bytes / BEHIND;
        let (mut behind, mut of_behind) = (Vec::new(), 0);
        if let Some(folder) = &options.folder {
            check(folder.bytes, "in a folder", Self::LEAST_FOLDER_BYTES)?;
            behind.extend(open_folder(folder, share));
            of_behind += 2 * share;
        }
        if let Some(redis) = &options.redis {
            behind.extend(open_redis(redis, share));
            of_behind += share;
        }
        let (memory, metrics) = (Memory::open(bytes - of_behind), HeldMetrics::new(tier::MEMORY));
        let usage = memory.usage();
        metrics.held(usage.bytes as f64, usage.entries as f64);
        Ok(Self(Arc::new(Shared { bytes, memory, metrics, behind })))
    }

    /// The most bytes that it takes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Whether answers may outlive the process, or come from others: where keys are to be lasting.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        !self.0.behind.is_empty()
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
        {
            self.0.behind.iter().for_each(|place| place.put(key, Arc::clone(&values)));
        }
    }

    /// Looks for answers, which memory does not have, behind it; calls back on another thread, or at once where nothing is
    /// behind it.
    pub(crate) fn look_behind(&self, wanted: Vec<Wanted>, callback: Callback) {
        self.look_from(0, wanted, callback);
    }

    /// Looks for answers in the places from number `nth` on; what is found further behind is written to those before.
    fn look_from(&self, nth: usize, wanted: Vec<Wanted>, callback: Callback) {
        let Some(place) = self.0.behind.get(nth) else { return callback(vec![None; wanted.len()]) };
        let (cache, tier, asked) = (self.clone(), place.tier(), wanted.clone());
        let look_further = move |found: Vec<Option<Values>>| {
            let missing: Vec<usize> = (0..found.len()).filter(|&at| found[at].is_none()).collect();
            let mut found: Vec<_> = found.into_iter().map(|found| Some((tier, found?))).collect();
            if missing.is_empty() {
                return callback(found);
            }
            let still_wanted: Vec<Wanted> = missing.iter().map(|&at| wanted[at]).collect();
            let nearer = cache.clone();
            let merge = move |further: Vec<Option<(Tier, Values)>>| {
                for (at, further) in missing.into_iter().zip(further) {
                    if let Some((_, values)) = &further {
                        nearer.0.behind[nth].put(wanted[at].key, Arc::clone(values));
                    }
                    found[at] = further;
                }
                callback(found);
            };
            cache.look_from(nth + 1, still_wanted, Box::new(merge));
        };
        place.look(asked, Box::new(look_further));
    }

    /// Keeps in memory what was found behind it.
    pub(crate) fn hold(&self, key: Key, values: &[f32]) -> Option<Values> {
        let Inserted { values, evicted, usage } = self.0.memory.insert(key, values)?;
        self.0.metrics.held(usage.bytes as f64, usage.entries as f64);
        self.0.metrics.evicted(evicted);
        Some(values)
    }

    /// Writes what is not yet written, for a few seconds at most. From then on it is a cache in memory.
    pub fn close(&self) {
        let end = Instant::now() + LAST_WRITES;
        // All at once: one that is slow must not take the time of the others.
        self.0.behind.iter().for_each(Behind::stop);
        self.0.behind.iter().for_each(|place| place.close(end));
    }

    /// The same for who waits for nothing: what is not being written is lost.
    pub fn give_up(&self) {
        self.0.behind.iter().for_each(Behind::give_up);
    }
}

fn check(got: u64, place: &'static str, least: u64) -> Result<(), CacheError> {
    if got < least { Err(CacheError::TooSmall { got, place, least }) } else { Ok(()) }
}

/// Whether there is room for the tables, an eighth of a cache, which are made at once; the rest is taken as answers come.
fn check_room(got: u64) -> Result<(), CacheError> {
    match available_bytes() {
        Some(free) if got / 8 > free => Err(CacheError::TooLarge { got, free }),
        _ => Ok(()),
    }
}

/// The folder, with so many bytes of memory for its pages and as many for what waits to be written.
fn open_folder(options: &FolderOptions, memory: usize) -> Option<Behind> {
    let FolderOptions { dir, bytes } = options;
    let start = |folder| Behind::start(Arc::new(folder), Tier::Folder, memory, GATHER_FOR_FOLDER);
    Folder::open(dir, *bytes, memory)
        .and_then(|folder| Ok(start(folder)?))
        .inspect_err(|why| tracing::warn!(dir = %dir.display(), %why, "answers are not kept in the folder"))
        .ok()
}

/// The server, with so many bytes of memory for what waits to be written.
fn open_redis(options: &RedisOptions, memory: usize) -> Option<Behind> {
    let RedisOptions { url, ttl } = options;
    let start = |redis| Behind::start(Arc::new(redis), Tier::Redis, memory, GATHER_FOR_REDIS);
    Redis::open(url, *ttl)
        .and_then(|redis| Ok(start(redis)?))
        .inspect_err(|why| tracing::warn!(redis = %url, %why, "answers are not shared"))
        .ok()
}

impl fmt::Debug for ResponseCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseCache").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}
