//! The engine itself: it admits requests, has them made into tokens, and waits for their answers.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::JoinHandle,
    time::Instant,
};

use turbo_sched::{Batcher, BatcherConfig};

use super::{
    Capacity, EmbedRequest, EmbedResponse, Embedder, EngineConfig, EngineError, Health, Input, Model,
    ModelInfo, OutputKind, Pending, StartError,
    admission::{Admission, Load},
    finish::finish,
    health::HealthCell,
    metrics::EmbedMetrics,
    queue::{Inbox, Outbox, Queue, inbox},
    ticket::Ticket,
    tokens::{Encoders, Rules},
    warm_up::warm_up,
    worker::{Worker, panic_message},
};

/// A model, its queue and its threads. Clones are handles to the same engine.
///
/// When the last handle is dropped, what was accepted is still computed, and the threads end; [`Engine::stop`] waits
/// for that.
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

struct Shared {
    info: ModelInfo,
    health: Arc<HealthCell>,
    admission: Admission,
    encoders: Encoders,
    metrics: EmbedMetrics,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Engine {
    /// Builds the model, measures what its batches cost, and starts the threads. Blocks until requests are answered.
    ///
    /// # Errors
    /// [`StartError`]: limits that contradict each other, or a model that cannot be built or run.
    pub fn start(model: Model, config: &EngineConfig) -> Result<Self, StartError> {
        config.check(&model)?;
        let info = info(&model, config);
        let slots = config.max_concurrent_requests;
        let (inbox, outbox) = inbox(slots);
        let epoch = Instant::now();
        let load = Arc::new(Load::new(epoch));
        let health = Arc::new(HealthCell::new(Health::Starting));
        let rules = Rules {
            tokenizer: model.tokenizer.clone(),
            max_input_length: model.max_input_length,
            vocab_size: model.vocab_size,
        };

        let start = WorkerStart {
            capacity: config.capacity(&model),
            model,
            config: config.clone(),
            outbox,
            epoch,
            load: Arc::clone(&load),
            health: Arc::clone(&health),
        };
        let worker = start.spawn()?;
        let (encoders, mut threads) = start_encoders(rules, config.tokenization_workers, inbox)?;
        threads.push(worker);
        let total = u32::try_from(slots).unwrap_or(u32::MAX);
        Ok(Self(Arc::new(Shared {
            info,
            health,
            admission: Admission::new(total, load),
            encoders,
            metrics: EmbedMetrics::new(),
            threads: Mutex::new(threads),
        })))
    }

    /// Refuses new requests, waits until all accepted ones are answered, and ends the threads. A second call waits for
    /// the same.
    pub async fn stop(&self) {
        self.0.health.set(Health::Stopping);
        self.0.admission.drain().await;
        self.0.encoders.stop();
        let threads = std::mem::take(&mut *self.0.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let join = move || threads.into_iter().for_each(|thread| drop(thread.join()));
        // Joining blocks, if only for the time a thread takes to end; the runtime may be gone at shutdown.
        drop(tokio::task::spawn_blocking(join).await);
    }

    async fn answer(&self, request: EmbedRequest) -> Result<EmbedResponse, EngineError> {
        let shared = &*self.0;
        let started = Instant::now();
        shared.check(&request)?;
        let EmbedRequest { inputs, output, truncation } = request;
        let count = u32::try_from(inputs.len()).unwrap_or(u32::MAX);
        let slots = shared.admission.reserve(count)?;
        let characters = inputs.iter().map(characters).sum();
        let (ticket, reply) = Ticket::new(started, inputs.len(), output, slots);
        let truncation = truncation.unwrap_or_else(|| shared.info.default_truncation());
        shared.metrics.accepted(count.into());
        shared.encoders.encode(ticket, inputs, truncation);
        let gone = || EngineError::Backend("the worker has ended".into());
        let answers = reply.await.map_err(|_| gone())??;
        shared.metrics.answered(&answers, started.elapsed());
        Ok(finish(answers, output, shared.info.hidden_size, characters, started))
    }
}

impl Embedder for Engine {
    fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    fn embed(&self, request: EmbedRequest) -> Pending<'_> {
        Box::pin(self.answer(request))
    }

    fn health(&self) -> Health {
        self.0.health.get()
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("info", &self.0.info).field("health", &self.health()).finish()
    }
}

impl Shared {
    /// What can be said of a request before anything is reserved for it.
    fn check(&self, request: &EmbedRequest) -> Result<(), EngineError> {
        if self.health.get() == Health::Stopping {
            return Err(EngineError::Stopping);
        }
        let (got, limit) = (request.inputs.len(), self.info.max_client_batch_size);
        if got == 0 {
            return Err(EngineError::Empty);
        }
        if got > limit {
            return Err(EngineError::TooManyInputs { got, limit });
        }
        if let OutputKind::Pooled { dimensions: Some(got), .. } = request.output {
            let limit = self.info.hidden_size;
            if got == 0 || got > limit {
                return Err(EngineError::InvalidDimensions { got, limit });
            }
        }
        Ok(())
    }
}

fn characters(input: &Input) -> usize {
    match input {
        Input::Text(text) => text.chars().count(),
        Input::Ids(_) => 0,
    }
}

fn info(model: &Model, config: &EngineConfig) -> ModelInfo {
    ModelInfo {
        model_id: model.model_id.clone(),
        name: model.name.clone(),
        dtype: "float32",
        pooling: model.pooling,
        max_input_length: model.max_input_length,
        max_batch_tokens: config.max_batch_tokens,
        max_batch_requests: config.max_batch_requests,
        // A request larger than all slots together could never be admitted: it is told so, not to come back later.
        max_client_batch_size: config.max_client_batch_size.min(config.max_concurrent_requests),
        max_concurrent_requests: config.max_concurrent_requests,
        auto_truncate: config.auto_truncate,
        tokenization_workers: if model.tokenizer.is_some() { config.tokenization_workers } else { 0 },
        hidden_size: model.hidden_size,
        vocab_size: model.vocab_size,
        device: model.device.clone(),
        has_tokenizer: model.tokenizer.is_some(),
        version: env!("CARGO_PKG_VERSION"),
    }
}

/// Without a tokenizer there is nothing for its threads to do.
fn start_encoders(
    rules: Rules,
    workers: usize,
    inbox: Inbox,
) -> Result<(Encoders, Vec<JoinHandle<()>>), StartError> {
    let workers = if rules.tokenizer.is_some() { workers } else { 0 };
    Ok(Encoders::start(rules, workers, inbox)?)
}

/// All that the worker's thread is born with.
struct WorkerStart {
    model: Model,
    config: EngineConfig,
    capacity: Capacity,
    outbox: Outbox,
    epoch: Instant,
    load: Arc<Load>,
    health: Arc<HealthCell>,
}

impl WorkerStart {
    /// Starts the thread and waits until its model is warm, or has failed.
    fn spawn(self) -> Result<JoinHandle<()>, StartError> {
        let (ready, is_ready) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("turbo-worker".into());
        let health = Arc::clone(&self.health);
        let thread = thread.spawn(move || {
            let prepared = catch_unwind(AssertUnwindSafe(|| self.prepare()))
                .unwrap_or_else(|panic| Err(StartError::Panicked(panic_message(&*panic))));
            let worker = prepared.map_err(|error| ready.send(Err(error)));
            if let Ok(worker) = worker
                && ready.send(Ok(())).is_ok()
            {
                // A batch that panics is caught where it runs; this is for the worker's own mistakes.
                if catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
                    tracing::error!("the worker has ended, no request can be answered any more");
                }
                health.set(Health::Failing);
            }
        })?;
        match is_ready.recv() {
            Ok(Ok(())) => Ok(thread),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(StartError::Panicked("its thread ended".into())),
        }
    }

    /// Builds the model and measures it.
    fn prepare(mut self) -> Result<Worker, StartError> {
        let mut runner = (self.model.build)(self.capacity).map_err(StartError::Runner)?;
        let (layout, vocab_size) = (self.model.layout, self.model.vocab_size);
        let largest = self.capacity.largest(layout);
        tracing::info!(
            activations_mb = runner.footprint(&largest) / 1_000_000,
            max_batch_tokens = self.capacity.total_tokens,
            "memory for the largest batch is reserved"
        );
        let costs =
            warm_up(&mut *runner, layout, vocab_size, self.config.warm_up).map_err(StartError::Runner)?;
        let batcher = BatcherConfig {
            policy: self.config.batching,
            dispatch: self.config.dispatch,
            ..BatcherConfig::with_limits(self.capacity.limits())
        };
        let slots = self.config.max_concurrent_requests;
        let queue = Queue::new(self.outbox, Batcher::new(batcher, costs), slots, self.epoch);
        self.health.set(Health::Ready);
        Ok(Worker {
            runner: Some(runner),
            build: self.model.build,
            capacity: self.capacity,
            queue,
            load: self.load,
            health: self.health,
        })
    }
}
