//! What a version has done since it is there, whoever asked.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use crate::engine::{
    DecodeRequest, EngineError, EngineInfo, Health, Infer, InferRequest, InferResponse, Pending,
    TokenizeRequest, Tokenized, Usage,
};

/// How often something was, and how long it took altogether.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// How often.
    pub count: u64,
    /// How long.
    pub time: Duration,
}

impl Spent {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.time = self.time.saturating_add(time);
    }
}

/// What a version has done since it is there. Requests whose clients have gone are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests that were answered.
    pub answered: Spent,
    /// Requests that were not.
    pub failed: Spent,
    /// Of those answered, until their inputs were tokens (the mean of each).
    pub tokenization: Spent,
    /// Of those answered, from then until their batches began.
    pub queue: Spent,
    /// Of those answered, their batches.
    pub inference: Spent,
    /// Inputs of the requests that were answered.
    pub inputs: u64,
    /// Batches that the model has computed.
    pub batches: u64,
    /// When a request was last answered.
    pub last: Option<SystemTime>,
}

/// An engine whose requests are counted.
pub(super) struct Counted {
    engine: Arc<dyn Infer>,
    statistics: Mutex<Statistics>,
}

impl Counted {
    pub(super) fn new(engine: Arc<dyn Infer>) -> Self {
        Self { engine, statistics: Mutex::default() }
    }

    pub(super) fn statistics(&self) -> Statistics {
        let statistics = *self.statistics.lock().unwrap_or_else(PoisonError::into_inner);
        Statistics { batches: self.engine.batches(), ..statistics }
    }

    async fn answer(&self, request: InferRequest) -> Result<InferResponse, EngineError> {
        let (started, inputs) = (Instant::now(), request.inputs.len() as u64);
        let answer = self.engine.infer(request).await;
        self.count(started, inputs, answer.as_ref().ok().map(|answer| &answer.usage));
        answer
    }

    fn count(&self, started: Instant, inputs: u64, usage: Option<&Usage>) {
        let mut statistics = self.statistics.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Usage { timings, .. }) = usage else { return statistics.failed.add(started.elapsed()) };
        statistics.answered.add(started.elapsed());
        statistics.tokenization.add(timings.tokenization);
        statistics.queue.add(timings.queue);
        statistics.inference.add(timings.inference);
        statistics.inputs += inputs;
        statistics.last = Some(SystemTime::now());
    }
}

impl Infer for Counted {
    fn info(&self) -> &EngineInfo {
        self.engine.info()
    }

    fn infer(&self, request: InferRequest) -> Pending<'_, InferResponse> {
        Box::pin(self.answer(request))
    }

    fn tokenize(&self, request: TokenizeRequest) -> Pending<'_, Vec<Tokenized>> {
        self.engine.tokenize(request)
    }

    fn decode(&self, request: DecodeRequest) -> Pending<'_, Vec<String>> {
        self.engine.decode(request)
    }

    fn health(&self) -> Health {
        self.engine.health()
    }

    fn batches(&self) -> u64 {
        self.engine.batches()
    }
}
