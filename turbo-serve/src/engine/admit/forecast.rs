//! Predicts when requests will be answered: a request that would be answered too late is rejected at once, and not when
//! its deadline passes.
//!
//! turbo-sched's [`Outlook`] makes the predictions; this module adds the clock and the lock. The threads that admit
//! requests share it: the worker may be busy for as long as a batch takes, and a rejection must not wait for that. The
//! outlook holds one entry per waiting input, with a guessed length until the input is tokenized and its own length
//! from then on. An entry is removed when the input's batch begins, when the input is answered otherwise, or when its
//! client has gone.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use turbo_sched::{BatcherConfig, Candidate, CostModel, Outlook, Prediction, Request, RequestId};

use crate::engine::{EngineError, Priority, Seat, Spent};

/// The least time to retry after: a prediction that has run out is 0, and a retry at once would find the same load.
const SOONEST: Duration = Duration::from_millis(10);
/// The guessed tokens of an input before any is known.
const FIRST_GUESS: f64 = 32.0;
/// Weight of a new input in the moving average of lengths, which is the next guess.
const GAIN: f64 = 1.0 / 64.0;

pub(in crate::engine) struct Forecast {
    /// The times of the outlook and of the batcher are counted from this.
    epoch: Instant,
    /// The seat on the device, which other engines may share.
    seat: Seat,
    state: Mutex<State>,
    /// Batches that were computed, by their size.
    batches: Mutex<BTreeMap<usize, Spent>>,
}

struct State {
    outlook: Outlook,
    /// When the batches that the worker has submitted are predicted to be done, since the epoch.
    busy_until: Duration,
    next_id: u64,
    /// Moving average of the tokens of an input.
    usual_len: f64,
}

/// Deadline and priority of a request.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Terms {
    pub started: Instant,
    /// The time that its answer may take.
    pub within: Option<Duration>,
    /// Whether the client named `within`; if not, the server promises it.
    pub is_asked: bool,
    pub priority: Priority,
}

impl Terms {
    /// The terms of a request that came at `started`. Its answer is wanted by `deadline`, or within `slo` where it
    /// names none.
    pub(in crate::engine) fn new(
        started: Instant,
        deadline: Option<Instant>,
        slo: Option<Duration>,
        priority: Priority,
    ) -> Self {
        let asked = deadline.map(|deadline| deadline.saturating_duration_since(started));
        Self { started, within: asked.or(slo), is_asked: asked.is_some(), priority }
    }

    /// When the time for its answer is over.
    pub(in crate::engine) fn deadline(&self) -> Option<Instant> {
        self.started.checked_add(self.within?)
    }

    /// The error of a request whose time is over.
    pub(in crate::engine) fn expired(&self) -> EngineError {
        EngineError::Expired { within: self.within.unwrap_or_default() }
    }
}

/// The place of a request among those admitted.
#[derive(Debug)]
pub(in crate::engine) struct Place {
    terms: Terms,
    /// Id of its first input; those of the others follow.
    first_id: u64,
    inputs: u64,
    /// What was predicted once its lengths were known.
    settled: OnceLock<Settled>,
    /// Whether the outlook has its inputs with guessed lengths. This and the next change under the forecast's lock.
    is_guessed: AtomicBool,
    /// Whether its client was answered or has gone.
    is_gone: AtomicBool,
    /// When its answer, or an error, was sent.
    ended: OnceLock<Instant>,
}

#[derive(Debug)]
enum Settled {
    /// It takes longer than the server promises, even alone: so the promise does not apply, and its wait does not
    /// correct the outlook.
    BeyondPromise,
    Predicted {
        prediction: Prediction,
        /// When the prediction was made: it does not cover the time before.
        at: Instant,
    },
}

impl Place {
    pub(in crate::engine) fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Records that its answer is sent now, unless one was before. The caller may be polled much later, and that delay
    /// is not the engine's.
    pub(in crate::engine) fn ends(&self) {
        self.ended.get_or_init(Instant::now);
    }

    /// When its answer was sent; now if none was.
    pub(in crate::engine) fn ended(&self) -> Instant {
        self.ended.get().copied().unwrap_or_else(Instant::now)
    }

    /// When it expires unless its batch has begun.
    pub(in crate::engine) fn expires(&self) -> Option<Instant> {
        match self.settled.get() {
            Some(Settled::BeyondPromise) => None,
            _ => self.terms.deadline(),
        }
    }

    /// Whether it is scheduled before a request that came earlier. Of equal priority, only a client's own deadline can
    /// do that: the server's promise ends sooner for the earlier request.
    pub(in crate::engine) fn is_more_urgent_than(&self, earlier: &Self) -> bool {
        let sooner = || earlier.expires().is_none_or(|theirs| self.expires().is_some_and(|own| own < theirs));
        match self.terms.priority.cmp(&earlier.terms.priority) {
            Ordering::Greater => true,
            Ordering::Equal => self.terms.is_asked && sooner(),
            Ordering::Less => false,
        }
    }

    /// The id of input number `input`.
    pub(in crate::engine) fn id(&self, input: usize) -> RequestId {
        RequestId(self.first_id + input as u64)
    }

    /// Input number `input`, as outlook and batcher see it. Where the server's promise does not apply it has no
    /// deadline, and does not go before others.
    pub(in crate::engine) fn request(&self, input: usize, seq_len: u32, epoch: Instant) -> Request {
        let since = |at: Instant| at.saturating_duration_since(epoch);
        Request {
            deadline: self.expires().map(since),
            priority: self.terms.priority.into(),
            ..Request::new(self.id(input), seq_len, since(self.terms.started))
        }
    }
}

/// An admitted request, until its client is answered or has gone.
pub(in crate::engine) struct Inside {
    pub place: Arc<Place>,
    forecast: Arc<Forecast>,
    is_answered: bool,
}

impl Inside {
    /// Records that the request was answered, and corrects the outlook by the time that this took.
    pub(in crate::engine) fn answered(mut self) {
        self.is_answered = true;
        self.forecast.learn_of(&self.place);
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let Self { place, forecast, is_answered } = self;
        if !*is_answered && place.expires().is_some_and(|at| at <= place.ended()) {
            forecast.learn_of(place);
        }
        let mut state = forecast.lock();
        place.is_gone.store(true, Relaxed);
        forecast.leave(&mut state, place);
    }
}

impl Forecast {
    /// A forecast for batches that take their turns on `seat`.
    pub(in crate::engine) fn new(
        epoch: Instant,
        config: &BatcherConfig,
        costs: CostModel,
        seat: Seat,
    ) -> Self {
        let (outlook, busy_until) = (Outlook::new(config, costs), Duration::ZERO);
        let state = State { outlook, busy_until, next_id: 0, usual_len: FIRST_GUESS };
        Self { epoch, seat, state: Mutex::new(state), batches: Mutex::default() }
    }

    /// Admits a request of `inputs` inputs, as far as that can be decided before they are tokenized. Where its answers
    /// `may_be_known` to a cache, its time is not predicted yet.
    ///
    /// # Errors
    /// [`EngineError::Expired`], or [`EngineError::TooLate`] where what is served before it takes too long already.
    pub(in crate::engine) fn enter(
        self: &Arc<Self>,
        terms: Terms,
        inputs: usize,
        may_be_known: bool,
    ) -> Result<Inside, EngineError> {
        let now = Instant::now();
        if terms.deadline().is_some_and(|at| at <= now) {
            return Err(terms.expired());
        }
        let mut state = self.lock();
        let inputs = inputs as u64;
        let place = Place {
            terms,
            first_id: state.next_id,
            inputs,
            settled: OnceLock::new(),
            is_guessed: true.into(),
            is_gone: false.into(),
            ended: OnceLock::new(),
        };
        state.next_id += inputs;
        let guess = state.usual_len.ceil() as u32;
        let request = |input: u64| place.request(input as usize, guess, self.epoch);
        if terms.within.is_some() && !may_be_known {
            let outlook = self.look_ahead(&mut state, now);
            let predicted = outlook.time_until_answered(&request(0), [], self.since_epoch(now));
            in_time(&terms, predicted, now)?;
        }
        (0..inputs).for_each(|input| state.outlook.enter(&request(input)));
        drop(state);
        Ok(Inside { place: Arc::new(place), forecast: Arc::clone(self), is_answered: false })
    }

    /// Settles a request whose inputs are tokenized: those in `missing`, by number and tokens, have to be computed, and
    /// the others need not. Called again for inputs that have to be computed after all, because a promise was broken.
    ///
    /// # Errors
    /// [`EngineError::TooLate`]; [`EngineError::Expired`] where its client allows less time than it takes even alone, so
    /// that a retry is of no use.
    ///
    /// # Panics
    /// If `missing` is empty and the request has a deadline.
    pub(in crate::engine) fn settle(
        &self,
        place: &Place,
        missing: &[(usize, u32)],
    ) -> Result<(), EngineError> {
        let now = Instant::now();
        let mut state = self.lock();
        if place.is_gone.load(Relaxed) {
            return Ok(());
        }
        self.none_is_guessed(&mut state, place);
        for &(_, len) in missing {
            state.usual_len += GAIN * (f64::from(len) - state.usual_len);
        }
        let request = |&(input, len): &(usize, u32)| place.request(input, len, self.epoch);
        if let Some(within) = place.terms.within
            && !matches!(place.settled.get(), Some(Settled::BeyondPromise))
        {
            let lens = missing.iter().map(|&(_, len)| len);
            let is_first = place.settled.get().is_none();
            let takes_longer_alone = state.outlook.time_alone(lens.clone()) > within;
            if takes_longer_alone && place.terms.is_asked {
                return Err(place.terms.expired());
            }
            let settled = if takes_longer_alone && is_first {
                Settled::BeyondPromise
            } else {
                let first = request(&missing[0]);
                let outlook = self.look_ahead(&mut state, now);
                let prediction = outlook.time_until_answered(&first, lens, self.since_epoch(now));
                in_time(&place.terms, prediction, now)?;
                Settled::Predicted { prediction, at: now }
            };
            // Its place in the outlook depends on this, so the first result stands.
            drop(place.settled.set(settled));
        }
        missing.iter().for_each(|input| state.outlook.enter(&request(input)));
        Ok(())
    }

    /// Records that no input of a request has to be computed, as far as is known; those with the lengths `awaited` wait
    /// for the answers of other requests. If these would take longer than the server promises, even alone, nothing is
    /// promised to the request.
    pub(in crate::engine) fn none_of(&self, place: &Place, awaited: &[u32]) {
        let mut state = self.lock();
        self.none_is_guessed(&mut state, place);
        if let Some(within) = place.terms.within
            && !place.terms.is_asked
            && state.outlook.time_alone(awaited.iter().copied()) > within
        {
            drop(place.settled.set(Settled::BeyondPromise));
        }
    }

    /// Enters an input again although its client has gone, since other requests wait for its answer.
    pub(in crate::engine) fn stays(&self, place: &Place, input: usize, seq_len: u32) {
        self.lock().outlook.enter(&place.request(input, seq_len, self.epoch));
    }

    /// Removes an input that will not be computed.
    pub(in crate::engine) fn goes(&self, place: &Place, input: usize) {
        self.lock().outlook.leave(&place.request(input, 0, self.epoch));
    }

    /// Removes the inputs of a request, if they still have guessed lengths.
    fn none_is_guessed(&self, state: &mut State, place: &Place) {
        if place.is_guessed.swap(false, Relaxed) {
            self.leave(state, place);
        }
    }

    /// Removes all inputs of a request.
    fn leave(&self, state: &mut State, place: &Place) {
        for input in 0..place.inputs {
            state.outlook.leave(&place.request(input as usize, 0, self.epoch));
        }
    }

    /// Removes these inputs: their batch begins.
    pub(in crate::engine) fn began<'a>(&self, inputs: impl Iterator<Item = (&'a Place, usize)>) {
        let mut state = self.lock();
        for (place, input) in inputs {
            state.outlook.leave(&place.request(input, 0, self.epoch));
        }
    }

    /// Reports that the submitted batches are predicted to be done after this time.
    pub(in crate::engine) fn busy_for(&self, time: Duration) {
        let until = self.epoch.elapsed().saturating_add(time);
        self.lock().busy_until = until;
    }

    /// The outlook at `now`, which is told how long the device is busy, and with which other engines it is shared.
    fn look_ahead<'a>(&self, state: &'a mut State, now: Instant) -> &'a mut Outlook {
        let (left, sharers) = self.seat.outlook();
        state.outlook.busy_until(state.busy_until.max(self.since_epoch(now + left)));
        state.outlook.shared_with(sharers);
        &mut state.outlook
    }

    /// Records that a batch was computed, and took `time`.
    pub(in crate::engine) fn ran(&self, batch: &Candidate, time: Duration) {
        self.counted().entry(batch.batch_size).or_default().add(time);
        // The queue observes the same batch, and logs the same error.
        drop(self.lock().outlook.observe(batch, time));
    }

    /// The batches that were computed, by their size.
    pub(in crate::engine) fn batches(&self) -> BTreeMap<usize, Spent> {
        self.counted().clone()
    }

    fn counted(&self) -> MutexGuard<'_, BTreeMap<usize, Spent>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time to retry after: until all admitted requests are predicted to be done.
    pub(in crate::engine) fn retry_after(&self) -> Duration {
        self.until_empty().max(SOONEST)
    }

    /// Predicted time until all admitted requests are done.
    pub(in crate::engine) fn until_empty(&self) -> Duration {
        let now = Instant::now();
        self.look_ahead(&mut self.lock(), now).time_left(self.since_epoch(now))
    }

    /// Corrects the outlook by the time of a request that was answered, or whose deadline passed.
    fn learn_of(&self, place: &Place) {
        if let (Some(&Settled::Predicted { prediction, at }), Some(within)) =
            (place.settled.get(), place.terms.within)
        {
            let (taken, now) = (place.ended().saturating_duration_since(at), self.epoch.elapsed());
            self.lock().outlook.answered(prediction, within, taken, now);
        }
    }

    fn since_epoch(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.epoch)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics half-way under the lock, so a poisoned one still guards a whole value.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rejects a request that is predicted to be answered too late.
fn in_time(terms: &Terms, predicted: Prediction, now: Instant) -> Result<(), EngineError> {
    let Some(within) = terms.within else { return Ok(()) };
    let predicted = now.saturating_duration_since(terms.started).saturating_add(predicted.expected);
    match predicted.checked_sub(within) {
        Some(over) if over > Duration::ZERO => {
            Err(EngineError::TooLate { within, predicted, retry_after: over.max(SOONEST) })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use turbo_sched::{BatchTotal, Limits, PackedCost};

    use super::*;
    use crate::engine::DeviceTurns;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Batches have one input and take `batch`, on a device of their own.
    fn forecast(batch: Duration) -> Arc<Forecast> {
        forecast_on(DeviceTurns::default().join(), batch)
    }

    fn forecast_on(seat: Seat, batch: Duration) -> Arc<Forecast> {
        let cost = BatchTotal::from_duration(batch);
        let cost = PackedCost::fit([([1].into_iter().collect(), cost)]).unwrap();
        let config = BatcherConfig::with_limits(Limits::batch_size(NonZeroUsize::MIN));
        let costs = CostModel::Packed(Box::new(cost));
        Arc::new(Forecast::new(Instant::now(), &config, costs, seat))
    }

    /// A request of `inputs` inputs that came at `started`, while the server promises `slo`: admitted or rejected.
    fn come(
        forecast: &Arc<Forecast>,
        started: Instant,
        slo: Duration,
        inputs: usize,
    ) -> Result<Inside, EngineError> {
        let terms = Terms::new(started, None, Some(slo), Priority::Normal);
        let inside = forecast.enter(terms, inputs, true)?;
        let lens: Vec<_> = (0..inputs).map(|input| (input, 1)).collect();
        forecast.settle(&inside.place, &lens)?;
        Ok(inside)
    }

    /// How many times longer than by cost alone a request is expected to take behind a running batch.
    fn fear(forecast: &Forecast) -> f64 {
        forecast.busy_for(Duration::from_secs(100));
        let now = forecast.epoch.elapsed();
        let request = Request::new(RequestId(u64::MAX), 1, now);
        let Prediction { by_cost, expected } =
            forecast.look_ahead(&mut forecast.lock(), Instant::now()).time_until_answered(&request, [1], now);
        expected.as_secs_f64() / by_cost.as_secs_f64()
    }

    #[test]
    fn who_is_beyond_the_promise_goes_behind_those_who_are_not_and_teaches_nothing() {
        let forecast = forecast(millis(200));
        let first = fear(&forecast);
        forecast.busy_for(Duration::ZERO);
        let (now, slo) = (Instant::now(), millis(500));
        let beyond = come(&forecast, now, slo, 4).expect("nothing is promised to it");
        assert_eq!(beyond.place.expires(), None);
        let within = come(&forecast, Instant::now(), slo, 1).expect("it goes first");
        assert!(within.place.expires().is_some());
        (0..1000).for_each(|_| forecast.learn_of(&beyond.place));
        let fear = fear(&forecast);
        assert!((fear - first).abs() < 1e-9, "{fear} after {first}");
        drop((beyond, within));
        forecast.busy_for(Duration::ZERO);
        assert_eq!(forecast.retry_after(), SOONEST, "nobody is left");
    }

    #[test]
    fn before_what_waits_go_those_who_ask_for_the_device() {
        let device = DeviceTurns::default();
        let [own, has_it, asks] = [(); 3].map(|()| device.join());
        let (forecast, slo) = (forecast_on(own.clone(), millis(1000)), millis(2500));
        let _waits = come(&forecast, Instant::now(), slo, 1).unwrap();
        let comes = || come(&forecast, Instant::now(), slo, 1).map(drop);
        assert!(comes().is_ok(), "two seconds");
        std::thread::scope(|scope| {
            let turn = has_it.take();
            scope.spawn(|| drop(asks.take()));
            while own.outlook().1.asking == 0 {
                std::thread::yield_now();
            }
            let (retry_after, refused) = (forecast.retry_after(), comes());
            drop(turn);
            assert!(retry_after > millis(1900), "{retry_after:?} for one second of each of two");
            assert!(matches!(refused, Err(EngineError::TooLate { .. })), "{refused:?}");
        });
        assert!(forecast.retry_after() < millis(1100), "the others have what they wanted");
    }

    #[test]
    fn who_is_late_tells_it_once() {
        let fear = [true, false].map(|is_answered| {
            let forecast = forecast(millis(100));
            let inside = come(&forecast, Instant::now(), millis(300), 1).unwrap();
            std::thread::sleep(millis(400)); // more than three times what was predicted, which is as much as counts
            if is_answered {
                inside.answered()
            } else {
                drop(inside)
            }
            fear(&forecast)
        });
        assert!(fear[0] > 1.2 && (fear[0] - fear[1]).abs() < 1e-6, "{fear:?}");
    }

    #[test]
    fn what_was_before_a_prediction_is_no_part_of_it() {
        let forecast = forecast(millis(10));
        forecast.busy_for(Duration::from_secs(6));
        let started = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let inside = come(&forecast, started, Duration::from_secs(20), 1).unwrap();
        (0..3000).for_each(|_| forecast.learn_of(&inside.place));
        let fear = fear(&forecast);
        assert!(fear < 1.0, "answered at once after 10 s, and 6 s were predicted: {fear}");
    }
}
