//! The engine itself: it admits requests, sends them to the tokenizer and the worker, and waits for their answers.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    DecodeRequest, EngineConfig, EngineError, EngineInfo, Health, Infer, InferRequest, InferResponse, Input,
    Model, OutputKind, Pending, Spent, StartError, TokenizeRequest, Tokenized, Urgency,
    admit::{
        abandoned::Abandoned,
        admission::{Admission, Comes},
        forecast::{Forecast, Terms},
        waiting::Waiting,
    },
    answers::{
        finish::finish,
        recall::{Known, Recall},
        ticket::{Receiver, Ticket},
    },
    compute::inbox::channel,
    health::HealthCell,
    metrics::TaskMetrics,
    observed::{Observed, Observer},
    start::worker_start::WorkerStart,
    tokens::{
        rules::{Manner, Rules},
        tokenizing::Tokenizing,
    },
};

/// A model, its queue and its threads. Clones are handles to the same engine.
///
/// When the last handle is dropped, the threads finish the work that they have and end; [`Engine::stop`] waits for
/// that.
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

struct Shared {
    info: EngineInfo,
    health: Arc<HealthCell>,
    admission: Admission,
    forecast: Arc<Forecast>,
    /// The deadline of every request that names none, counted from its arrival.
    slo: Option<Duration>,
    tokenizing: Tokenizing,
    metrics: TaskMetrics,
    observer: Arc<Observer>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The flag that cancels all accepted requests.
    abandoned: Arc<Abandoned>,
}

impl Engine {
    /// Builds the model, measures what its batches cost, and starts the threads. Blocks until requests can be served.
    ///
    /// # Errors
    /// [`StartError`]: limits that contradict each other, or a model that cannot be built or run.
    pub fn start(model: Model, config: &EngineConfig) -> Result<Self, StartError> {
        config.check(&model)?;
        let mut info = config.info(&model);
        let slots = config.max_concurrent_requests;
        let waiting = Arc::new(Waiting::new(config.label.as_deref()));
        let (inbox, arrivals) = channel(Arc::clone(&waiting));
        let epoch = Instant::now();
        let observer = Arc::new(Observer::new(epoch, model.layout, waiting));
        let health = Arc::new(HealthCell::new(Health::Starting));
        let limit = info.max_input_length;
        let rules = Rules {
            tokenizer: model.tokenizer.as_ref().map(|tokenizer| tokenizer.limited_to(limit)),
            padding_id: model.padding_id,
            max_input_length: limit,
            vocab_size: info.model.vocab_size,
            type_vocab_size: info.model.type_vocab_size,
        };

        let (fingerprint, rows) = (model.fingerprint.clone(), model.info.rows);
        let abandoned = Arc::new(Abandoned::default());
        let start = WorkerStart {
            info: info.clone(),
            model,
            config: config.clone(),
            arrivals,
            epoch,
            health: Arc::clone(&health),
            abandoned: Arc::clone(&abandoned),
            observer: Arc::clone(&observer),
        };
        let (worker, capacity, forecast) = start.spawn()?;
        info.max_batch_tokens = capacity.total_tokens;
        let workers = config.tokenization_workers;
        let label = config.label.as_deref();
        let known = config.cache.clone().map(|cache| {
            Known::new(cache, fingerprint.as_deref(), rows, inbox.clone(), Arc::clone(&forecast))
        });
        let recall = Recall::new(known, inbox.clone(), Arc::clone(&forecast), label, Arc::clone(&observer));
        let (tokenizing, mut threads) =
            Tokenizing::start(rules, workers, recall, inbox, Arc::clone(&abandoned))?;
        threads.push(worker);
        let total = u32::try_from(slots).unwrap_or(u32::MAX);
        let admission = Admission::new(total, Arc::clone(&forecast));
        Ok(Self(Arc::new(Shared {
            metrics: TaskMetrics::new(info.model.task, label, Arc::clone(&observer)),
            observer,
            info,
            health,
            admission,
            forecast,
            slo: config.slo,
            tokenizing,
            threads: Mutex::new(threads),
            abandoned,
        })))
    }

    /// Rejects new requests, waits until all accepted ones are answered, and ends the threads. Accepted requests are no
    /// longer held back for others, as with [`Dispatch::Hungry`](turbo_sched::Dispatch::Hungry). A second call waits
    /// for the same; [`Engine::abandon`] cuts the wait short.
    pub async fn stop(&self) {
        self.0.health.set(Health::Stopping);
        self.0.tokenizing.hurry();
        self.0.admission.drain().await;
        self.0.tokenizing.stop();
        let shared = Arc::clone(&self.0);
        let (joined, all_joined) = oneshot::channel();
        // Joined under the lock, so that a second call waits for the same, even if the first call's future is gone.
        let join = move || {
            let mut threads = shared.threads.lock().unwrap_or_else(PoisonError::into_inner);
            threads.drain(..).for_each(|thread| drop(thread.join()));
            // Fails only if nobody waits any more.
            let _ = joined.send(());
        };
        // Joining blocks until the threads have ended, and there may be no runtime to block on, or none any more. If no
        // thread can be started to join them, they end all the same.
        if std::thread::Builder::new().name("turbo-stop".into()).spawn(join).is_ok() {
            drop(all_joined.await);
        }
    }

    /// Cancels all accepted requests: they fail at once with [`EngineError::Stopping`]. No further text is tokenized,
    /// and a running batch ends at its next layer, where its device checks between layers. New requests are rejected.
    /// [`Engine::stop`] then waits only for the texts and the batch in progress.
    pub fn abandon(&self) {
        self.0.health.set(Health::Stopping);
        self.0.abandoned.say();
        self.0.tokenizing.wake();
    }

    async fn answer(&self, request: InferRequest) -> Result<InferResponse, EngineError> {
        let shared = &*self.0;
        let (Urgency { deadline, priority }, retries) = (request.urgency, request.retries);
        let terms = Terms::new(Instant::now(), deadline, shared.slo, priority);
        let answer = match deadline {
            // Checked before admission: on an `Overloaded` a caller would wait for room, though its time is over.
            Some(deadline) if deadline <= terms.started => Err(terms.expired()),
            Some(deadline) => tokio::time::timeout_at(deadline.into(), self.answer_on(request, terms))
                .await
                .unwrap_or_else(|_| Err(terms.expired())),
            None => self.answer_on(request, terms).await,
        };
        if let Err(error) = &answer
            && !error.is_retried(retries, deadline)
        {
            shared.metrics.failed(error);
        }
        answer
    }

    async fn answer_on(&self, request: InferRequest, terms: Terms) -> Result<InferResponse, EngineError> {
        let shared = &*self.0;
        let row_len = shared.check(&request)?;
        let InferRequest {
            inputs, output, truncation, prompt_name, instruction, urgency, room, retries, ..
        } = request;
        let limit = shared.info.max_input_length;
        let manner = Manner {
            truncation: truncation.unwrap_or_else(|| shared.info.default_truncation()),
            max_input_length: request.max_input_length.filter(|&asked| asked < limit),
            prompt: shared.info.model.prompts.choose(&prompt_name)?,
            instruction,
            selects: output == OutputKind::Selected,
            tokenizer: OnceLock::new(),
        };
        let slots = shared.reserve(inputs.len(), retries.into())?;
        let may_be_known = shared.info.cache_bytes.is_some();
        let inside = shared.forecast.enter(terms, inputs.len(), may_be_known)?;
        let mut accepted = shared.metrics.accepted(inputs.len() as u64);
        // A request that retries may still be rejected, and is then not counted. If its deadline passes before that, or
        // its client goes, it counts as accepted.
        if !retries {
            accepted.count();
        }
        let characters = inputs.iter().map(characters).sum();
        let (ticket, reply) = Ticket::new(Arc::clone(&inside.place), inputs.len(), output, slots);
        shared.tokenizing.encode(ticket.held_in(room, row_len), inputs, manner);
        let answers = shared.received(reply).await;
        if let Err(error) = &answers
            && error.is_retried(retries, urgency.deadline)
        {
            accepted.forget();
        }
        drop(accepted);
        let answers = answers?;
        shared.metrics.answered(&answers, &inside.place);
        let total = inside.place.ended().saturating_duration_since(terms.started);
        inside.answered();
        Ok(finish(answers, output, row_len, characters, total))
    }

    async fn tokens(&self, request: TokenizeRequest) -> Result<Vec<Tokenized>, EngineError> {
        let shared = &*self.0;
        shared.check_count(request.texts.len())?;
        let slots = shared.reserve_aside(request.texts.len(), request.retries)?;
        shared.received(shared.tokenizing.tokenize(request, slots)).await
    }

    async fn texts(&self, request: DecodeRequest) -> Result<Vec<String>, EngineError> {
        let shared = &*self.0;
        shared.check_count(request.ids.len())?;
        let slots = shared.reserve_aside(request.ids.len(), request.retries)?;
        shared.received(shared.tokenizing.decode(request, slots)).await
    }
}

impl Infer for Engine {
    fn info(&self) -> &EngineInfo {
        &self.0.info
    }

    fn infer(&self, request: InferRequest) -> Pending<'_, InferResponse> {
        Box::pin(self.answer(request))
    }

    fn tokenize(&self, request: TokenizeRequest) -> Pending<'_, Vec<Tokenized>> {
        Box::pin(self.tokens(request))
    }

    fn decode(&self, request: DecodeRequest) -> Pending<'_, Vec<String>> {
        Box::pin(self.texts(request))
    }

    fn has_room(&self, inputs: usize) -> bool {
        // while stopping, let the caller go on to its request, which fails with `Stopping`
        self.health() == Health::Stopping || self.0.admission.has_room(inputs, Instant::now())
    }

    fn batches(&self) -> BTreeMap<usize, Spent> {
        self.0.forecast.batches()
    }

    fn health(&self) -> Health {
        self.0.health.get()
    }

    fn observed(&self) -> Option<Observed> {
        let observed = self.0.observer.look(self.0.forecast.until_empty());
        self.0.tokenizing.wake(); // a sleeping worker then reports costs and plans for the next look
        Some(observed)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("info", &self.0.info).field("health", &self.health()).finish()
    }
}

impl Shared {
    /// Checks a request before anything is reserved for it; returns the width of the model's rows.
    fn check(&self, request: &InferRequest) -> Result<usize, EngineError> {
        self.check_count(request.inputs.len())?;
        let model = &self.info.model;
        if request.instruction.is_some() && !model.takes_instruction {
            return Err(EngineError::NoInstruction);
        }
        let no_such = || EngineError::NoSuchRows { task: model.task, rows: request.output.rows_name() };
        let limit = model.row_len(request.output).ok_or_else(no_such)?;
        match request.output {
            OutputKind::Pooled { dimensions: Some(got), .. } if got == 0 || got > limit => {
                Err(EngineError::InvalidDimensions { got, limit })
            }
            _ => Ok(limit),
        }
    }

    fn check_count(&self, got: usize) -> Result<(), EngineError> {
        let limit = self.info.max_client_batch_size;
        match got {
            _ if self.health.get() == Health::Stopping => Err(EngineError::Stopping),
            0 => Err(EngineError::Empty),
            _ if got > limit => Err(EngineError::TooManyInputs { got, limit }),
            _ => Ok(()),
        }
    }

    fn reserve(&self, inputs: usize, comes: Comes) -> Result<OwnedSemaphorePermit, EngineError> {
        self.admission.reserve(u32::try_from(inputs).unwrap_or(u32::MAX), comes, Instant::now())
    }

    /// Reserves slots for a request that does not run the model.
    fn reserve_aside(&self, inputs: usize, retries: bool) -> Result<OwnedSemaphorePermit, EngineError> {
        self.reserve(inputs, retries.into()).inspect_err(|error| {
            if !error.is_retried(retries, None) {
                self.metrics.failed(error);
            }
        })
    }

    /// Waits for the answer; an error if its sender is dropped, or when requests are abandoned.
    async fn received<T>(&self, reply: Receiver<T>) -> Result<Vec<T>, EngineError> {
        tokio::select! {
            biased;
            answer = reply => {
                answer.unwrap_or_else(|_| Err(EngineError::Backend("the worker has ended".into())))
            }
            () = self.abandoned.told() => Err(EngineError::Stopping),
        }
    }
}

fn characters(input: &Input) -> usize {
    match input {
        Input::Text(text) => text.chars().count(),
        Input::Pair(first, second) => first.chars().count() + second.chars().count(),
        Input::Ids(ids) => ids.len(),
        Input::Encoded(_) => 0,
    }
}
