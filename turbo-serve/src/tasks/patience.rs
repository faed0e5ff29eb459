//! Waiting for room, where other requests are rejected and told to retry.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{Mutex, MutexGuard};

use crate::engine::{
    DecodeRequest, EngineError, Infer, InferRequest, InferResponse, Pending, TokenizeRequest, Tokenized,
};

/// The least and the most time between two checks for room. The engine's own prediction is when everything that it has
/// accepted will be done, and there is room before that.
const AGAIN: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// Where requests that belong together wait for room, one behind the other: only the first of them checks for it.
#[derive(Clone, Default)]
pub(crate) struct Door(Arc<Mutex<()>>);

impl Door {
    /// Waits until no earlier request waits at this door.
    pub(crate) async fn nobody(&self) {
        drop(self.first().await);
    }

    async fn first(&self) -> MutexGuard<'_, ()> {
        self.0.lock().await
    }
}

/// Calls `ask` once an engine has room for `inputs` inputs, and again where the room was gone by then
/// (`InferRequest::retries`). Until then nothing is done for the request but to check for room. Once a request has
/// waited for several slots for a while, the engine refuses new requests.
///
/// # Errors
/// Those of the engine; [`EngineError::Expired`] at `deadline`. If the answer is predicted to miss `deadline`, that
/// error is returned at once: waiting does not make it better.
pub(crate) async fn patiently<'a, T>(
    engine: &dyn Infer,
    door: &Door,
    inputs: usize,
    deadline: Option<Instant>,
    ask: impl Fn() -> Pending<'a, T>,
) -> Result<T, EngineError> {
    let patience = Patience { started: Instant::now(), deadline };
    // A request of more inputs than are possible is refused, however much room there is.
    let inputs = inputs.min(engine.info().max_client_batch_size);
    loop {
        let first = door.first().await;
        while !engine.has_room(inputs) {
            patience.wait(AGAIN.0).await?;
        }
        drop(first);
        let answer = ask().await;
        let Some(retry_after) = answer.as_ref().err().and_then(|error| error.again(deadline)) else {
            return answer;
        };
        let _first = door.first().await;
        patience.wait(retry_after.clamp(AGAIN.0, AGAIN.1)).await?;
    }
}

/// An engine that a task has asked before. The task's further requests wait for room, for if they were refused the work
/// done so far would be in vain.
pub(super) struct AskedBefore<'a> {
    engine: &'a dyn Infer,
    door: Door,
    deadline: Option<Instant>,
}

impl<'a> AskedBefore<'a> {
    pub(super) fn new(engine: &'a dyn Infer) -> Self {
        Self { engine, door: Door::default(), deadline: engine.urgency().deadline }
    }

    pub(super) async fn infer(&self, request: InferRequest) -> Result<InferResponse, EngineError> {
        let request = InferRequest { retries: true, ..request };
        self.ask(request.inputs.len(), || self.engine.infer(request.clone())).await
    }

    pub(super) async fn tokenize(&self, request: TokenizeRequest) -> Result<Vec<Tokenized>, EngineError> {
        let request = TokenizeRequest { retries: true, ..request };
        self.ask(request.texts.len(), || self.engine.tokenize(request.clone())).await
    }

    pub(super) async fn decode(&self, request: DecodeRequest) -> Result<Vec<String>, EngineError> {
        let request = DecodeRequest { retries: true, ..request };
        self.ask(request.ids.len(), || self.engine.decode(request.clone())).await
    }

    async fn ask<T>(&self, inputs: usize, ask: impl Fn() -> Pending<'a, T>) -> Result<T, EngineError> {
        patiently(self.engine, &self.door, inputs, self.deadline, ask).await
    }
}

/// Limits how long a request waits.
struct Patience {
    started: Instant,
    deadline: Option<Instant>,
}

impl Patience {
    /// Waits for `time`, or until the deadline.
    async fn wait(&self, time: Duration) -> Result<(), EngineError> {
        let Some(deadline) = self.deadline else {
            tokio::time::sleep(time).await;
            return Ok(());
        };
        let left = deadline.saturating_duration_since(Instant::now());
        tokio::time::sleep(time.min(left)).await;
        match left <= time {
            true => Err(EngineError::Expired { within: deadline.saturating_duration_since(self.started) }),
            false => Ok(()),
        }
    }
}
