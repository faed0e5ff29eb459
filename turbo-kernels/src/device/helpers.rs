//! Threads that help to pack constants: a fixed number at most, however many packings are under way.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

/// Threads that may be started. Each ends with the work that it was started for.
#[derive(Debug)]
pub(crate) struct Helpers {
    free: AtomicUsize,
    /// How a thread is built.
    builder: fn() -> thread::Builder,
}

impl Helpers {
    /// Allows at most `most` helpers at once.
    pub(crate) fn new(most: usize) -> Helpers {
        Helpers { free: AtomicUsize::new(most), builder: thread::Builder::new }
    }

    /// Calls `work` on the calling thread and, at the same time, on up to `most` helpers. `work` takes one item after
    /// another until none is left, so the other threads do the share of a helper that is busy, or that the system
    /// refuses.
    ///
    /// # Panics
    /// When `work` panics.
    pub(crate) fn share(&self, most: usize, work: impl Fn() + Sync) {
        let work = &work;
        // all at once: a helper that finished and was started again would find nothing left
        let helpers: Vec<Helper<'_>> = (0..most).map_while(|_| self.take()).collect();
        thread::scope(|scope| {
            for helper in helpers {
                let help = move || {
                    let _free_when_done = helper;
                    work();
                };
                if (self.builder)().spawn_scoped(scope, help).is_err() {
                    break; // the next one would be refused, too
                }
            }
            work();
        });
    }

    fn take(&self) -> Option<Helper<'_>> {
        let taken = self.free.fetch_update(Relaxed, Relaxed, |free| free.checked_sub(1));
        taken.ok().map(|_| Helper(&self.free))
    }

    /// Helpers that every system refuses to start.
    #[cfg(test)]
    pub(crate) fn refused(most: usize) -> Helpers {
        let builder = || thread::Builder::new().stack_size(usize::MAX / 8);
        Helpers { free: AtomicUsize::new(most), builder }
    }
}

/// One of the helpers, which is free again when this is dropped.
struct Helper<'a>(&'a AtomicUsize);

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// The number of threads that do work for which `most` helpers are requested.
    fn threads(helpers: &Helpers, most: usize) -> usize {
        let threads = AtomicUsize::new(0);
        helpers.share(most, || {
            threads.fetch_add(1, Relaxed);
        });
        threads.into_inner()
    }

    #[test]
    fn there_are_so_many_however_many_ask() {
        let helpers = Helpers::new(3);
        for (most, want) in [(0, 1), (2, 3), (3, 4), (100, 4)] {
            assert_eq!(threads(&helpers, most), want, "{most} asked for");
        }
        // one caller shares work while two of the three helpers are busy
        let (all_are_there, beside) = (Barrier::new(3), AtomicUsize::new(0));
        helpers.share(2, || {
            if all_are_there.wait().is_leader() {
                beside.store(threads(&helpers, 100), Relaxed);
            }
            all_are_there.wait();
        });
        assert_eq!(beside.into_inner(), 2);
        assert_eq!(threads(&helpers, 100), 4, "they are free again");
    }

    #[test]
    fn what_is_refused_leaves_its_work_to_the_caller() {
        let helpers = Helpers::refused(3);
        for _ in 0..2 {
            assert_eq!(threads(&helpers, 100), 1);
            assert_eq!(helpers.free.load(Relaxed), 3, "nothing was taken");
        }
    }
}
