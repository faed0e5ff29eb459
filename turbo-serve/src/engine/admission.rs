//! Who may come in: a slot per input, reserved for a whole request at once, and an honest word to those who may not.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use super::{EngineError, forecast::Forecast};

/// As many slots as inputs may be in the server.
pub(super) struct Admission {
    slots: Arc<Semaphore>,
    total: u32,
    forecast: Arc<Forecast>,
}

impl Admission {
    /// `total` slots; `forecast` says when some of them will be free.
    pub(super) fn new(total: u32, forecast: Arc<Forecast>) -> Self {
        Self { slots: Arc::new(Semaphore::new(total as usize)), total, forecast }
    }

    /// Takes `inputs` slots, or none.
    ///
    /// # Errors
    /// [`EngineError::Overloaded`], or [`EngineError::Stopping`] after [`Admission::drain`].
    pub(super) fn reserve(&self, inputs: u32) -> Result<OwnedSemaphorePermit, EngineError> {
        Arc::clone(&self.slots).try_acquire_many_owned(inputs).map_err(|error| match error {
            TryAcquireError::Closed => EngineError::Stopping,
            TryAcquireError::NoPermits => {
                EngineError::Overloaded { retry_after: self.forecast.retry_after() }
            }
        })
    }

    /// How many slots are free.
    pub(super) fn free(&self) -> usize {
        self.slots.available_permits()
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use turbo_sched::{BatchTotal, BatcherConfig, CostModel, Limits, PackedCost};

    use super::*;
    use crate::engine::{DeviceTurns, Priority, forecast::Terms};

    /// Batches of one take a second each.
    fn admission(total: u32) -> Admission {
        let cost = PackedCost::fit([([1].into_iter().collect(), BatchTotal(1.0))]).unwrap();
        let limits = Limits::batch_size(std::num::NonZeroUsize::MIN);
        let config = BatcherConfig::with_limits(limits);
        let costs = CostModel::Packed(Box::new(cost));
        let forecast = Forecast::new(Instant::now(), &config, costs, DeviceTurns::default());
        Admission::new(total, Arc::new(forecast))
    }

    #[test]
    fn takes_all_slots_of_a_request_or_none() {
        let admission = admission(4);
        let three = admission.reserve(3).unwrap();
        assert!(matches!(admission.reserve(2), Err(EngineError::Overloaded { .. })));
        let one = admission.reserve(1).unwrap();
        drop((three, one));
        assert!(admission.reserve(4).is_ok());
    }

    #[test]
    fn tells_when_to_come_back_from_predicted_work() {
        let admission = admission(3);
        let _held = admission.reserve(3).unwrap();
        let retry_after = || match admission.reserve(1) {
            Err(EngineError::Overloaded { retry_after }) => retry_after,
            other => panic!("{other:?}"),
        };
        assert_eq!(retry_after(), Duration::from_millis(10), "nothing is known yet");
        admission.forecast.busy_for(Duration::from_secs(8));
        let terms = Terms::new(Instant::now(), None, None, Priority::Normal);
        let inside = admission.forecast.enter(terms, 3, false).unwrap();
        admission.forecast.settle(&inside.place, &[(0, 1), (2, 1)]).unwrap();
        // 8 s for what runs, and one for each of the two that wait
        let short = Duration::from_secs(10) - retry_after();
        assert!(short < Duration::from_secs(1), "{short:?}");
    }
}
