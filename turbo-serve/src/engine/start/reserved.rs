//! Memory that models of this process have reserved and not touched yet: the system still counts it as free.
//!
//! In: what each model reserves, and how much of that its batches have used. Out: the bytes that another model must not
//! count on. A device with its own memory allocates reserved memory at once. But there, too, no other model may read
//! the free memory between this model's reading and its reservation ([`planning`]).

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// The process-wide lock to hold from reading the free memory until the planned part is reserved: models that start at
/// the same time must not count on the same bytes.
pub(in crate::engine) fn planning() -> MutexGuard<'static, ()> {
    static PLANNING: Mutex<()> = Mutex::new(());
    // It guards no value that a panic could leave half-made.
    PLANNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that all models of a process have reserved and not touched.
#[derive(Debug)]
struct Ledger(AtomicU64);

static OF_THE_PROCESS: Ledger = Ledger(AtomicU64::new(0));

/// What one model has reserved; released when dropped.
#[derive(Debug)]
pub(in crate::engine) struct Reserved {
    ledger: &'static Ledger,
    bytes: u64,
    /// The largest share of these bytes that a batch has used.
    touched: f64,
    /// Bytes entered in the ledger: those not touched.
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

    /// Sets the model's reserved bytes, none of them touched.
    pub(in crate::engine) fn set(&mut self, bytes: u64) {
        (self.bytes, self.touched) = (bytes, 0.0);
        self.enter();
    }

    /// Records that a batch uses about this share of the bytes: activations grow with tokens.
    pub(in crate::engine) fn touched(&mut self, share: f64) {
        if share > self.touched {
            self.touched = share.min(1.0);
            self.enter();
        }
    }

    /// Bytes that other models have reserved and not touched.
    pub(in crate::engine) fn of_others(&self) -> u64 {
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
