//! One computation for all who want the same at the same time.
//!
//! In: jobs, and the keys of their answers. Out: for the first job of a key a [`Promise`], which it carries to the worker;
//! the others wait here for its answer. A promise that is dropped with its job (its batch failed, or its client went before
//! anybody else had come) is broken, and who waited for it is computed as if there had been none: each for itself, so that
//! nobody's answer depends on somebody else's luck twice.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::queue::{Inbox, Job};
use crate::cache::{Key, ResponseCache};

/// The keys that are being computed, and who waits for them.
pub(super) struct Promises {
    cache: ResponseCache,
    waiting: Mutex<HashMap<Key, Vec<Job>>>,
    inbox: Inbox,
}

/// What becomes of a job.
pub(super) enum Asked {
    /// It has these rows.
    Known(Job, Arc<[f32]>),
    /// It waits for another one that will have its rows.
    Waits,
    /// It has to be computed, and carries the promise that it is.
    Missing(Job),
}

impl Promises {
    pub(super) fn new(cache: ResponseCache, inbox: Inbox) -> Self {
        Self { cache, waiting: Mutex::default(), inbox }
    }

    pub(super) fn cache(&self) -> &ResponseCache {
        &self.cache
    }

    /// Whether the answer to `job`, which is `key`, is known, promised, or to be computed.
    pub(super) fn ask(self: &Arc<Self>, key: Key, mut job: Job) -> Asked {
        if let Some(values) = self.cache.get(&key) {
            return Asked::Known(job, values);
        }
        match self.lock().entry(key) {
            Entry::Occupied(mut waiting) => {
                waiting.get_mut().push(job);
                Asked::Waits
            }
            Entry::Vacant(vacant) => {
                // A promise that was kept since the look above is in the cache: it is put there first.
                if let Some(values) = self.cache.get(&key) {
                    return Asked::Known(job, values);
                }
                vacant.insert(Vec::new());
                job.promise = Some(Promise { key, to: Some(Arc::clone(self)) });
                Asked::Missing(job)
            }
        }
    }

    fn take(&self, key: &Key) -> Vec<Job> {
        self.lock().remove(key).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Vec<Job>>> {
        // Nothing panics half-way under the lock, so a poisoned one still guards a whole value.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// That an answer is being computed. It is kept, or broken when it is dropped.
pub(super) struct Promise {
    key: Key,
    /// `None` when it was kept.
    to: Option<Arc<Promises>>,
}

impl Promise {
    /// Whether anybody waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        self.to.as_ref().is_some_and(|promises| {
            let waiting = promises.lock();
            waiting.get(&self.key).is_some_and(|jobs| jobs.iter().any(|job| !job.ticket.is_withdrawn()))
        })
    }

    /// The key of what is promised.
    pub(super) fn key(&self) -> Key {
        self.key
    }

    /// Hands `values`, which were found, to all who wait for them, and to the cache.
    pub(super) fn keep_found(mut self, values: &[f32]) {
        let Some(promises) = self.to.take() else { return };
        // `None` says that they are too large for it.
        let _ = promises.cache.hold(self.key, values);
        promises.take(&self.key).into_iter().for_each(|job| job.answer_known(values.to_vec()));
    }

    /// Hands `values` to all who wait for them, and to the cache. Their batch began at `started` and took `inference`.
    pub(super) fn keep(mut self, values: &[f32], started: Instant, inference: Duration) {
        let Some(promises) = self.to.take() else { return };
        promises.cache.put(self.key, values);
        for mut job in promises.take(&self.key) {
            job.answer(values.to_vec(), started, inference);
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let Some(promises) = self.to.take() else { return };
        let mut waiting = promises.take(&self.key);
        waiting.retain(|job| !job.ticket.is_withdrawn());
        if !waiting.is_empty() {
            tracing::debug!(
                inputs = waiting.len(),
                "computed again: the first who wanted it came to nothing"
            );
            promises.inbox.submit(waiting);
        }
    }
}
