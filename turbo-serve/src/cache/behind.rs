//! A store behind memory, and its two threads: one reads, one writes.
//!
//! Lookups are asynchronous and call back; writes are queued, and the caller never waits. One read takes all lookups
//! that have arrived since the last read, so a store that is slow per read is read once for many. The bytes that wait
//! to be written are bounded: answers beyond the bound are not written.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use metrics::{Counter, counter};

use super::{
    Key, Tier,
    memory::{Values, heap_bytes},
    record::Wanted,
};
use crate::metric_names as names;

/// A store of answers. Both calls may block, and neither fails: an answer that is not found is computed, and an answer
/// that is not written is lost.
pub(super) trait Store: Send + Sync + 'static {
    /// The answers to `wanted`, in the same order; `None` where it has none.
    fn get(&self, wanted: &[Wanted]) -> Vec<Option<Found>>;

    /// Writes answers, the oldest first; returns how many were written.
    fn put(&self, answers: &[(Key, Values)]) -> usize;
}

/// An answer that was found.
pub(super) struct Found {
    pub values: Values,
    /// Whether it has to be written again, because it will soon be removed where it was found.
    pub renew: bool,
}

/// Called with the answers found, on the reading thread. It should return soon: other callers wait for that thread.
pub(super) type Callback = Box<dyn FnOnce(Vec<Option<Values>>) + Send>;

/// A read takes no more lookups once it has this many keys, so that the first caller does not wait for the last.
const LOOK: usize = 1024;
/// Time between two checks whether the threads have ended.
const ENDED: Duration = Duration::from_millis(1);

/// The threads of a store.
pub(super) struct Behind {
    tier: Tier,
    asks: Mutex<Option<Sender<Ask>>>,
    waiting: Arc<Waiting>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Ask {
    wanted: Vec<Wanted>,
    callback: Callback,
}

/// The answers that wait to be written.
struct Waiting {
    answers: Mutex<Answers>,
    changed: Condvar,
    most_bytes: usize,
    unwritten: Counter,
}

#[derive(Default)]
struct Answers {
    list: Vec<(Key, Values)>,
    /// Bytes of the answers in the list, and of those that are being written.
    bytes: usize,
    stopping: bool,
}

impl Behind {
    /// Starts the threads. Answers that wait to be written take `most_bytes` at most; they are gathered for `gather`,
    /// so that many are written at once.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn start(
        store: Arc<dyn Store>,
        tier: Tier,
        most_bytes: usize,
        gather: Duration,
    ) -> std::io::Result<Self> {
        let unwritten = counter!(names::CACHE_UNWRITTEN, names::TIER => tier.label());
        let waiting =
            Arc::new(Waiting { answers: Mutex::default(), changed: Condvar::new(), most_bytes, unwritten });
        let (asks, asked) = channel();
        let (of_looks, of_writes) = ((Arc::clone(&store), Arc::clone(&waiting)), Arc::clone(&waiting));
        let thread = |what: &str| thread::Builder::new().name(format!("turbo-{}-{what}", tier.label()));
        let looks = thread("looks").spawn(move || look(&*of_looks.0, &asked, &of_looks.1))?;
        let threads = Mutex::new(vec![looks]);
        let behind = Self { tier, asks: Mutex::new(Some(asks)), waiting, threads };
        let writes = thread("writes").spawn(move || write(&*store, &of_writes, gather))?;
        lock(&behind.threads).push(writes);
        Ok(behind)
    }

    pub(super) fn tier(&self) -> Tier {
        self.tier
    }

    /// Looks for `wanted`, and calls back. After [`Behind::stop`] it calls back at once, with nothing found.
    pub(super) fn look(&self, wanted: Vec<Wanted>, callback: Callback) {
        let ask = Ask { wanted, callback };
        let refused = match &*lock(&self.asks) {
            Some(asks) => asks.send(ask).err().map(|refused| refused.0),
            None => Some(ask),
        };
        if let Some(Ask { wanted, callback }) = refused {
            callback(vec![None; wanted.len()]);
        }
    }

    /// Queues an answer to be written, if there is room in the queue.
    pub(super) fn put(&self, key: Key, values: Values) {
        self.waiting.push(key, values);
    }

    /// Finishes the queued lookups and writes, and ends the threads. Writes that have not begun by `end` are discarded.
    /// Later lookups find nothing, and later answers are not written.
    pub(super) fn close(&self, end: Instant) {
        self.stop();
        let threads = mem::take(&mut *lock(&self.threads));
        // This may run on one of the cache's own threads, if the last handle is dropped there.
        let others = threads.iter().filter(|it| it.thread().id() != thread::current().id());
        for other in others {
            while !other.is_finished() && Instant::now() < end {
                thread::sleep(ENDED);
            }
        }
        if Instant::now() >= end {
            self.give_up();
        }
    }

    /// Discards the answers that wait to be written; the write in progress goes on. Does not wait.
    pub(super) fn give_up(&self) {
        self.stop();
        let mut answers = lock(&self.waiting.answers);
        let (given_up, unwritten_bytes) = (mem::take(&mut answers.list), answers.bytes);
        answers.bytes -= given_up.iter().map(|(_, values)| bytes(values)).sum::<usize>();
        drop(answers);
        self.waiting.unwritten.increment(given_up.len() as u64);
        if unwritten_bytes > 0 {
            let tier = self.tier.label();
            tracing::warn!(tier, unwritten_bytes, "the cache is closed before its last answers are written");
        }
    }

    /// Tells the threads to end after the queued work. New work is not taken.
    pub(super) fn stop(&self) {
        drop(lock(&self.asks).take());
        lock(&self.waiting.answers).stopping = true;
        self.waiting.changed.notify_all();
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Waiting {
    fn push(&self, key: Key, values: Values) {
        let mut answers = lock(&self.answers);
        let bytes = bytes(&values);
        if answers.stopping || answers.bytes + bytes > self.most_bytes {
            return self.unwritten.increment(1);
        }
        answers.bytes += bytes;
        answers.list.push((key, values));
        drop(answers);
        self.changed.notify_all();
    }

    /// Waits for an answer to write, then up to `gather` for more; returns the answers, and the bytes counted for them.
    /// `None` when all are written and no more will come.
    fn take(&self, gather: Duration) -> Option<(Vec<(Key, Values)>, usize)> {
        let idle = |answers: &mut Answers| answers.list.is_empty() && !answers.stopping;
        let answers = lock(&self.answers);
        let answers = self.changed.wait_while(answers, idle).unwrap_or_else(PoisonError::into_inner);
        // Once half of the room is taken, they are written at once.
        let growing = |answers: &mut Answers| !answers.stopping && answers.bytes < self.most_bytes / 2;
        let gathered = self.changed.wait_timeout_while(answers, gather, growing);
        let (mut answers, _) = gathered.unwrap_or_else(PoisonError::into_inner);
        let bytes = answers.bytes;
        let list = mem::take(&mut answers.list);
        (!list.is_empty()).then_some((list, bytes))
    }
}

/// Bytes that an answer takes while it waits.
fn bytes(values: &Values) -> usize {
    heap_bytes(values.len()) + size_of::<(Key, Values)>()
}

fn look(store: &dyn Store, asked: &Receiver<Ask>, waiting: &Waiting) {
    while let Ok(Ask { mut wanted, callback }) = asked.recv() {
        let mut callers = vec![(wanted.len(), callback)];
        while wanted.len() < LOOK
            && let Ok(mut more) = asked.try_recv()
        {
            callers.push((more.wanted.len(), more.callback));
            wanted.append(&mut more.wanted);
        }
        let found = store.get(&wanted);
        for (wanted, found) in wanted.iter().zip(&found) {
            if let Some(Found { values, renew: true }) = found {
                waiting.push(wanted.key, Arc::clone(values));
            }
        }
        let mut found = found.into_iter().map(|found| found.map(|found| found.values));
        for (wants, callback) in callers {
            let of_caller = found.by_ref().take(wants).collect();
            // A panic of one caller's callback must not fail the others.
            if catch_unwind(AssertUnwindSafe(|| callback(of_caller))).is_err() {
                tracing::error!("a thread that looks for answers panicked, and goes on");
            }
        }
    }
}

fn write(store: &dyn Store, waiting: &Waiting, gather: Duration) {
    while let Some((list, bytes)) = waiting.take(gather) {
        let written = store.put(&list);
        waiting.unwritten.increment((list.len() - written) as u64);
        drop(list);
        lock(&waiting.answers).bytes -= bytes;
    }
}

/// Nothing panics half-way under these locks, so a poisoned one still guards a whole value.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashMap,
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use super::*;
    use crate::cache::Scope;

    /// A store that a test can block.
    #[derive(Default)]
    struct Fake {
        answers: Mutex<HashMap<Key, Values>>,
        looks: AtomicUsize,
        /// While a test holds this lock, reads and writes block.
        held: Mutex<()>,
    }

    impl Store for Fake {
        fn get(&self, wanted: &[Wanted]) -> Vec<Option<Found>> {
            self.looks.fetch_add(1, SeqCst);
            drop(lock(&self.held));
            let answers = lock(&self.answers);
            let one =
                |wanted: &Wanted| Some(Found { values: answers.get(&wanted.key)?.clone(), renew: false });
            wanted.iter().map(one).collect()
        }

        fn put(&self, answers: &[(Key, Values)]) -> usize {
            drop(lock(&self.held));
            lock(&self.answers).extend(answers.iter().cloned());
            answers.len()
        }
    }

    fn key(n: u32) -> Key {
        Scope::of("test").key("pooled", &[&[n]])
    }

    fn start(store: &Arc<Fake>, most_bytes: usize) -> Behind {
        let store = Arc::clone(store) as Arc<dyn Store>;
        Behind::start(store, Tier::Folder, most_bytes, Duration::ZERO).unwrap()
    }

    /// A time by which all of this is done, unless it hangs.
    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Looks for these keys; the result is sent into the returned channel.
    fn ask(behind: &Behind, keys: std::ops::Range<u32>) -> Receiver<Vec<Option<Values>>> {
        let (send, receive) = channel();
        let wanted = keys.map(|n| Wanted { key: key(n), len: 1 }).collect();
        behind.look(wanted, Box::new(move |found| send.send(found).unwrap()));
        receive
    }

    fn values(found: Vec<Option<Values>>) -> Vec<Option<f32>> {
        found.into_iter().map(|found| found.map(|values| values[0])).collect()
    }

    #[test]
    fn all_who_come_meanwhile_share_a_look() {
        let store = Arc::new(Fake::default());
        let behind = start(&store, 1 << 20);
        store.put(&[(key(1), [1.0].into()), (key(4), [4.0].into())]);
        let held = lock(&store.held);
        let first = ask(&behind, 0..1);
        while store.looks.load(SeqCst) == 0 {
            thread::yield_now();
        }
        let others = [ask(&behind, 0..3), ask(&behind, 3..3), ask(&behind, 3..5)];
        drop(held);
        assert_eq!(values(first.recv().unwrap()), [None]);
        let expected: [&[Option<f32>]; 3] = [&[None, Some(1.0), None], &[], &[None, Some(4.0)]];
        for (other, expected) in others.into_iter().zip(expected) {
            assert_eq!(values(other.recv().unwrap()), expected);
        }
        assert_eq!(store.looks.load(SeqCst), 2);
        behind.close(later());
        assert_eq!(values(ask(&behind, 1..2).recv().unwrap()), [None], "closed");
    }

    #[test]
    fn a_caller_that_panics_is_alone_with_it() {
        let store = Arc::new(Fake::default());
        let behind = start(&store, 1 << 20);
        behind.look(Vec::new(), Box::new(|_| panic!("a mistake")));
        assert_eq!(values(ask(&behind, 0..1).recv().unwrap()), [None]);
    }

    #[test]
    fn what_waits_to_be_written_is_bounded_and_written_at_the_end() {
        let store = Arc::new(Fake::default());
        let one = heap_bytes(1) + size_of::<(Key, Values)>();
        let behind = start(&store, 10 * one);
        let held = lock(&store.held);
        (0..50).for_each(|n| behind.put(key(n), [n as f32].into()));
        assert!(lock(&behind.waiting.answers).bytes <= 10 * one);
        drop(held);
        behind.close(later());
        let written = lock(&store.answers);
        assert_eq!(written.len(), 10);
        assert!((0..10).all(|n| written[&key(n)][0] == n as f32), "the first ones");
        assert_eq!(lock(&behind.waiting.answers).bytes, 0);
    }

    #[test]
    fn what_is_not_written_in_time_is_given_up() {
        let store = Arc::new(Fake::default());
        let behind = start(&store, 1 << 20);
        let held = lock(&store.held);
        behind.put(key(0), [0.0].into());
        while !lock(&behind.waiting.answers).list.is_empty() {
            thread::yield_now();
        }
        behind.put(key(1), [1.0].into());
        let (begun, most) = (Instant::now(), Duration::from_millis(50));
        behind.close(begun + most);
        assert!((most..100 * most).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        drop(held);
        while lock(&behind.waiting.answers).bytes > 0 {
            thread::yield_now();
        }
        assert_eq!(lock(&store.answers).keys().collect::<Vec<_>>(), [&key(0)], "what was being written");
    }
}
