//! Threads that share one operation: publish, claim small pieces, wait for the last.
//!
//! ```text
//! caller   job, pieces ─▶ claims ──── works ──── counts ─▶ next job
//! workers  look at the claims ─▶ claim ─▶ work ─▶ count ─▶ look …   (outside a region: some tens of µs, then park)
//! ```
//!
//! One word holds the number of pieces and the number of claims. A thread claims by adding one to the word. The word's
//! value before the addition tells it whether it has a piece, and of which job: a claimed piece keeps its job alive.
//! Threads do not enter or leave a job, so a worker that comes late costs nothing, and one that loses its core delays
//! at most one piece. Handing an operation over takes a few transfers of a cache line.
//!
//! In a region ([`Team::hold`]) the workers do not park, so that many short operations can follow each other; they
//! still yield their cores to other threads every few tens of microseconds. An idle team is parked and uses no CPU.
//!
//! Workers keep off the caller's core. Linux likes to put a woken thread on the core of the thread that wakes it, even
//! if another core is idle, and moves it only when it next looks, a millisecond later: by then a short text is done.
//! The caller itself may be moved at any time, even to a worker's core, so each operation checks which core it runs on.
//! If another process has set a worker's cores meanwhile, the team leaves them as they are.

use std::{
    any::Any,
    cell::UnsafeCell,
    hint::spin_loop,
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::*},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::cores::{self, Cores};

/// How long a worker spins before it parks: longer than the serial steps between two operations, yet short enough that
/// an idle server uses no CPU.
const SPIN: Duration = Duration::from_micros(40);
/// Looks between two readings of the clock.
const LOOKS: u32 = 64;
/// Looks between two yields to other threads: some tens of microseconds.
const PATIENCE: u32 = 1 << 9;

/// Bits of the claims word below the number of pieces: the lower half counts claims.
const PIECES: u32 = 32;

/// The work of one job, which lives as long as its call of [`Team::for_each_piece`].
type Job = *const (dyn Fn(usize, usize) + Sync);

/// Has cache lines to itself (two, since they are fetched in pairs), so that neighbours do not disturb each other.
#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    claims: Line<Claims>,
    /// Pieces of the job that workers have done.
    done: Line<AtomicUsize>,
    /// Open regions; while there is one, no worker parks.
    held: Line<AtomicUsize>,
    /// Which workers are parked or about to be.
    parked: Box<[Line<AtomicBool>]>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// The workers' thread ids; zero for a worker that has not started yet.
    threads: Box<[AtomicI32]>,
    stop: AtomicBool,
}

/// The job and its claims, in one cache line: claiming a piece also fetches the job.
struct Claims {
    /// The number of pieces (upper half), and the number of claims (lower half), which may exceed it.
    word: AtomicU64,
    job: UnsafeCell<Option<Job>>,
}

// SAFETY: `job` is written by the caller while no piece is claimed, and read only by threads that have claimed one;
// claiming synchronises with publishing through `word`. The closure behind it is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is only followed while the caller keeps the closure alive in `for_each_piece`.
unsafe impl Send for Shared {}

/// The calling thread and `threads − 1` workers.
pub(crate) struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// The cores that the team may use.
    cores: Cores,
    /// The core that the workers currently keep off.
    kept_off: AtomicUsize,
}

impl Team {
    /// # Errors
    /// When the system refuses another thread.
    pub(crate) fn new(threads: NonZeroUsize) -> std::io::Result<Team> {
        let workers = threads.get() - 1;
        let shared = Arc::new(Shared {
            claims: Line(Claims { word: AtomicU64::new(0), job: UnsafeCell::new(None) }),
            done: Line(AtomicUsize::new(0)),
            held: Line(AtomicUsize::new(0)),
            parked: (0..workers).map(|_| Line(AtomicBool::new(false))).collect(),
            panic: Mutex::new(None),
            threads: (0..workers).map(|_| AtomicI32::new(0)).collect(),
            stop: AtomicBool::new(false),
        });
        let mut team = Team {
            shared,
            workers: Vec::with_capacity(workers),
            cores: Cores::allowed(),
            kept_off: AtomicUsize::new(cores::NOWHERE),
        };
        for index in 0..workers {
            let shared = Arc::clone(&team.shared);
            let name = format!("turbo-team-{}", index + 1);
            team.workers.push(thread::Builder::new().name(name).spawn(move || shared.serve(index))?);
        }
        // A thread allocates memory while it starts, and nothing may allocate once the team works.
        while team.shared.threads.iter().any(|thread| thread.load(Relaxed) == 0) {
            thread::yield_now();
        }
        Ok(team)
    }

    /// Threads that may work on a job, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Opens a region: no worker parks until the result is dropped. Regions may be nested.
    pub(crate) fn hold(&self) -> Held {
        self.shared.held.0.fetch_add(1, SeqCst);
        self.leave_to_caller();
        self.wake(self.workers.len());
        Held(Arc::clone(&self.shared))
    }

    /// Calls `work(thread, piece)` once for every piece in `0..pieces`, on whichever thread claims it; the caller is
    /// thread 0. Pieces are claimed in ascending order. Allocates nothing.
    ///
    /// # Panics
    /// When `work` panicked, with its payload, after every piece is over. When there are nearly 2³² pieces.
    pub(crate) fn for_each_piece(&mut self, pieces: usize, work: impl Fn(usize, usize) + Sync) {
        if pieces <= 1 || self.workers.is_empty() {
            (0..pieces).for_each(|piece| work(0, piece));
            return;
        }
        self.leave_to_caller();
        self.shared.publish(pieces, &work);
        if self.shared.held.0.load(Relaxed) == 0 {
            self.wake(pieces - 1);
        }
        let own = self.shared.take_pieces(0);
        let mut waiting = 0;
        while self.shared.done.0.load(Acquire) + own < pieces {
            look(&mut waiting);
        }
        let panicked = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panicked {
            resume_unwind(payload);
        }
    }

    /// Makes all workers keep off the caller's core, if it has changed.
    fn leave_to_caller(&self) {
        let (here, before) = (cores::here(), self.kept_off.load(Relaxed));
        if before != here {
            self.kept_off.store(here, Relaxed);
            for thread in &self.shared.threads {
                self.cores.keep_off(thread.load(Relaxed), before, here);
            }
        }
    }

    /// Wakes those of the first `most` workers that are parked.
    fn wake(&self, most: usize) {
        for (worker, Line(parked)) in self.workers.iter().zip(&self.shared.parked).take(most) {
            if parked.load(SeqCst) && parked.swap(false, SeqCst) {
                worker.thread().unpark();
            }
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

/// An open region.
pub(crate) struct Held(Arc<Shared>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.0.fetch_sub(1, SeqCst);
    }
}

impl Shared {
    /// Makes `work` the job, with no piece claimed.
    ///
    /// Only `for_each_piece` calls this. It returns when the job is done, and its `&mut self` makes it the only caller.
    fn publish(&self, pieces: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        // each thread may claim once beyond the last piece, and the word must be able to count all claims
        let most = u32::MAX as usize - self.parked.len();
        assert!(pieces <= most, "an operation of {pieces} pieces, at most {most} are possible");
        // SAFETY: the lifetime is erased, not extended: only threads that have claimed a piece of the job follow it,
        // and `for_each_piece` does not return or unwind before every piece is counted.
        let erased = unsafe { std::mem::transmute::<&(dyn Fn(usize, usize) + Sync), Job>(work) };
        // SAFETY: every piece of the previous job is counted, so no thread holds a claim or reads the cell.
        unsafe { *self.claims.0.job.get() = Some(erased) };
        self.done.0.store(0, Relaxed);
        self.claims.0.word.store((pieces as u64) << PIECES, SeqCst);
    }

    /// Whether there may be unclaimed pieces.
    fn has_pieces(&self, order: std::sync::atomic::Ordering) -> bool {
        let word = self.claims.0.word.load(order);
        (word as u32) < (word >> PIECES) as u32
    }

    /// Does pieces until none is left, and returns how many it did. Panics are kept for the caller.
    fn take_pieces(&self, thread: usize) -> usize {
        let mut taken = 0;
        loop {
            let over = catch_unwind(AssertUnwindSafe(|| {
                while self.has_pieces(Relaxed) {
                    let word = self.claims.0.word.fetch_add(1, Acquire);
                    let piece = word as u32;
                    if piece >= (word >> PIECES) as u32 {
                        break;
                    }
                    taken += 1;
                    // SAFETY: this piece is claimed and not yet counted, so the caller neither writes the cell nor
                    // leaves `for_each_piece`, where the closure lives; claiming made the write of the cell visible.
                    let work = unsafe { (*self.claims.0.job.get()).map(|job| &*job) };
                    work.expect("a job is set before it is published")(thread, piece as usize);
                }
            }));
            match over {
                Ok(()) => return taken,
                Err(payload) => {
                    *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
                }
            }
        }
    }

    /// The life of worker `index`, which is thread `index + 1` of the team.
    fn serve(&self, index: usize) {
        self.threads[index].store(cores::this_thread(), Relaxed);
        while self.wait(index) {
            let taken = self.take_pieces(index + 1);
            if taken > 0 {
                self.done.0.fetch_add(taken, Release);
            }
        }
    }

    /// Waits until there may be work; returns false when the team is dropped.
    fn wait(&self, index: usize) -> bool {
        let mut since = None;
        let mut looks = 0;
        while !self.has_pieces(Relaxed) {
            look(&mut looks);
            if !looks.is_multiple_of(LOOKS) {
                continue;
            }
            if self.stop.load(SeqCst) {
                return false;
            }
            if self.held.0.load(Relaxed) > 0 {
                since = None;
            } else if since.get_or_insert_with(Instant::now).elapsed() > SPIN {
                self.park(index);
                since = None;
            }
        }
        true
    }

    fn park(&self, index: usize) {
        let parked = &self.parked[index].0;
        parked.store(true, SeqCst);
        // Checked once more, so that the worker does not sleep through work published in between.
        let wanted = self.has_pieces(SeqCst) || self.held.0.load(SeqCst) > 0 || self.stop.load(SeqCst);
        if !wanted {
            thread::park();
        }
        parked.store(false, SeqCst);
    }
}

/// Spins for a moment between two looks; every [`PATIENCE`] looks it yields the core to other threads instead.
pub(crate) fn look(looks: &mut u32) {
    *looks = looks.wrapping_add(1);
    if looks.is_multiple_of(PATIENCE) {
        thread::yield_now();
    } else {
        spin_loop();
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
            // Piece 0 ends once the other thread has begun piece 1.
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

    #[test]
    fn a_region_keeps_its_workers_until_it_ends() {
        let mut team = team(3);
        for _ in 0..3 {
            let outer = team.hold();
            drop(team.hold());
            for pieces in 0..200 {
                let count = AtomicUsize::new(0);
                team.for_each_piece(pieces, |_, _| {
                    count.fetch_add(1, Relaxed);
                });
                assert_eq!(count.load(Relaxed), pieces);
            }
            thread::sleep(SPIN * 20);
            assert!(team.shared.parked.iter().all(|parked| !parked.0.load(SeqCst)), "parked in a region");
            drop(outer);
            assert!(all_park(&team), "workers still spin");
        }
    }

    fn all_park(team: &Team) -> bool {
        let patience = Instant::now();
        while !team.shared.parked.iter().all(|parked| parked.0.load(SeqCst)) {
            if patience.elapsed() > Duration::from_secs(5) {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Where the system puts a thread is up to the system; this checks where it may not put it.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_worker_keeps_off_the_core_of_the_caller() {
        use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
        let all = sched_getaffinity(None).unwrap();
        let mut team = team(2);
        let check = |team: &Team, core| {
            let may_use = sched_getaffinity(Pid::from_raw(team.shared.threads[0].load(Relaxed))).unwrap();
            assert_eq!(may_use.is_set(core), all.count() == 1, "it has no choice where there is one core");
            assert_eq!(may_use.count(), (all.count() - 1).max(1));
        };
        for core in (0..CpuSet::MAX_CPU).filter(|&core| all.is_set(core)) {
            assert!(all_park(&team), "the worker still spins");
            let region = team.hold();
            let was_on = team.kept_off.load(Relaxed);
            assert!(all.is_set(was_on), "{was_on} is where the caller was");
            check(&team, was_on);
            // the caller moves while the region is open and no worker parks
            let mut only = CpuSet::new();
            only.set(core);
            sched_setaffinity(None, &only).unwrap();
            team.for_each_piece(2, |_, _| ());
            check(&team, core);
            sched_setaffinity(None, &all).unwrap();
            drop(region);
        }
    }

    /// Other tests would disturb a measurement of the process's CPU time, so this looks at the flags.
    #[test]
    fn idle_workers_park() {
        let mut team = team(3);
        team.for_each_piece(64, |_, _| ());
        assert!(all_park(&team), "workers still spin");
    }
}
