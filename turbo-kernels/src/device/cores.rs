//! The core that a thread runs on, and the cores that it may run on. Linux only: elsewhere the system chooses.

/// Stands for an unknown core.
pub(super) const NOWHERE: usize = usize::MAX;

/// The core that the calling thread runs on; a moment later it may run on another.
pub(super) fn here() -> usize {
    system::here()
}

/// The system's id of the calling thread; never zero.
pub(super) fn this_thread() -> i32 {
    system::this_thread()
}

/// The cores that a team may use.
pub(super) struct Cores(system::Cores);

impl Cores {
    /// The cores that the calling thread may use.
    pub(super) fn allowed() -> Self {
        Self(system::allowed())
    }

    /// Lets `thread` use all of these cores but `core`, if there are others; until now it used all but `before`. If its
    /// cores are not that set, another process or thread has changed them, as `taskset` does, and they stay as they
    /// are. A change to the very same set goes unnoticed.
    pub(super) fn keep_off(&self, thread: i32, before: usize, core: usize) {
        system::keep_off(&self.0, thread, before, core);
    }
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

    /// Empty where the machine has more cores than the set has room for.
    pub(super) type Cores = CpuSet;

    pub(super) fn here() -> usize {
        sched_getcpu()
    }

    pub(super) fn this_thread() -> i32 {
        gettid().as_raw_nonzero().get()
    }

    pub(super) fn allowed() -> Cores {
        sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new())
    }

    pub(super) fn keep_off(cores: &Cores, thread: i32, before: usize, core: usize) {
        if let Some(thread) = Pid::from_raw(thread)
            && sched_getaffinity(Some(thread)).is_ok_and(|now| now == all_but(cores, before))
        {
            // If this is refused, the system places the thread where it likes, as before.
            let _ = sched_setaffinity(Some(thread), &all_but(cores, core));
        }
    }

    /// All cores but `core`; all of them where there are no others.
    fn all_but(cores: &Cores, core: usize) -> Cores {
        let mut others = *cores;
        if core < CpuSet::MAX_CPU {
            others.unset(core);
        }
        if others.count() > 0 { others } else { *cores }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) struct Cores;

    pub(super) fn here() -> usize {
        super::NOWHERE
    }

    pub(super) fn this_thread() -> i32 {
        -1
    }

    pub(super) fn allowed() -> Cores {
        Cores
    }

    pub(super) fn keep_off(_: &Cores, _: i32, _: usize, _: usize) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;

    /// The cores that this thread may use.
    #[expect(
        clippy::unwrap_used,
        reason = "the lint spares functions marked as tests, and not their helpers"
    )]
    fn may_use() -> Vec<usize> {
        let allowed = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect()
    }

    #[test]
    fn a_thread_keeps_off_one_core_of_those_that_it_may_use() {
        let (cores, all) = (Cores::allowed(), may_use());
        assert!(all.contains(&here()));
        let mut before = NOWHERE;
        for &core in &all {
            cores.keep_off(this_thread(), before, core);
            before = core;
            let others: Vec<usize> = all.iter().copied().filter(|&other| other != core).collect();
            if others.is_empty() {
                assert_eq!(may_use(), all, "there is no other");
            } else {
                assert_eq!(may_use(), others);
                assert_ne!(here(), core);
            }
        }
        cores.keep_off(this_thread(), before, NOWHERE);
        assert_eq!(may_use(), all);
    }

    #[test]
    fn a_thread_stays_where_somebody_else_has_put_it() {
        let (cores, all) = (Cores::allowed(), sched_getaffinity(None).unwrap());
        let core = may_use()[0];
        cores.keep_off(this_thread(), NOWHERE, core);
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only).unwrap();
        cores.keep_off(this_thread(), core, NOWHERE);
        assert_eq!(may_use(), [core]);
        sched_setaffinity(None, &all).unwrap();
    }
}
