//! Who may come in: a slot per input, reserved for a whole request at once, and an honest word to those who may not.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use super::{EngineError, Spent};

/// The least that is said: a prediction that has run out says nothing, and who comes back at once finds the same.
const SOONEST: Duration = Duration::from_millis(10);

/// As many slots as inputs may be in the server.
#[derive(Debug)]
pub(super) struct Admission {
    slots: Arc<Semaphore>,
    total: u32,
    load: Arc<Load>,
}

impl Admission {
    /// `total` slots; `load` is kept up to date by the worker.
    pub(super) fn new(total: u32, load: Arc<Load>) -> Self {
        Self { slots: Arc::new(Semaphore::new(total as usize)), total, load }
    }

    /// Takes `inputs` slots, or none.
    ///
    /// # Errors
    /// [`EngineError::Overloaded`], or [`EngineError::Stopping`] after [`Admission::drain`].
    pub(super) fn reserve(&self, inputs: u32) -> Result<OwnedSemaphorePermit, EngineError> {
        Arc::clone(&self.slots).try_acquire_many_owned(inputs).map_err(|error| match error {
            TryAcquireError::Closed => EngineError::Stopping,
            TryAcquireError::NoPermits => {
                let inside = self.total as usize - self.slots.available_permits();
                EngineError::Overloaded { retry_after: self.load.time_left(inside).max(SOONEST) }
            }
        })
    }

    /// The batches that the worker has computed, by their size.
    pub(super) fn batches(&self) -> BTreeMap<usize, Spent> {
        self.load.batches().clone()
    }

    /// Waits until every admitted input has been answered, and admits none from then on.
    pub(super) async fn drain(&self) {
        let all = self.slots.acquire_many(self.total).await;
        // A second caller finds the semaphore closed: then everything was answered before.
        if all.is_ok() {
            self.slots.close();
        }
    }
}

/// How much work lies before the worker, as predicted by the cost model: written by the worker, read by whoever has
/// to turn a request away. The three numbers may be of different moments; the answer is an estimate anyway.
#[derive(Debug)]
pub(super) struct Load {
    epoch: Instant,
    /// When all that the worker knows of will be done, in ns since the epoch.
    done_at: AtomicU64,
    /// Inputs that the worker knows of.
    known: AtomicUsize,
    /// Recent time per input, in ns.
    per_input: AtomicU64,
    /// Batches that were computed, by their size.
    batches: Mutex<BTreeMap<usize, Spent>>,
}

impl Load {
    pub(super) fn new(epoch: Instant) -> Self {
        Self {
            epoch,
            done_at: AtomicU64::new(0),
            known: AtomicUsize::new(0),
            per_input: AtomicU64::new(0),
            batches: Mutex::default(),
        }
    }

    /// The worker knows of `inputs` and predicts that they take `time` from now on.
    pub(super) fn set(&self, inputs: usize, time: Duration) {
        self.done_at.store(nanos(self.epoch.elapsed().saturating_add(time)), Relaxed);
        self.known.store(inputs, Relaxed);
    }

    /// A batch of `inputs` took `time`.
    pub(super) fn observe(&self, inputs: usize, time: Duration) {
        let (old, new) = (self.per_input.load(Relaxed), nanos(time) / inputs.max(1) as u64);
        self.batches().entry(inputs).or_default().add(time);
        self.per_input.store(if old == 0 { new } else { old - old / 8 + new / 8 }, Relaxed);
    }

    fn batches(&self) -> MutexGuard<'_, BTreeMap<usize, Spent>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Predicted time until `inside` admitted inputs are done. Those that the worker has not seen yet count as much as
    /// recent ones took.
    fn time_left(&self, inside: usize) -> Duration {
        let known = self.done_at.load(Relaxed).saturating_sub(nanos(self.epoch.elapsed()));
        let unknown = inside.saturating_sub(self.known.load(Relaxed)) as u64;
        Duration::from_nanos(known.saturating_add(unknown.saturating_mul(self.per_input.load(Relaxed))))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(total: u32) -> (Admission, Arc<Load>) {
        let load = Arc::new(Load::new(Instant::now()));
        (Admission::new(total, Arc::clone(&load)), load)
    }

    #[test]
    fn takes_all_slots_of_a_request_or_none() {
        let (admission, _) = admission(4);
        let three = admission.reserve(3).unwrap();
        assert!(matches!(admission.reserve(2), Err(EngineError::Overloaded { .. })));
        let one = admission.reserve(1).unwrap();
        drop((three, one));
        assert!(admission.reserve(4).is_ok());
    }

    #[test]
    fn tells_when_to_come_back_from_predicted_work() {
        let (admission, load) = admission(10);
        let _held = admission.reserve(10).unwrap();
        let soonest = admission.reserve(1).map(drop);
        assert_eq!(soonest, Err(EngineError::Overloaded { retry_after: SOONEST }), "nothing is known yet");
        load.set(4, Duration::from_secs(8));
        load.observe(2, Duration::from_secs(6));
        let Err(EngineError::Overloaded { retry_after }) = admission.reserve(1) else { panic!("admitted") };
        // 8 s for the four known inputs, and 3 s for each of the six others
        let short = Duration::from_secs(26) - retry_after;
        assert!(short < Duration::from_secs(1), "{retry_after:?}");
    }
}
