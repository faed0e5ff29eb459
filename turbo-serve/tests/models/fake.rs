//! A source of engines whose loading the tests control.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use turbo_serve::{
    engine::{
        DecodeRequest, EngineError, EngineInfo, Health, Infer, InferRequest, InferResponse, ModelInfo,
        OutputKind, Pending, Pooling, Prompts, RowLens, ScoreFunction, TokenizeRequest, Tokenized, Usage,
    },
    models::{Alias, Declared, Load, LoadWhen, Loaded, Models, Served, Source, SourceError, Stop},
};

/// Nothing in these tests takes this long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// The versions of one model, under the tests' control.
#[derive(Default)]
pub(crate) struct Shelf {
    name: String,
    versions: Mutex<Vec<String>>,
    /// Versions whose loading waits until they are released.
    held: Mutex<Vec<String>>,
    released: Condvar,
    /// What the next load does instead of loading.
    trouble: Mutex<Option<Trouble>>,
    /// Loads that were begun.
    pub(crate) loads: AtomicUsize,
    /// The labels that these got, in their order.
    pub(crate) labels: Mutex<Vec<Option<String>>>,
    /// Engines that were loaded and not yet dropped.
    pub(crate) alive: Arc<AtomicUsize>,
}

pub(crate) enum Trouble {
    Fails,
    /// Fails once it is released.
    FailsInTheEnd,
    Panics,
}

impl Shelf {
    pub(crate) fn new(name: &str, versions: &[&str]) -> Arc<Self> {
        let versions = versions.iter().map(|&version| version.to_owned()).collect::<Vec<_>>().into();
        Arc::new(Self { name: name.to_owned(), versions, ..Self::default() })
    }

    pub(crate) fn declared(self: &Arc<Self>, load: LoadWhen) -> Declared {
        let source = Arc::clone(self) as Arc<dyn Source>;
        Declared { name: self.name.clone(), aliases: Vec::new(), version: None, load, source }
    }

    pub(crate) fn set_versions(&self, versions: &[&str]) {
        *self.versions.lock().unwrap() = versions.iter().map(|&version| version.to_owned()).collect();
    }

    pub(crate) fn hold(&self, version: &str) {
        self.held.lock().unwrap().push(version.to_owned());
    }

    pub(crate) fn release(&self) {
        self.held.lock().unwrap().clear();
        self.released.notify_all();
    }

    pub(crate) fn next_load(&self, trouble: Trouble) {
        *self.trouble.lock().unwrap() = Some(trouble);
    }
}

impl Source for Shelf {
    fn versions(&self) -> Result<Vec<String>, SourceError> {
        Ok(self.versions.lock().unwrap().clone())
    }

    fn load(&self, Load { version, label, .. }: Load<'_>) -> Result<Loaded, SourceError> {
        self.loads.fetch_add(1, SeqCst);
        self.labels.lock().unwrap().push(label.map(str::to_owned));
        let trouble = self.trouble.lock().unwrap().take();
        match trouble {
            Some(Trouble::Fails) => return Err("the file is too short".into()),
            Some(Trouble::Panics) => panic!("an invariant broke"),
            Some(Trouble::FailsInTheEnd) | None => {}
        }
        let held = self.held.lock().unwrap();
        let is_held = |held: &mut Vec<String>| held.iter().any(|held| held == version);
        let (held, waited) = self.released.wait_timeout_while(held, PATIENCE, is_held).unwrap();
        drop(held);
        assert!(!waited.timed_out(), "waited in vain");
        if let Some(Trouble::FailsInTheEnd) = trouble {
            return Err("the file ends too early".into());
        }
        let engine = Arc::new(Engine::new(&self.name, Arc::clone(&self.alive)));
        Ok(Loaded { stop: Some(Arc::clone(&engine) as Arc<dyn Stop>), ..engine.into() })
    }
}

/// The description of an engine of this name, whose model gives vectors.
pub(crate) fn info(name: &str) -> EngineInfo {
    let model = ModelInfo {
        model_id: name.to_owned(),
        sha: None,
        name: name.to_owned(),
        dtype: "float32",
        device: "test".to_owned(),
        task: Pooling::Mean.into(),
        labels: Arc::default(),
        score_function: ScoreFunction::Identity,
        pair_score_function: ScoreFunction::Sigmoid,
        mask_token: None,
        prompts: Prompts::default(),
        takes_instruction: false,
        rows: RowLens { pooled: Some(1), tokens: None, selected: None },
        max_input_length: 8,
        vocab_size: 10,
        type_vocab_size: 1,
    };
    EngineInfo {
        model,
        max_input_length: 8,
        max_batch_tokens: 8,
        max_batch_requests: None,
        max_client_batch_size: 8,
        max_concurrent_requests: 8,
        auto_truncate: true,
        tokenization_workers: 0,
        cache_bytes: None,
        version: "1.2.3",
    }
}

/// An engine that answers after a while, and never after its end.
pub(crate) struct Engine {
    info: EngineInfo,
    ended: AtomicBool,
    /// Whether there is no room for requests.
    pub(crate) full: AtomicBool,
    alive: Arc<AtomicUsize>,
}

impl Engine {
    pub(crate) fn new(name: &str, alive: Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, SeqCst);
        let [ended, full] = [false; 2].map(AtomicBool::new);
        Self { info: info(name), ended, full, alive }
    }

    fn check(&self) -> Result<(), EngineError> {
        match (self.ended.load(SeqCst), self.full.load(SeqCst)) {
            (true, _) => Err(EngineError::Stopping),
            (_, true) => Err(EngineError::Overloaded { retry_after: Duration::from_secs(60) }),
            _ => Ok(()),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, SeqCst);
    }
}

impl Infer for Engine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn infer(&self, _: InferRequest) -> Pending<'_, InferResponse> {
        Box::pin(async {
            self.check()?;
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.check()?;
            Ok(InferResponse { rows: Vec::new(), usage: Usage::default() })
        })
    }

    fn tokenize(&self, _: TokenizeRequest) -> Pending<'_, Vec<Tokenized>> {
        unreachable!("nobody asks for tokens")
    }

    fn decode(&self, _: DecodeRequest) -> Pending<'_, Vec<String>> {
        unreachable!("nobody asks for texts")
    }

    fn health(&self) -> Health {
        Health::Ready
    }
}

impl Stop for Engine {
    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async { self.ended.store(true, SeqCst) })
    }

    fn abandon(&self) {
        self.ended.store(true, SeqCst);
    }
}

/// Another name for a model.
pub(crate) fn alias(name: &str, version: Option<&str>) -> Alias {
    Alias { name: name.to_owned(), version: version.map(str::to_owned) }
}

/// These models, ready.
pub(crate) async fn started(shelves: &[&Arc<Shelf>]) -> Models {
    let declared = shelves.iter().map(|shelf| shelf.declared(LoadWhen::Start)).collect();
    let models = Models::new(declared, None).unwrap();
    models.start().await.unwrap();
    models
}

/// Asks a model under its lease.
pub(crate) async fn ask(model: &Served) -> Result<(), EngineError> {
    model.engine().infer(InferRequest::new(Vec::new(), OutputKind::RAW)).await.map(drop)
}

/// Runs a test on a runtime of several threads, for a while.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.expect("waited in vain") });
}

/// Runs a test with a paused clock, which advances while nothing happens.
pub(crate) fn run_fast(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(test);
}

/// Waits until `reached`, for a while.
pub(crate) async fn eventually(reached: impl Fn() -> bool) {
    while !reached() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
