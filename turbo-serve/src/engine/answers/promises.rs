//! Deduplication: inputs with the same key that are in progress at the same time share one computation.
//!
//! In: jobs, and the keys of their answers. Out: for the first job of a key a [`Promise`], which it carries to the
//! worker; later jobs of that key wait here for its answer. A later job that is more urgent does not wait, unless the
//! first job's batch has begun: it is computed in its own turn, and once it is admitted the others wait for it instead.
//!
//! A promise that is dropped with its job (its batch failed, or its client went before other jobs came) is broken: the
//! jobs that waited for it are submitted without a promise, so that none fails twice because of another.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use turbo_sched::RequestId;

use crate::cache::{Key, ResponseCache};
use crate::engine::{
    admit::forecast::{Forecast, Place},
    compute::{inbox::Inbox, job::Job},
};

/// The keys that are being computed, and the jobs that wait for them.
pub(in crate::engine) struct Promises {
    cache: ResponseCache,
    awaited: Mutex<HashMap<Key, Awaited>>,
    inbox: Inbox,
    forecast: Arc<Forecast>,
}

/// A promised answer, and the jobs that wait for it.
struct Awaited {
    /// The job that the others wait for, and its place.
    by: RequestId,
    place: Arc<Place>,
    /// Whether its batch has begun.
    has_begun: bool,
    /// The jobs that wait.
    jobs: Vec<Job>,
}

impl Awaited {
    /// Whether a request with this `place` would be computed sooner than the job that carries the promise.
    fn would_gain(&self, place: &Place) -> bool {
        !self.has_begun && place.is_more_urgent_than(&self.place)
    }
}

/// What happens to a job.
pub(in crate::engine) enum Asked {
    /// Its rows are in the cache.
    Known(Job, Arc<[f32]>),
    /// It waits for another job with the same key.
    Waits,
    /// It has to be computed, and carries a promise.
    Missing(Job),
}

impl Promises {
    pub(in crate::engine) fn new(cache: ResponseCache, inbox: Inbox, forecast: Arc<Forecast>) -> Self {
        Self { cache, awaited: Mutex::default(), inbox, forecast }
    }

    pub(in crate::engine) fn cache(&self) -> &ResponseCache {
        &self.cache
    }

    /// Whether the answer to `job`, of this `key`, is cached, promised, or has to be computed.
    pub(in crate::engine) fn ask(self: &Arc<Self>, key: Key, mut job: Job) -> Asked {
        if let Some(values) = self.cache.get(&key) {
            return Asked::Known(job, values);
        }
        let (mut all, by, place) = (self.lock(), job.id(), Arc::clone(&job.ticket.place));
        if let Some(awaited) = all.get_mut(&key) {
            if !awaited.would_gain(&place) {
                awaited.jobs.push(job);
                return Asked::Waits;
            }
        } else if let Some(values) = self.cache.get(&key) {
            // A promise may have been kept since the first look into the cache: rows are put there before it is
            // removed.
            return Asked::Known(job, values);
        } else {
            all.insert(key, Awaited { by, place, has_begun: false, jobs: Vec::new() });
        }
        job.promise = Some(Promise { key, by, to: Some(Arc::clone(self)) });
        Asked::Missing(job)
    }

    fn take(&self, key: &Key) -> Vec<Job> {
        self.lock().remove(key).map(|awaited| awaited.jobs).unwrap_or_default()
    }

    /// Submits the jobs of a broken promise that can be answered in time, and fails the others.
    fn compute(&self, mut jobs: Vec<Job>) {
        let now = Instant::now();
        jobs.retain(|job| {
            job.expire(now);
            let settled = || self.forecast.settle(&job.ticket.place, &[(job.input, job.seq_len())]);
            !job.ticket.is_withdrawn() && settled().map_err(|too_late| job.ticket.refuse(too_late)).is_ok()
        });
        if !jobs.is_empty() {
            tracing::debug!(
                inputs = jobs.len(),
                "computed again: the first request for it failed or was cancelled"
            );
            self.inbox.submit(jobs);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Awaited>> {
        // Nothing panics half-way under the lock, so a poisoned one still guards a whole value.
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stands for an answer that is being computed. It is kept when the answer is there, or broken when dropped before.
pub(in crate::engine) struct Promise {
    key: Key,
    /// The job that carries it.
    by: RequestId,
    /// `None` when it was kept.
    to: Option<Arc<Promises>>,
}

impl Promise {
    /// Whether another request waits for it.
    pub(in crate::engine) fn is_awaited(&self) -> bool {
        let waits = |awaited: &mut Awaited| awaited.jobs.iter().any(|job| !job.ticket.is_withdrawn());
        self.look(waits).unwrap_or_default()
    }

    /// Records that its job is admitted, with this place: if it is the most urgent, the others wait for it from now on.
    /// They did not before, since a rejected job is not computed.
    pub(super) fn is_let_in(&self, place: &Arc<Place>) {
        let Some(promises) = &self.to else { return };
        if let Some(awaited) = promises.lock().get_mut(&self.key)
            && awaited.would_gain(place)
        {
            (awaited.by, awaited.place) = (self.by, Arc::clone(place));
        }
    }

    /// Records that the batch of its job begins: no later job would be computed sooner.
    pub(in crate::engine) fn begins(&self) {
        self.look(|awaited| awaited.has_begun = true);
    }

    /// Fails the waiting jobs whose deadline has passed at `now`, and drops those whose client no longer waits. If the
    /// job that they wait for has no deadline, the server's promise does not expire them either: they get its answer.
    /// A client's own deadline always counts.
    pub(in crate::engine) fn expire(&self, now: Instant) {
        self.look(|Awaited { place, jobs, .. }| {
            let is_promised = place.expires().is_some();
            jobs.retain(|job| {
                if is_promised || job.ticket.place.terms().is_asked {
                    job.expire(now);
                }
                !job.ticket.is_withdrawn()
            });
        });
    }

    /// Applies `at` to the promised answer, unless the others wait for another job.
    fn look<T>(&self, at: impl FnOnce(&mut Awaited) -> T) -> Option<T> {
        self.to.as_ref()?.lock().get_mut(&self.key).filter(|awaited| awaited.by == self.by).map(at)
    }

    /// The key of the promised answer.
    pub(in crate::engine) fn key(&self) -> Key {
        self.key
    }

    /// Answers the waiting jobs with `values`, which were found behind memory, and holds these in memory, too.
    pub(in crate::engine) fn keep_found(mut self, values: &[f32]) {
        let Some(promises) = self.to.take() else { return };
        // `None` if they are too large for it.
        let _ = promises.cache.hold(self.key, values);
        promises.take(&self.key).into_iter().for_each(|job| job.answer_known(values.to_vec()));
    }

    /// Puts `values` into the cache, and answers the waiting jobs. Their batch began at `started` and took `inference`.
    pub(in crate::engine) fn keep(mut self, values: &[f32], started: Instant, inference: Duration) {
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
        let broken = match promises.lock().entry(self.key) {
            Entry::Occupied(awaited) if awaited.get().by == self.by => awaited.remove().jobs,
            _ => return,
        };
        promises.compute(broken);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;
    use crate::{
        cache::Scope,
        engine::{
            AnswerRoom, EngineError, Priority,
            admit::{answer_room::tests::Holder, forecast::Terms, waiting::Waiting},
            compute::{
                inbox::channel,
                job::tests::{forecast, job_of},
            },
        },
    };

    #[test]
    fn who_waited_for_a_broken_promise_is_let_in_or_told() {
        let (forecast, (inbox, _arrivals)) = (forecast(), channel(Arc::new(Waiting::new(None))));
        let cache = ResponseCache::in_memory(1 << 20).unwrap();
        let promises = Arc::new(Promises::new(cache, inbox, Arc::clone(&forecast)));
        let key = Scope::alone().key("pooled", &[&[1]]);
        let come = |priority, within| {
            let (job, inside, client) = job_of(&forecast, Terms::new(Instant::now(), None, within, priority));
            (promises.ask(key, job), inside, client)
        };
        let (Asked::Missing(first), _first_inside, _first_client) = come(Priority::High, None) else {
            panic!("nobody promised it")
        };
        let hurried = come(Priority::Normal, Some(Duration::from_secs(5)));
        let patient = come(Priority::Normal, None);
        assert!(matches!((&hurried.0, &patient.0), (Asked::Waits, Asked::Waits)));

        forecast.busy_for(Duration::from_secs(8));
        drop(first);
        let told = hurried.2.blocking_recv().unwrap();
        assert!(matches!(told, Err(EngineError::TooLate { .. })), "{told:?}");
        drop((hurried.1, _first_inside));
        // 8 s for the running batch, and one for the job that waits
        assert!(forecast.retry_after() > Duration::from_millis(8500), "{:?}", forecast.retry_after());
    }

    #[test]
    fn nothing_is_held_for_who_is_told_that_it_is_too_late_now() {
        let (forecast, (inbox, _arrivals)) = (forecast(), channel(Arc::new(Waiting::new(None))));
        let cache = ResponseCache::in_memory(1 << 20).unwrap();
        let promises = Arc::new(Promises::new(cache, inbox, Arc::clone(&forecast)));
        let key = Scope::alone().key("pooled", &[&[1]]);
        let come = |within| job_of(&forecast, Terms::new(Instant::now(), None, within, Priority::Normal));
        let (first, _first_inside, _first_client) = come(None);
        let Asked::Missing(first) = promises.ask(key, first) else { panic!("nobody promised it") };
        let (mut waits, _inside, client) = come(Some(Duration::from_secs(5)));
        let room = Arc::new(Holder::default());
        let ticket = Arc::into_inner(waits.ticket).unwrap().held_in(AnswerRoom::of(room.clone()), 3);
        ticket.hold(std::slice::from_ref(&waits.encoded)).unwrap();
        waits.ticket = Arc::new(ticket);
        assert!(matches!(promises.ask(key, waits), Asked::Waits));
        assert_eq!(room.0.load(SeqCst), 3);

        forecast.busy_for(Duration::from_secs(8));
        drop(first);
        assert!(matches!(client.blocking_recv().unwrap(), Err(EngineError::TooLate { .. })));
        assert_eq!(room.0.load(SeqCst), 0, "he may come again");
    }

    #[test]
    fn others_wait_for_who_is_more_urgent_once_he_is_let_in() {
        let (forecast, (inbox, _arrivals)) = (forecast(), channel(Arc::new(Waiting::new(None))));
        let cache = ResponseCache::in_memory(1 << 20).unwrap();
        let promises = Arc::new(Promises::new(cache, inbox, Arc::clone(&forecast)));
        let key = Scope::alone().key("pooled", &[&[1]]);
        let come = |priority| {
            let (job, inside, client) = job_of(&forecast, Terms::new(Instant::now(), None, None, priority));
            let Asked::Missing(job) = promises.ask(key, job) else { panic!("he is more urgent") };
            (job, inside, client)
        };
        let promise = |of: &Job| of.promise.as_ref().map(Promise::is_awaited);
        let first = come(Priority::Low);
        let (waits, _inside, client) =
            job_of(&forecast, Terms::new(Instant::now(), None, None, Priority::Low));
        assert!(matches!(promises.ask(key, waits), Asked::Waits));
        let refused = come(Priority::High);
        drop(refused.0);
        assert_eq!(promise(&first.0), Some(true), "who is refused takes nobody with him");

        let urgent = come(Priority::High);
        urgent.0.promise.as_ref().unwrap().is_let_in(&urgent.0.ticket.place);
        assert_eq!([promise(&first.0), promise(&urgent.0)], [Some(false), Some(true)]);
        let mut urgent = urgent;
        urgent.0.promise.take().unwrap().keep(&[1.0], Instant::now(), Duration::ZERO);
        assert_eq!(client.blocking_recv().unwrap().unwrap()[0].values, [1.0]);
    }

    #[test]
    fn requests_that_take_longer_than_is_promised_are_computed_once() {
        let (forecast, (inbox, _arrivals)) = (forecast(), channel(Arc::new(Waiting::new(None))));
        let cache = ResponseCache::in_memory(1 << 20).unwrap();
        let promises = Arc::new(Promises::new(cache, inbox, Arc::clone(&forecast)));
        let key = Scope::alone().key("pooled", &[&[1]]);
        let slo = Some(Duration::from_millis(1));
        let come = || {
            let (job, inside, client) =
                job_of(&forecast, Terms::new(Instant::now(), None, slo, Priority::Normal));
            (promises.ask(key, job), inside, client)
        };
        let first = come();
        let Asked::Missing(job) = &first.0 else { panic!("nobody promised it") };
        forecast.settle(&job.ticket.place, &[(0, 1)]).unwrap();
        assert_eq!(job.ticket.place.expires(), None, "it takes a second");
        assert!(matches!(come().0, Asked::Waits));
    }

    #[test]
    fn who_waits_expires_by_himself_only_if_the_answer_is_promised_in_time() {
        let (forecast, (inbox, _arrivals)) = (forecast(), channel(Arc::new(Waiting::new(None))));
        let cache = ResponseCache::in_memory(1 << 20).unwrap();
        let promises = Arc::new(Promises::new(cache, inbox, Arc::clone(&forecast)));
        let key = Scope::alone().key("pooled", &[&[1]]);
        let (now, slo) = (Instant::now(), Duration::from_millis(1));
        let come = |deadline| {
            let (job, inside, client) =
                job_of(&forecast, Terms::new(now, deadline, Some(slo), Priority::Normal));
            (promises.ask(key, job), inside, client)
        };
        let (Asked::Missing(first), _first_inside, _first_client) = come(None) else {
            panic!("nobody promised it")
        };
        let [patient, hurried] = [None, Some(now + Duration::from_secs(60))].map(come);
        assert!(matches!((&patient.0, &hurried.0), (Asked::Waits, Asked::Waits)));
        forecast.settle(&first.ticket.place, &[(0, 1)]).unwrap();
        first.expire(now + Duration::from_secs(100)); // it takes a second, so nothing is promised
        let mut clients = [patient, hurried].map(|(_, _, client)| client);
        assert!(clients[0].try_recv().is_err(), "he gets the answer");
        assert!(matches!(clients[1].try_recv().unwrap(), Err(EngineError::Expired { .. })));
    }
}
