//! The response cache: the same input is not computed again.
//!
//! In: the [`Key`] of an input (over the model, the ids, and the kind of rows that are wanted). Out: the rows as the
//! model left them, bit for bit, or nothing. What is done to the rows later (cut, normalise) is not in the key, so
//! requests that differ only in that share an answer.
//!
//! ```text
//! tokens ─▶ key ─▶ in memory? ──▶ answered at once
//!                    │ no
//!                    ├─▶ being computed for another input: waits for that
//!                    ├─▶ in the folder? in Redis? ──▶ answered from there
//!                    └─▶ queue ─▶ worker ─▶ answered, and kept here
//! ```
//!
//! Several engines may share one cache: a [`Scope`] keeps their models apart. Only answers whose keys mean the same in
//! other processes ([`Key::is_lasting`]) leave memory. No error here stops an engine: an answer that is not found is
//! computed, and an answer that cannot be written is lost; the log or a metric says so.

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

/// For each place behind memory, one part in this many of the cache's memory is for answers that wait to be written
/// there. As much again is for the pages of the folder.
const BEHIND: usize = 16;
/// How long answers are gathered before they are written to the folder: a crash loses only these.
const GATHER_FOR_FOLDER: Duration = Duration::from_secs(1);
/// The same for Redis, where other servers look for answers.
const GATHER_FOR_REDIS: Duration = Duration::from_millis(10);
/// Time limit of the last writes when a cache is closed: a slow disk or server must not keep a process from ending.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// A cache of answers; clones are handles to the same cache.
#[derive(Clone)]
pub struct ResponseCache(Arc<Shared>);

struct Shared {
    bytes: usize,
    memory: Memory,
    metrics: HeldMetrics,
    /// The places behind memory, in the order in which they are asked.
    behind: Vec<Behind>,
}

/// A place where answers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    Memory,
    Folder,
    Redis,
}

impl Tier {
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Folder, Self::Redis];

    /// Its value for the label [`TIER`](crate::metric_names::TIER).
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
    /// Most bytes of memory, including keys, tables and answers that wait to be written. An answer larger than about a
    /// sixty-fourth of that is not kept.
    pub bytes: usize,
    /// A folder that keeps them across restarts.
    pub folder: Option<FolderOptions>,
    /// A server that shares them with other processes.
    pub redis: Option<RedisOptions>,
}

/// A folder for answers. One process at a time uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderOptions {
    /// The folder; created if missing.
    pub dir: PathBuf,
    /// Most bytes of its files together, not counting a damaged file that was set aside.
    pub bytes: u64,
}

/// A Redis or Valkey server for answers.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Its address.
    pub url: RedisUrl,
    /// How long an answer is kept after it was written.
    pub ttl: Duration,
}

/// Why a cache was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// The bytes are too few to be of use.
    #[error("a cache of {got} bytes {place} is too small, expected {least} or more")]
    TooSmall {
        /// What was asked for.
        got: u64,
        /// Of memory, or of a folder.
        place: &'static str,
        /// The least there can be.
        least: u64,
    },
    /// The tables for these bytes have no room in memory now.
    #[error("a cache of {got} bytes of memory is too large, {free} bytes are free")]
    TooLarge {
        /// What was asked for.
        got: u64,
        /// Bytes that are free.
        free: u64,
    },
}

/// Called with the answers found, each with its tier.
pub(crate) type Callback = Box<dyn FnOnce(Vec<Option<(Tier, Arc<[f32]>)>>) + Send>;

impl ResponseCache {
    /// The fewest bytes that are of use in memory: some dozens of answers.
    pub const LEAST_BYTES: usize = 64 << 10;
    /// The fewest bytes that are of use in a folder.
    pub const LEAST_FOLDER_BYTES: u64 = Folder::LEAST_BYTES;

    /// A cache in memory that takes at most `bytes` bytes.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn in_memory(bytes: usize) -> Result<Self, CacheError> {
        Self::open(&CacheOptions { bytes, folder: None, redis: None })
    }

    /// A cache in memory, and in the folder and server of `options`. If one of these cannot be used, the log warns and
    /// the cache does without it.
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

    /// Most bytes of memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Whether answers may outlive the process or come from another one. Only those with lasting keys do.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        !self.0.behind.is_empty()
    }

    /// The values held in memory under `key`.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<[f32]>> {
        self.0.memory.get(key)
    }

    /// Keeps a copy of `values` under `key` until it is evicted, and queues it for the places behind memory if `key` is
    /// lasting. Neither is done for values that are too large for memory.
    pub fn put(&self, key: Key, values: &[f32]) {
        if let Some(values) = self.hold(key, values)
            && key.is_lasting()
        {
            self.0.behind.iter().for_each(|place| place.put(key, Arc::clone(&values)));
        }
    }

    /// Looks behind memory for answers that memory does not have. Calls back on another thread, or at once if there is
    /// no place behind memory or the cache is closed.
    pub(crate) fn look_behind(&self, wanted: Vec<Wanted>, callback: Callback) {
        self.look_from(0, wanted, callback);
    }

    /// Looks for answers in the places behind memory from number `nth` on. An answer found in one of them is written to
    /// those before it.
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

    /// Keeps a copy of `values` in memory only; `None` if they are too large.
    pub(crate) fn hold(&self, key: Key, values: &[f32]) -> Option<Values> {
        let Inserted { values, evicted, usage } = self.0.memory.insert(key, values)?;
        self.0.metrics.held(usage.bytes as f64, usage.entries as f64);
        self.0.metrics.evicted(evicted);
        Some(values)
    }

    /// Writes queued answers, for a few seconds at most. From then on the cache is in memory only.
    pub fn close(&self) {
        let end = Instant::now() + LAST_WRITES;
        // All places are stopped first: a slow one must not use up the time of the others.
        self.0.behind.iter().for_each(Behind::stop);
        self.0.behind.iter().for_each(|place| place.close(end));
    }

    /// The same without waiting: queued answers are lost, except those whose write is in progress.
    pub fn give_up(&self) {
        self.0.behind.iter().for_each(Behind::give_up);
    }
}

fn check(got: u64, place: &'static str, least: u64) -> Result<(), CacheError> {
    if got < least { Err(CacheError::TooSmall { got, place, least }) } else { Ok(()) }
}

/// Checks that the tables, an eighth of a cache, fit into memory: they are allocated at once, the rest as it fills.
fn check_room(got: u64) -> Result<(), CacheError> {
    match available_bytes() {
        Some(free) if got / 8 > free => Err(CacheError::TooLarge { got, free }),
        _ => Ok(()),
    }
}

/// Opens the folder, with `memory` bytes for its pages and as many for answers that wait to be written.
fn open_folder(options: &FolderOptions, memory: usize) -> Option<Behind> {
    let FolderOptions { dir, bytes } = options;
    let start = |folder| Behind::start(Arc::new(folder), Tier::Folder, memory, GATHER_FOR_FOLDER);
    Folder::open(dir, *bytes, memory)
        .and_then(|folder| Ok(start(folder)?))
        .inspect_err(|why| tracing::warn!(dir = %dir.display(), %why, "answers are not kept in the folder"))
        .ok()
}

/// Connects to the server, with `memory` bytes for answers that wait to be written.
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
