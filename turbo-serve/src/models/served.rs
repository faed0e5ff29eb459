//! A lease on a model, and how its registry learns that the last one has gone.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use tokio::sync::oneshot;

use super::{
    statistics::{Counted, Statistics},
    underway::{Begun, Underway},
};
use crate::engine::{Engine, EngineError, Infer};

/// What is ended when a model is unloaded or the server stops.
pub trait Stop: Send + Sync + 'static {
    /// Refuses new requests, and ends when all accepted ones are answered and their memory is free.
    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Gives up what was accepted.
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

/// A model that a request is for. While somebody holds it the model lives; so hold it until the answer is made.
#[derive(Clone)]
pub struct Served(Arc<Live>);

/// A version that is ready, with whatever has to last as long as somebody may ask it.
struct Live {
    name: String,
    version: String,
    label: Option<String>,
    load: u64,
    underway: Underway,
    engine: Counted,
    // Last: when it goes, the handle to the engine has gone.
    _here: oneshot::Sender<Infallible>,
}

/// Resolves when the last lease has been given back.
pub(super) struct AllBack(oneshot::Receiver<Infallible>);

impl AllBack {
    pub(super) async fn wait(self) {
        // Nothing is ever sent: the error is the event.
        drop(self.0.await);
    }
}

impl Served {
    /// The first lease, and who hears of the end of the last.
    pub(super) fn new(
        name: &str,
        version: &str,
        label: Option<String>,
        engine: Arc<dyn Infer>,
        underway: &Underway,
    ) -> (Self, AllBack) {
        static LOADS: AtomicU64 = AtomicU64::new(0);
        let (here, gone) = oneshot::channel();
        let live = Live {
            name: name.to_owned(),
            version: version.to_owned(),
            label,
            load: LOADS.fetch_add(1, Relaxed),
            underway: underway.clone(),
            engine: Counted::new(engine),
            _here: here,
        };
        (Self(Arc::new(live)), AllBack(gone))
    }

    /// The model's own name, whatever it was asked for by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.0.version
    }

    /// Which load of the process it is: what was learnt of one may not hold for another, be it of the same name.
    #[must_use]
    pub fn load(&self) -> u64 {
        self.0.load
    }

    /// What its metrics are labelled with; `None` where it is served alone.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.0.label.as_deref()
    }

    /// Who answers.
    #[must_use]
    pub fn engine(&self) -> &dyn Infer {
        &self.0.engine
    }

    /// Begins a request that asks it more than once, or several models: until what this returns is dropped, no engine of
    /// the server is stopped.
    ///
    /// # Errors
    /// [`EngineError::Stopping`], when the server is.
    pub fn begin(&self) -> Result<Begun, EngineError> {
        self.0.underway.begin()
    }

    /// What it has done since it is there.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.0.engine.statistics()
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name(), self.version())
    }
}
