//! What a version has done since it was loaded, over all protocols.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use crate::engine::{
    DecodeRequest, EngineError, EngineInfo, Health, Infer, InferRequest, InferResponse, Pending, Spent,
    Timings, TokenizeRequest, Tokenized, Urgency, Usage, observed::Observed,
};

/// What a version has done since it was loaded. Requests whose clients have gone are not counted; requests that are
/// retried are counted once, by their last try.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests that were answered.
    pub answered: Spent,
    /// Requests that were not.
    pub failed: Spent,
    /// Of those answered: the time until their inputs were tokenized (the mean over each request's inputs).
    pub tokenization: Spent,
    /// Of those for which something was computed: from then until their batches began (the mean, too).
    pub queue: Spent,
    /// Of the same requests: the time of their batches (the mean, too).
    pub inference: Spent,
    /// Of the same requests: from then until the answer.
    pub finish: Spent,
    /// Of those answered, where answers are kept: the ones for which nothing was computed.
    pub known: Spent,
    /// Of those answered, where answers are kept: the others. Their time here is 0.
    pub unknown: Spent,
    /// Inputs of the requests that were answered.
    pub inputs: u64,
    /// Batches that the model has computed, by how many inputs they held.
    pub batches: BTreeMap<usize, Spent>,
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
        let statistics = self.statistics.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Statistics { batches: self.engine.batches(), ..statistics }
    }

    async fn answer(&self, request: InferRequest) -> Result<InferResponse, EngineError> {
        let (started, inputs) = (Instant::now(), request.inputs.len() as u64);
        let (deadline, retries) = (request.urgency.deadline, request.retries);
        let answer = self.engine.infer(request).await;
        match &answer {
            Err(error) if error.is_retried(retries, deadline) => {}
            answer => self.count(started, inputs, answer.as_ref().ok().map(|answer| &answer.usage)),
        }
        answer
    }

    fn count(&self, started: Instant, inputs: u64, usage: Option<&Usage>) {
        // An answer knows how long it took, whenever its future is polled.
        let took = usage.map_or_else(|| started.elapsed(), |usage| usage.timings.total);
        let are_kept = self.engine.info().cache_bytes.is_some();
        let mut statistics = self.statistics.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Usage { timings, .. }) = usage else { return statistics.failed.add(took) };
        statistics.answered.add(took);
        statistics.inputs += inputs;
        statistics.last = Some(SystemTime::now());
        let Timings { tokenization, queue, inference, .. } = *timings;
        statistics.tokenization.add(tokenization);
        // Every batch takes some time: 0 means that nothing was computed.
        if are_kept && inference.is_zero() {
            return statistics.known.add(took);
        }
        if are_kept {
            statistics.unknown.add(Duration::ZERO);
        }
        statistics.queue.add(queue);
        statistics.inference.add(inference);
        statistics.finish.add(took.saturating_sub(tokenization + queue + inference));
    }
}

#[deny(clippy::missing_trait_methods, reason = "what is not handed on would be swallowed")]
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

    fn has_room(&self, inputs: usize) -> bool {
        self.engine.has_room(inputs)
    }

    fn urgency(&self) -> Urgency {
        self.engine.urgency()
    }

    fn health(&self) -> Health {
        self.engine.health()
    }

    fn batches(&self) -> BTreeMap<usize, Spent> {
        self.engine.batches()
    }

    fn observed(&self) -> Option<Observed> {
        self.engine.observed()
    }
}
