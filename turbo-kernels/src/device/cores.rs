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

/// The cores that a thread may use.
#[derive(Clone)]
pub(super) struct Cores(system::Cores);

impl Cores {
    /// Those of the calling thread, and of a thread that it starts.
    pub(super) fn allowed() -> Self {
        Self(system::Cores::allowed())
    }

    /// Has `thread`, whose cores these are, use all of them but `core`, where there are others. Where somebody else has set
    /// its cores since the last time, they are those.
    pub(super) fn keep_off(&mut self, thread: i32, core: usize) {
        self.0.keep_off(thread, core);
    }
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

    /// None where there are more than the set has room for.
    #[derive(Clone)]
    pub(super) struct Cores {
        allowed: CpuSet,
        /// Those that the thread was left with the last time.
        set: CpuSet,
    }

    pub(super) fn here() -> usize {
        sched_getcpu()
    }

    pub(super) fn this_thread() -> i32 {
        gettid().as_raw_nonzero().get()
    }

    impl Cores {
        pub(super) fn allowed() -> Self {
            let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
            Self { allowed, set: allowed }
        }

        pub(super) fn keep_off(&mut self, thread: i32, core: usize) {
            let Some(thread) = Pid::from_raw(thread) else { return };
            let Ok(now) = sched_getaffinity(Some(thread)) else { return };
            if now != self.set {
                *self = Self { allowed: now, set: now };
            }
            let mut others = self.allowed;
            if core < CpuSet::MAX_CPU {
                others.unset(core);
            }
            // Where it is refused, the system puts the thread where it likes, as it did before.
            if others.count() > 0 && sched_setaffinity(Some(thread), &others).is_ok() {
                self.set = others;
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    #[derive(Clone)]
    pub(super) struct Cores;

    pub(super) fn here() -> usize {
        super::NOWHERE
    }

    pub(super) fn this_thread() -> i32 {
        -1
    }

    impl Cores {
        pub(super) fn allowed() -> Self {
            Self
        }

        pub(super) fn keep_off(&mut self, _: i32, _: usize) {}
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity};

    use super::*;

    #[test]
    fn a_thread_keeps_off_one_core_of_those_that_it_may_use() {
        let mut cores = Cores::allowed();
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
