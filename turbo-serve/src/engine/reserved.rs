//! Memory that models of this process have reserved and not touched yet: the system takes it for free.
//!
//! In: what each model reserves, and how much of that its batches have used. Out: the bytes that another model must not
//! count on. A device with memory of its own gives what it reserves at once; there, too, nobody else may look between a look
//! at what is free and taking it ([`planning`]).

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Held from a look at the memory that is free until what was planned of it is reserved: models that start at the same time
/// must not count on the same bytes.
pub(super) fn planning() -> MutexGuard<'static, ()> {
    static PLANNING: Mutex<()> = Mutex::new(());
    // It guards no value that a panic could leave half-made.
    PLANNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that all models of a process have reserved and not touched.
#[derive(Debug)]
struct Ledger(AtomicU64);

static OF_THE_PROCESS: Ledger = Ledger(AtomicU64::new(0));

/// What one model has reserved; nothing when it is dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    ledger: &'static Ledger,
    bytes: u64,
    /// The largest share of them that a batch has used.
    touched: f64,
    /// What of them is in the ledger.
    entered: u64,
}

impl Default for Reserved {
    fn default() -> Self {
        Self::of(&OF_THE_PROCESS)
    }
}

impl Reserved {
    fn of(ledger: &'static Ledger) -> Self {
        Self { ledger, bytes: 0, touched: 0.0, entered: 0 }
    }

    /// It has so many bytes from now on, none of them touched.
    pub(super) fn set(&mut self, bytes: u64) {
        (self.bytes, self.touched) = (bytes, 0.0);
        self.enter();
    }

    /// A batch uses about this share of them: activations grow as tokens do.
    pub(super) fn touched(&mut self, share: f64) {
        if share > self.touched {
            self.touched = share.min(1.0);
            self.enter();
        }
    }

    /// Bytes that others have reserved and not touched.
    pub(super) fn of_others(&self) -> u64 {
        self.ledger.0.load(Relaxed).saturating_sub(self.entered)
    }

    fn enter(&mut self) {
        let untouched = (self.bytes as f64 * (1.0 - self.touched)) as u64;
        self.ledger.0.fetch_add(untouched, Relaxed);
        self.ledger.0.fetch_sub(std::mem::replace(&mut self.entered, untouched), Relaxed);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.ledger.0.fetch_sub(self.entered, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_count_with_what_they_have_not_touched() {
        static LEDGER: Ledger = Ledger(AtomicU64::new(0));
        let (mut one, mut other) = (Reserved::of(&LEDGER), Reserved::of(&LEDGER));
        assert_eq!([one.of_others(), other.of_others()], [0, 0]);
        one.set(1000);
        other.set(600);
        assert_eq!([one.of_others(), other.of_others()], [600, 1000]);
        one.touched(0.25);
        one.touched(0.1);
        assert_eq!([one.of_others(), other.of_others()], [600, 750], "the largest batch counts");
        one.set(2000);
        assert_eq!(other.of_others(), 2000);
        other.touched(1.5);
        assert_eq!(one.of_others(), 0, "there is no more than all of it");
        drop(one);
        assert_eq!(other.of_others(), 0);
    }
}
