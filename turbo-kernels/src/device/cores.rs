//! Which core a thread is on, and where the system may put one that wakes. Systems that do not tell, or are not asked,
//! put threads where they like.

/// What is known of a core where nothing is.
pub(super) const NOWHERE: usize = usize::MAX;

/// The core that the calling thread is on; a moment later it may be on another.
pub(super) fn here() -> usize {
    system::here()
}

/// The number by which the system knows the calling thread; never zero.
pub(super) fn this_thread() -> i32 {
    system::this_thread()
}

/// The cores that a team may use.
pub(super) struct Cores(system::Cores);

impl Cores {
    /// Those of the calling thread.
    pub(super) fn allowed() -> Self {
        Self(system::allowed())
    }

    /// Has `thread` use all of them but `core`, where there are others.
    pub(super) fn keep_off(&self, thread: i32, core: usize) {
        system::keep_off(&self.0, thread, core);
    }
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

    /// None where there are more than the set has room for.
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

    pub(super) fn keep_off(cores: &Cores, thread: i32, core: usize) {
        let mut others = *cores;
        if core < CpuSet::MAX_CPU {
            others.unset(core);
        }
        if let Some(thread) = Pid::from_raw(thread)
            && others.count() > 0
        {
            // Where it is refused, the system puts the thread where it likes, as it did before.
            let _ = sched_setaffinity(Some(thread), &others);
        }
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

    pub(super) fn keep_off(_: &Cores, _: i32, _: usize) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity};

    use super::*;

    #[test]
    fn a_thread_keeps_off_one_core_of_those_that_it_may_use() {
        let cores = Cores::allowed();
        let may_use = || -> Vec<usize> {
            let allowed = sched_getaffinity(None).unwrap();
            (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect()
        };
        let all = may_use();
        assert!(all.contains(&here()));
        for &core in &all {
            cores.keep_off(this_thread(), core);
            let others: Vec<usize> = all.iter().copied().filter(|&other| other != core).collect();
            if others.is_empty() {
                assert_eq!(may_use(), all, "there is no other");
            } else {
                assert_eq!(may_use(), others);
                assert_ne!(here(), core);
            }
        }
        cores.keep_off(this_thread(), NOWHERE);
        assert_eq!(may_use(), all);
    }
}
