//! A lease on a model, and how its registry learns that the last one has gone.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use tokio::sync::oneshot;

use super::{
    Composition,
    statistics::{Counted, Statistics},
    underway::{Begun, Underway},
};
use crate::{
    engine::{
        AnswerRoom, DecodeRequest, Engine, EngineError, EngineInfo, Health, Infer, InferRequest,
        InferResponse, Pending, Spent, TokenizeRequest, Tokenized, Urgency, observed::Observed,
    },
    tasks::{Door, patiently},
};

/// An engine that is stopped when its model is unloaded or the server stops.
pub trait Stop: Send + Sync + 'static {
    /// Refuses new requests, and resolves when all accepted ones are answered and the memory is free.
    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Cancels all accepted requests.
    fn abandon(&self);
}

impl Stop for Engine {
    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(Engine::stop(self))
    }

    fn abandon(&self) {
        Engine::abandon(self);
    }
}

/// A lease on the model that answers a request. The model lives while the lease is held, so hold it until the answer is
/// made.
#[derive(Clone)]
pub struct Served(Lease);

/// A version, and what applies to all requests made through this lease.
#[derive(Clone)]
struct Lease {
    live: Arc<Live>,
    urgency: Urgency,
    answer_room: AnswerRoom,
    /// Where requests wait for room; `None`: they are refused if there is none.
    door: Option<Door>,
    /// The request that the lease is for, if it has begun.
    begun: Option<Begun>,
}

/// A ready version, with everything that has to live as long as its leases.
struct Live {
    name: String,
    version: String,
    label: Option<String>,
    load: u64,
    composition: Composition,
    underway: Underway,
    engine: Counted,
    // Last: when it is dropped, the handle to the engine was dropped before.
    _here: oneshot::Sender<Infallible>,
}

/// Resolves when the last lease has been dropped.
pub(super) struct AllBack(oneshot::Receiver<Infallible>);

impl AllBack {
    pub(super) async fn wait(self) {
        // Nothing is ever sent: the error is the event.
        drop(self.0.await);
    }
}

impl Served {
    /// The first lease, and a receiver that reports the end of the last.
    pub(super) fn new(
        name: &str,
        version: &str,
        label: Option<String>,
        engine: Arc<dyn Infer>,
        composition: Composition,
        underway: &Underway,
    ) -> (Self, AllBack) {
        static LOADS: AtomicU64 = AtomicU64::new(0);
        let (here, gone) = oneshot::channel();
        let live = Live {
            name: name.to_owned(),
            version: version.to_owned(),
            label,
            load: LOADS.fetch_add(1, Relaxed),
            composition,
            underway: underway.clone(),
            engine: Counted::new(engine),
            _here: here,
        };
        let (urgency, answer_room) = (Urgency::default(), AnswerRoom::default());
        let lease = Lease { live: Arc::new(live), urgency, answer_room, door: None, begun: None };
        (Self(lease), AllBack(gone))
    }

    /// The model's own name, whatever it was asked for by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.live.name
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.0.live.version
    }

    /// The number of its load in this process: what was learnt from one load may not hold for another of the same name.
    #[must_use]
    pub fn load(&self) -> u64 {
        self.0.live.load
    }

    /// The label of its metrics; `None` where it is served alone.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.0.live.label.as_deref()
    }

    /// The same lease with an urgency, which applies to every request made through it.
    #[must_use]
    pub fn urgent(self, urgency: Urgency) -> Self {
        Self(Lease { urgency: urgency.or(self.0.urgency), ..self.0 })
    }

    /// The same lease with the room in which its answers are held.
    #[must_use]
    pub fn held_in(self, answer_room: AnswerRoom) -> Self {
        Self(Lease { answer_room, ..self.0 })
    }

    /// The same lease, whose requests wait at this door where there is no room.
    #[must_use]
    pub(crate) fn patient(self, door: Door) -> Self {
        Self(Lease { door: Some(door), ..self.0 })
    }

    /// What computes its answers.
    #[must_use]
    pub fn composition(&self) -> Composition {
        self.0.live.composition
    }

    /// Whether the answer to a text depends on the other texts of its request, which then cannot be split.
    #[must_use]
    pub fn retrieves(&self) -> bool {
        self.composition() == Composition::Ensemble { retrieves: true }
    }

    /// The engine that answers.
    #[must_use]
    pub fn engine(&self) -> &dyn Infer {
        &self.0
    }

    /// Begins a request that makes several engine requests, to this model or to several. No engine of the server is
    /// stopped until the returned value is dropped.
    ///
    /// # Errors
    /// [`EngineError::Stopping`], if the server is stopping.
    pub fn begin(&self) -> Result<Begun, EngineError> {
        self.0.live.underway.begin()
    }

    /// The same lease for such a request, which lasts as long as the lease and its clones. If the lease already has one
    /// that has begun, this never fails.
    ///
    /// # Errors
    /// [`EngineError::Stopping`], if the server is stopping.
    pub fn begun(self) -> Result<Self, EngineError> {
        if self.0.begun.is_some() {
            return Ok(self);
        }
        let begun = Some(self.begin()?);
        Ok(Self(Lease { begun, ..self.0 }))
    }

    /// What the version has done since it was loaded.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.0.live.engine.statistics()
    }
}

impl Lease {
    /// Makes a request that has no urgency of its own, within the lease's deadline. Dropping the future withdraws it.
    fn in_time<'a, T: Send + 'a>(
        &'a self,
        inputs: usize,
        ask: impl Fn() -> Pending<'a, T> + Send + Sync + 'a,
    ) -> Pending<'a, T> {
        let (engine, deadline) = (&self.live.engine, self.urgency.deadline);
        let asked = async move {
            match &self.door {
                None => ask().await,
                Some(door) => patiently(engine, door, inputs, deadline, ask).await,
            }
        };
        let Some(deadline) = deadline else { return Box::pin(asked) };
        Box::pin(async move {
            let within = deadline.saturating_duration_since(Instant::now());
            let answer = tokio::time::timeout_at(deadline.into(), asked).await;
            answer.unwrap_or(Err(EngineError::Expired { within }))
        })
    }
}

#[deny(clippy::missing_trait_methods, reason = "what is not handed on would be swallowed")]
impl Infer for Lease {
    fn info(&self) -> &EngineInfo {
        self.live.engine.info()
    }

    fn infer(&self, request: InferRequest) -> Pending<'_, InferResponse> {
        let (engine, urgency) = (&self.live.engine, request.urgency.or(self.urgency));
        let (room, retries) =
            (request.room.clone().or(&self.answer_room), request.retries || self.door.is_some());
        let continues = request.continues || self.begun.is_some();
        let request = InferRequest { urgency, room, retries, continues, ..request };
        let Some(door) = &self.door else { return engine.infer(request) };
        Box::pin(async move {
            let ask = || engine.infer(request.clone());
            patiently(engine, door, request.inputs.len(), urgency.deadline, ask).await
        })
    }

    fn tokenize(&self, request: TokenizeRequest) -> Pending<'_, Vec<Tokenized>> {
        let (engine, retries) = (&self.live.engine, request.retries || self.door.is_some());
        let request = TokenizeRequest { retries, ..request };
        self.in_time(request.texts.len(), move || engine.tokenize(request.clone()))
    }

    fn decode(&self, request: DecodeRequest) -> Pending<'_, Vec<String>> {
        let (engine, retries) = (&self.live.engine, request.retries || self.door.is_some());
        let request = DecodeRequest { retries, ..request };
        self.in_time(request.ids.len(), move || engine.decode(request.clone()))
    }

    fn has_room(&self, inputs: usize) -> bool {
        self.live.engine.has_room(inputs)
    }

    fn urgency(&self) -> Urgency {
        self.urgency
    }

    fn batches(&self) -> BTreeMap<usize, Spent> {
        self.live.engine.batches()
    }

    fn health(&self) -> Health {
        self.live.engine.health()
    }

    fn observed(&self) -> Option<Observed> {
        self.live.engine.observed()
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name(), self.version())
    }
}
