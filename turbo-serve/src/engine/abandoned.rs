//! Whether what was accepted is given up: threads ask between two pieces of work, clients wait for it beside their
//! answer.
//!
//! So a client is told at once, even while a thread has seconds of work in hand, and what it waited for is not begun.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use tokio::sync::Notify;

/// Said once, for good.
#[derive(Debug, Default)]
pub(super) struct Abandoned {
    said: AtomicBool,
    told: Notify,
}

impl Abandoned {
    /// Says it.
    pub(super) fn say(&self) {
        self.said.store(true, SeqCst);
        self.told.notify_waiters();
    }

    /// Whether it was said.
    pub(super) fn is_said(&self) -> bool {
        self.said.load(SeqCst)
    }

    /// Waits until it is said.
    pub(super) async fn told(&self) {
        // Made before the look: what is said between the two is not missed.
        let told = self.told.notified();
        if !self.is_said() {
            told.await;
        }
    }
}
