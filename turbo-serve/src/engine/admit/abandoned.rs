//! The flag that cancels all accepted requests: threads check it between two pieces of work, and each request waits for
//! it as well as for its answer.
//!
//! So a client gets its error at once, even while a thread has seconds of work left, and no further work is begun.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use tokio::sync::Notify;

/// Set once, for good.
#[derive(Debug, Default)]
pub(in crate::engine) struct Abandoned {
    said: AtomicBool,
    told: Notify,
}

impl Abandoned {
    /// Sets the flag and wakes every task that waits for it.
    pub(in crate::engine) fn say(&self) {
        self.said.store(true, SeqCst);
        self.told.notify_waiters();
    }

    /// Whether the flag is set.
    pub(in crate::engine) fn is_said(&self) -> bool {
        self.said.load(SeqCst)
    }

    /// Waits until the flag is set.
    pub(in crate::engine) async fn told(&self) {
        // Made before the check: a `say` between the two is not missed.
        let told = self.told.notified();
        if !self.is_said() {
            told.await;
        }
    }
}
