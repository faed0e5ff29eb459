//! Admission control: a request reserves one slot per input, all at once or none.
//!
//! A request that finds too few free slots is rejected, with a time to retry after.
//!
//! Clients that retry at once would take each slot as it is released, and a request with many inputs would never find
//! enough free slots. So once a request has waited 20 ms for several slots, new requests are rejected until it is
//! admitted or stops polling. No queue holds slots for its first waiter: that may be a stream whose client does not
//! read, and the slots would stay unused. Waiting for one slot, as a stream's next message may, causes no rejections:
//! it finds a slot anyway, and streams that always wait would block all new requests.
//!
//! Only new requests stand back like this. A message of a gRPC stream and a later part of a request count as requests
//! that have waited already, even at their first try ([`Comes::Again`]): they are rejected only for want of free slots.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use super::forecast::Forecast;
use crate::engine::EngineError;

/// A request that has waited this long for several slots goes before new requests.
const LONG: Duration = Duration::from_millis(20);
/// A waiting request that has not polled for this long counts as gone. Waiting requests poll more often than that.
const GONE: Duration = Duration::from_millis(100);

/// The slots of an engine: one for each input that it may hold at a time.
pub(in crate::engine) struct Admission {
    slots: Arc<Semaphore>,
    total: u32,
    looks: Mutex<Option<Looks>>,
    forecast: Arc<Forecast>,
}

/// Whether a reservation is for a new request or for one that waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Comes {
    /// A new request: rejected where there is no room, or where another has waited for several slots for [`LONG`].
    Anew,
    /// A request whose caller waits for room and retries: rejected only where there is no room, even at its first try.
    Again,
}

impl From<bool> for Comes {
    /// From [`InferRequest::retries`](crate::engine::InferRequest::retries).
    fn from(retries: bool) -> Self {
        if retries { Self::Again } else { Self::Anew }
    }
}

/// Polls that asked for more slots than were free, since a request for as many was last admitted.
#[derive(Clone, Copy)]
struct Looks {
    /// Most slots that one of them asked for.
    wanted: u32,
    first: Instant,
    last: Instant,
}

impl Looks {
    /// Whether new requests are rejected at `now`.
    fn go_first(self, now: Instant) -> bool {
        self.go_on(now) && now.saturating_duration_since(self.first) >= LONG
    }

    /// Whether the request still polls at `now`.
    fn go_on(self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) < GONE
    }
}

impl Admission {
    /// `total` slots; `forecast` predicts when a rejected request may retry.
    pub(in crate::engine) fn new(total: u32, forecast: Arc<Forecast>) -> Self {
        let slots = Arc::new(Semaphore::new(total as usize));
        Self { slots, total, looks: Mutex::default(), forecast }
    }

    /// Reserves `inputs` slots at `now`, or none.
    ///
    /// # Errors
    /// [`EngineError::Overloaded`], or [`EngineError::Stopping`] after [`Admission::drain`].
    pub(in crate::engine) fn reserve(
        &self,
        inputs: u32,
        comes: Comes,
        now: Instant,
    ) -> Result<OwnedSemaphorePermit, EngineError> {
        let overloaded = || EngineError::Overloaded { retry_after: self.forecast.retry_after() };
        if comes == Comes::Anew && self.looks().is_some_and(|looks| looks.go_first(now)) {
            return Err(overloaded());
        }
        let slots = Arc::clone(&self.slots).try_acquire_many_owned(inputs).map_err(|error| match error {
            TryAcquireError::Closed => EngineError::Stopping,
            TryAcquireError::NoPermits => overloaded(),
        })?;
        if comes == Comes::Again {
            self.looks().take_if(|looks| looks.wanted <= inputs);
        }
        Ok(slots)
    }

    /// Whether `inputs` slots are free at `now`. The caller polls until they are; vain polls for several are recorded.
    pub(in crate::engine) fn has_room(&self, inputs: usize, now: Instant) -> bool {
        if self.slots.available_permits() >= inputs {
            return true;
        }
        if inputs > 1 {
            let inputs = u32::try_from(inputs).unwrap_or(u32::MAX);
            let mut looks = self.looks();
            *looks = Some(match looks.filter(|looks| looks.go_on(now)) {
                Some(before) => Looks { wanted: before.wanted.max(inputs), last: now, ..before },
                None => Looks { wanted: inputs, first: now, last: now },
            });
        }
        false
    }

    /// Waits until every admitted input has been answered, and admits none from then on.
    pub(in crate::engine) async fn drain(&self) {
        let all = self.slots.acquire_many(self.total).await;
        // A second caller finds the semaphore closed: then everything was answered before.
        if all.is_ok() {
            self.slots.close();
        }
    }

    fn looks(&self) -> MutexGuard<'_, Option<Looks>> {
        // Nothing panics under the lock, so a poisoned one still guards a whole value.
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use turbo_sched::{BatchTotal, BatcherConfig, CostModel, Limits, PackedCost};

    use super::super::forecast::Terms;
    use super::*;
    use crate::engine::{DeviceTurns, Priority};

    /// Batches of one take a second each.
    fn admission(total: u32) -> Admission {
        let cost = PackedCost::fit([([1].into_iter().collect(), BatchTotal(1.0))]).unwrap();
        let limits = Limits::batch_size(std::num::NonZeroUsize::MIN);
        let config = BatcherConfig::with_limits(limits);
        let costs = CostModel::Packed(Box::new(cost));
        let forecast = Forecast::new(Instant::now(), &config, costs, DeviceTurns::default().join());
        Admission::new(total, Arc::new(forecast))
    }

    /// Slots for a new request.
    fn reserve(admission: &Admission, inputs: u32) -> Result<OwnedSemaphorePermit, EngineError> {
        admission.reserve(inputs, Comes::Anew, Instant::now())
    }

    #[test]
    fn takes_all_slots_of_a_request_or_none() {
        let admission = admission(4);
        let three = reserve(&admission, 3).unwrap();
        assert!(matches!(reserve(&admission, 2), Err(EngineError::Overloaded { .. })));
        let one = reserve(&admission, 1).unwrap();
        drop((three, one));
        assert!(reserve(&admission, 4).is_ok());
    }

    #[test]
    fn newcomers_stand_back_for_who_has_looked_in_vain_for_long() {
        let (admission, start) = (admission(4), Instant::now());
        let come = |inputs, comes, at: Duration| admission.reserve(inputs, comes, start + at);
        let is_refused = |at| matches!(come(1, Comes::Anew, at), Err(EngineError::Overloaded { .. }));
        let has_room = |inputs, at: Duration| admission.has_room(inputs, start + at);
        let moment = Duration::from_millis(1);

        let taken = come(2, Comes::Anew, Duration::ZERO).unwrap();
        assert!(!has_room(4, Duration::ZERO));
        assert!(!is_refused(LONG - moment), "he has looked for a short time");
        assert!(is_refused(LONG), "he needs more than two");
        assert!(!has_room(4, LONG));
        drop(come(2, Comes::Again, LONG).expect("who has waited is let in"));
        assert!(is_refused(LONG), "that one needed less");
        drop(taken);
        drop(come(4, Comes::Again, LONG).unwrap());
        assert!(!is_refused(LONG), "nobody waits any more");

        let _taken = come(2, Comes::Anew, LONG).unwrap();
        assert!(!has_room(3, Duration::ZERO));
        assert!(is_refused(GONE - moment));
        assert!(!is_refused(GONE), "he has gone");
        assert!(!has_room(3, GONE));
        assert!(!is_refused(GONE + LONG - moment), "another one looks");
    }

    #[test]
    fn nobody_stands_back_for_who_finds_room_or_needs_one_slot() {
        let (admission, start) = (admission(4), Instant::now());
        assert!(admission.has_room(4, start));
        let newcomer = || admission.reserve(1, Comes::Anew, start + LONG);
        let _taken = [newcomer(), newcomer(), newcomer()].map(Result::unwrap);
        let last = newcomer().unwrap();
        assert!(!admission.has_room(1, start));
        drop(last);
        assert!(newcomer().is_ok());
    }

    #[test]
    fn tells_when_to_come_back_from_predicted_work() {
        let admission = admission(3);
        let _held = reserve(&admission, 3).unwrap();
        let retry_after = || match reserve(&admission, 1) {
            Err(EngineError::Overloaded { retry_after }) => retry_after,
            other => panic!("{other:?}"),
        };
        assert_eq!(retry_after(), Duration::from_millis(10), "nothing is known yet");
        admission.forecast.busy_for(Duration::from_secs(8));
        let terms = Terms::new(Instant::now(), None, None, Priority::Normal);
        let inside = admission.forecast.enter(terms, 3, false).unwrap();
        admission.forecast.settle(&inside.place, &[(0, 1), (2, 1)]).unwrap();
        // 8 s for the running batch, and one for each of the two inputs that wait
        let short = Duration::from_secs(10) - retry_after();
        assert!(short < Duration::from_secs(1), "{short:?}");
    }
}
