//! Threads that share one operation: fork, claim small pieces, join.
//!
//! A region is opened by the caller, who works in it too. Workers that are awake enter at once (they spin for some
//! tens of microseconds after the last region); parked ones are woken and enter when they come. The caller closes
//! the region when no piece is left and waits only for the workers inside, so a worker that wakes too late costs
//! nothing, and one whose core is taken by somebody else holds up at most one piece. An idle team is parked and uses
//! no CPU.
//!
//! Nested regions cannot be written: opening one needs `&mut Team`.

use std::{
    any::Any,
    cell::UnsafeCell,
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

/// How long a thread spins before it parks: longer than the serial steps between two operations, and short enough
/// that an idle server is idle.
const SPIN: Duration = Duration::from_micros(40);

/// A worker may enter the region.
const OPEN: u64 = 1 << 31;
/// One region.
const EPOCH: u64 = 1 << 32;
/// Workers inside the region.
const INSIDE: u64 = OPEN - 1;

/// The work of one region, whose lifetime is that of the region.
type Job = *const (dyn Fn(usize) + Sync);

/// On a cache line of its own, so that claiming does not disturb its neighbours.
#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    /// Region number, [`OPEN`], and the number of workers inside.
    state: Line<AtomicU64>,
    /// The next piece to be claimed.
    next: Line<AtomicUsize>,
    /// Work of the open region.
    job: UnsafeCell<Option<Job>>,
    /// Which workers are parked or about to be.
    parked: Box<[Line<AtomicBool>]>,
    /// The caller, while it waits for workers to leave.
    caller: Mutex<Option<Thread>>,
    caller_waits: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Workers that have begun to serve.
    started: AtomicUsize,
    stop: AtomicBool,
}

// SAFETY: `job` is written by the caller while no worker is inside and the region is closed, and read by workers
// that entered; entering synchronises with opening through `state`. The closure behind it is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is only followed while the caller keeps the closure alive in `Team::run`.
unsafe impl Send for Shared {}

/// The calling thread and `threads − 1` workers.
pub(crate) struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Team {
    /// # Errors
    /// When the system gives no more threads.
    pub(crate) fn new(threads: NonZeroUsize) -> std::io::Result<Team> {
        let workers = threads.get() - 1;
        let shared = Arc::new(Shared {
            state: Line(AtomicU64::new(0)),
            next: Line(AtomicUsize::new(0)),
            job: UnsafeCell::new(None),
            parked: (0..workers).map(|_| Line(AtomicBool::new(false))).collect(),
            caller: Mutex::new(None),
            caller_waits: AtomicBool::new(false),
            panic: Mutex::new(None),
            started: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let mut team = Team { shared, workers: Vec::with_capacity(workers) };
        for index in 0..workers {
            let shared = Arc::clone(&team.shared);
            let name = format!("turbo-team-{}", index + 1);
            team.workers.push(thread::Builder::new().name(name).spawn(move || shared.serve(index))?);
        }
        // A thread allocates while it starts, and nothing may do so once the team works.
        while team.shared.started.load(Relaxed) < workers {
            thread::yield_now();
        }
        Ok(team)
    }

    /// Threads that may work in a region, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work(thread, piece)` once for every piece in `0..pieces`, on whichever thread claims it; the caller is
    /// thread 0. Pieces are claimed in ascending order. Allocates nothing.
    ///
    /// # Panics
    /// When `work` panicked, with its payload, after every thread has left. Some pieces are then not done.
    pub(crate) fn for_each_piece(&mut self, pieces: usize, work: impl Fn(usize, usize) + Sync) {
        if pieces <= 1 || self.workers.is_empty() {
            (0..pieces).for_each(|piece| work(0, piece));
            return;
        }
        self.shared.next.0.store(0, Relaxed);
        let next = &self.shared.next.0;
        let claim = |thread: usize| {
            loop {
                let piece = next.fetch_add(1, Relaxed);
                if piece >= pieces {
                    break;
                }
                work(thread, piece);
            }
        };
        self.run(pieces - 1, &claim);
    }

    /// Opens a region, wakes at most `helpers` workers, works too, closes it and waits for those inside.
    ///
    /// Called by `for_each_piece` alone, whose `&mut self` makes it the only region.
    fn run(&self, helpers: usize, job: &(dyn Fn(usize) + Sync)) {
        // SAFETY: the lifetime is erased, not extended: `close` waits for every worker inside, a closed region lets
        // nobody in, and nothing between here and there unwinds, so `job` outlives every use.
        let erased = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: the last region is closed and empty, so no worker reads the cell, and this is the only
        // caller, as `for_each_piece` holds `&mut self`.
        unsafe { *self.shared.job.get() = Some(erased) };
        self.shared.open();
        for (parked, worker) in self.shared.parked.iter().zip(&self.workers).take(helpers) {
            if parked.0.load(SeqCst) && parked.0.swap(false, SeqCst) {
                worker.thread().unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        self.shared.close();
        let theirs = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = own.err().or(theirs) {
            resume_unwind(payload);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its work, so there is nothing to report.
            let _ = worker.join();
        }
    }
}

/// The caller's side.
impl Shared {
    fn open(&self) {
        let epoch = self.state.0.load(Relaxed) & !(EPOCH - 1);
        self.state.0.store(epoch.wrapping_add(EPOCH) | OPEN, SeqCst);
    }

    fn close(&self) {
        let inside = self.state.0.fetch_and(!OPEN, SeqCst) & INSIDE;
        let mut waiting = Waiting::start();
        while inside > 0 && self.state.0.load(Acquire) & INSIDE > 0 {
            if !waiting.spin() {
                return self.park_until_empty();
            }
        }
    }

    fn park_until_empty(&self) {
        *self.caller.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        self.caller_waits.store(true, SeqCst);
        while self.state.0.load(SeqCst) & INSIDE > 0 {
            thread::park();
        }
        self.caller_waits.store(false, SeqCst);
    }
}

/// The workers' side.
impl Shared {
    /// The life of worker `index`, which is thread `index + 1` of the team.
    fn serve(&self, index: usize) {
        self.started.fetch_add(1, Relaxed);
        let mut last = 0;
        while let Some(epoch) = self.enter(index, last) {
            last = epoch;
            // SAFETY: this thread is inside the region, so the caller neither writes the cell nor leaves `run`,
            // where the closure lives; entering made the write of the cell visible.
            let work = unsafe { (*self.job.get()).map(|job| &*job) };
            let work = work.expect("a region is opened after its job is set");
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| work(index + 1))) {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
            }
            self.leave();
        }
    }

    /// Waits for a region after number `last` and enters it; `None` when the team is dropped.
    fn enter(&self, index: usize, last: u64) -> Option<u64> {
        let mut waiting = Waiting::start();
        loop {
            if self.stop.load(SeqCst) {
                return None;
            }
            let state = self.state.0.load(SeqCst);
            if may_enter(state, last) {
                if self.state.0.compare_exchange(state, state + 1, SeqCst, Relaxed).is_ok() {
                    return Some(state / EPOCH);
                }
            } else if state & OPEN != 0 {
                // The others are at their last pieces, and the next region will follow.
                waiting = Waiting::start();
                waiting.spin();
            } else if !waiting.spin() {
                self.park(index, last);
                waiting = Waiting::start();
            }
        }
    }

    fn park(&self, index: usize, last: u64) {
        let parked = &self.parked[index].0;
        parked.store(true, SeqCst);
        // Looked at once more, so that a region that was opened in between is not slept through.
        if !may_enter(self.state.0.load(SeqCst), last) && !self.stop.load(SeqCst) {
            thread::park();
        }
        parked.store(false, SeqCst);
    }

    fn leave(&self) {
        let before = self.state.0.fetch_sub(1, SeqCst);
        let last_of_closed = before & (OPEN | INSIDE) == 1;
        if !last_of_closed || !self.caller_waits.load(SeqCst) {
            return;
        }
        let caller = self.caller.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(caller) = caller {
            caller.unpark();
        }
    }
}

fn may_enter(state: u64, last: u64) -> bool {
    state & OPEN != 0 && state / EPOCH != last
}

/// A short wait that yields to whoever needs the core more.
struct Waiting {
    since: Instant,
}

impl Waiting {
    fn start() -> Waiting {
        Waiting { since: Instant::now() }
    }

    /// Waits for a moment; false when it is time to park.
    fn spin(&mut self) -> bool {
        (0..64).for_each(|_| std::hint::spin_loop());
        let waited = self.since.elapsed();
        if waited > SPIN / 8 {
            thread::yield_now();
        }
        waited < SPIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team(threads: usize) -> Team {
        Team::new(NonZeroUsize::new(threads).unwrap()).unwrap()
    }

    #[test]
    fn every_piece_is_done_once_in_many_regions() {
        for threads in 1..=5 {
            let mut team = team(threads);
            for region in 0..2000 {
                let pieces = region % 23;
                let done: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
                team.for_each_piece(pieces, |thread, piece| {
                    assert!(thread < threads);
                    done[piece].fetch_add(1, Relaxed);
                });
                assert!(done.iter().all(|count| count.load(Relaxed) == 1));
            }
        }
    }

    #[test]
    fn workers_help_and_wake_from_parking() {
        let mut team = team(2);
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(2));
            let helped = AtomicBool::new(false);
            // Piece 0 ends when the other thread has done piece 1.
            team.for_each_piece(2, |_, piece| {
                if piece == 1 {
                    helped.store(true, SeqCst);
                }
                while !helped.load(SeqCst) {
                    thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn panics_reach_the_caller_after_all_have_left() {
        let mut team = team(3);
        for bad in [0, 1, 7] {
            let running = AtomicUsize::new(0);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                team.for_each_piece(8, |_, piece| {
                    running.fetch_add(1, SeqCst);
                    thread::sleep(Duration::from_micros(200));
                    running.fetch_sub(1, SeqCst);
                    assert!(piece != bad, "piece {piece} is bad");
                });
            }));
            let message = caught.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(*message, format!("piece {bad} is bad"));
            assert_eq!(running.load(SeqCst), 0);
            let count = AtomicUsize::new(0);
            team.for_each_piece(100, |_, _| {
                count.fetch_add(1, Relaxed);
            });
            assert_eq!(count.load(Relaxed), 100);
        }
    }

    #[test]
    fn a_team_moves_between_threads() {
        let mut team = team(2);
        team.for_each_piece(8, |_, _| ());
        thread::spawn(move || team.for_each_piece(8, |_, _| thread::sleep(Duration::from_micros(300))))
            .join()
            .unwrap();
    }

    /// Processor time of the calling thread's process would be disturbed by other tests, so this looks at the flags.
    #[test]
    fn idle_workers_park() {
        let mut team = team(3);
        team.for_each_piece(64, |_, _| ());
        let parked = |team: &Team| team.shared.parked.iter().all(|parked| parked.0.load(SeqCst));
        let patience = Instant::now();
        while !parked(&team) {
            assert!(patience.elapsed() < Duration::from_secs(5), "workers still spin");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
