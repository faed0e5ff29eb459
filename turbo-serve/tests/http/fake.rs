//! An engine whose answers are known, and a server with it on a loopback port.

use std::{
    net::SocketAddr,
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use axum::Router;
use serde_json::Value;
use tokio::sync::oneshot;
use tracing_subscriber::fmt::format::FmtSpan;
use turbo_serve::{
    engine::{
        DecodeRequest, Encoding, EngineError, EngineInfo, Extent, Health, Infer, InferRequest, InferResponse,
        Input, ModelInfo, OutputKind, Pending, Pooling, Prompts, Row, RowLens, ScoreFunction, SpecialTokens,
        Task, Texts, Timings, TokenizeRequest, Tokenized, Truncation, Usage,
    },
    grpc,
    http::{HttpOptions, Metrics, router},
    net::{GRACE, serve},
};

/// Values of a row.
pub(crate) const HIDDEN: usize = 4;
/// Most inputs of a request.
pub(crate) const MAX_CLIENT_BATCH_SIZE: usize = 8;
/// Most bytes of a body.
pub(crate) const PAYLOAD_LIMIT: usize = 10_000;

/// What is known of a model that gives vectors.
pub(crate) fn embedding() -> ModelInfo {
    ModelInfo {
        model_id: "models/fake".to_owned(),
        sha: None,
        name: "fake".to_owned(),
        dtype: "float32",
        device: "cpu (fake, 1 thread)".to_owned(),
        task: Pooling::Mean.into(),
        labels: Arc::default(),
        score_function: ScoreFunction::Identity,
        pair_score_function: ScoreFunction::Sigmoid,
        mask_token: None,
        prompts: Prompts::default(),
        takes_instruction: false,
        rows: RowLens { pooled: Some(HIDDEN), tokens: Some(HIDDEN), selected: None },
        max_input_length: 16,
        vocab_size: 1000,
        type_vocab_size: 1,
    }
}

/// What is known of a model that gives a logit per label.
pub(crate) fn classifier<const N: usize>(labels: [&str; N]) -> ModelInfo {
    ModelInfo {
        task: Task::SequenceClassification,
        labels: labels.map(str::to_owned).into(),
        score_function: if N == 1 { ScoreFunction::Sigmoid } else { ScoreFunction::Softmax },
        rows: RowLens { pooled: Some(N), tokens: None, selected: None },
        ..embedding()
    }
}

/// What is known of a model that gives a weight per token of its vocabulary.
pub(crate) fn sparse() -> ModelInfo {
    let rows = RowLens { pooled: Some(HIDDEN), tokens: None, selected: None };
    ModelInfo { task: Task::SparseEmbedding, rows, ..embedding() }
}

/// Answers at once, unless the first text asks for something else.
pub(crate) struct Fake {
    pub(crate) info: EngineInfo,
    health: Health,
    /// The last request that came.
    pub(crate) seen: std::sync::Mutex<Option<InferRequest>>,
    /// Requests for the text `wait` that were started.
    pub(crate) waiting: AtomicUsize,
    /// Of those, the ones that were dropped before they were answered.
    pub(crate) withdrawn: AtomicUsize,
    /// Requests for tokens that came.
    pub(crate) tokenizing: AtomicUsize,
}

impl Fake {
    /// An engine with this model.
    pub(crate) fn of(model: ModelInfo, health: Health) -> Self {
        let info = EngineInfo {
            max_input_length: model.max_input_length,
            model,
            max_batch_tokens: 64,
            max_batch_requests: None,
            max_client_batch_size: MAX_CLIENT_BATCH_SIZE,
            max_concurrent_requests: 512,
            auto_truncate: true,
            tokenization_workers: 1,
            cache_bytes: None,
            version: "1.2.3",
        };
        let [waiting, withdrawn, tokenizing] = [0, 0, 0].map(AtomicUsize::new);
        Self { info, health, seen: None.into(), waiting, withdrawn, tokenizing }
    }

    /// One that gives vectors, in that state of health.
    pub(crate) fn new(health: Health) -> Self {
        Self::of(embedding(), health)
    }

    fn check_count(&self, got: usize) -> Result<(), EngineError> {
        match (got, self.info.max_client_batch_size) {
            (0, _) => Err(EngineError::Empty),
            (got, limit) if got > limit => Err(EngineError::TooManyInputs { got, limit }),
            _ => Ok(()),
        }
    }

    fn check(&self, request: &InferRequest) -> Result<(), EngineError> {
        self.check_count(request.inputs.len())?;
        self.info.model.prompts.choose(&request.prompt_name)?;
        for (input, content) in request.inputs.iter().enumerate() {
            if tokens(content) == 0 {
                return Err(EngineError::EmptyInput { input });
            }
            if *content == Input::Text("invalid id".to_owned()) {
                return Err(EngineError::InvalidId { input, id: 1000, vocab_size: 1000 });
            }
            if request.truncation == Some(Truncation::Off) && tokens(content) > self.info.max_input_length {
                let (tokens, limit) = (tokens(content), self.info.max_input_length);
                return Err(EngineError::TooLong { input, tokens, limit });
            }
        }
        match request.output {
            OutputKind::Pooled { dimensions: Some(got), .. } if !(1..=HIDDEN).contains(&got) => {
                Err(EngineError::InvalidDimensions { got, limit: HIDDEN })
            }
            _ => Ok(()),
        }
    }

    async fn answer(&self, request: InferRequest) -> Result<InferResponse, EngineError> {
        *self.seen.lock().unwrap() = Some(request.clone());
        self.check(&request)?;
        let width = self.info.model.row_len(request.output).expect("the route has looked");
        let first = match request.inputs.first() {
            Some(Input::Text(text) | Input::Pair(text, _)) => text.as_str(),
            _ => "",
        };
        match first {
            "nan" => Ok(response(&request, width, Some(f32::NAN))),
            "infinity" => Ok(response(&request, width, Some(f32::INFINITY))),
            "slow" => {
                tokio::time::sleep(Duration::from_millis(300)).await;
                Ok(response(&request, width, None))
            }
            "fails slowly" => {
                tokio::time::sleep(Duration::from_millis(300)).await;
                Err(EngineError::Backend("the device has burnt down".to_owned()))
            }
            "wait" => {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                let _withdrawn = CountOnDrop(&self.withdrawn);
                std::future::pending().await
            }
            text => told_to_fail(text).map_or_else(|| Ok(response(&request, width, None)), Err),
        }
    }

    async fn tokens(&self, request: TokenizeRequest) -> Result<Vec<Tokenized>, EngineError> {
        self.tokenizing.fetch_add(1, Ordering::SeqCst);
        self.check_count(request.texts.len())?;
        if request.texts.contains(&Texts::One("slow".to_owned())) {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        if request.texts.contains(&Texts::One("wait".to_owned())) {
            std::future::pending().await
        }
        let prompt = request.prompt;
        let tokenized = |texts: Texts| {
            let (Texts::One(text) | Texts::Pair(text, _)) = texts;
            told_to_fail(&text).map_or(Ok(()), Err)?;
            let text = prompt.before(&text).into_owned();
            let encodings = vec![bytes(&text, request.extent)];
            Ok(Tokenized { texts: Texts::One(text), encodings })
        };
        request.texts.into_iter().map(tokenized).collect()
    }

    async fn texts(&self, request: DecodeRequest) -> Result<Vec<String>, EngineError> {
        self.check_count(request.ids.len())?;
        let special = request.special == SpecialTokens::With;
        let letter = |&id: &u32| match char::from_u32(id) {
            Some('^' | '$') if !special => None,
            letter => letter,
        };
        let text = |ids: &Vec<u32>| {
            let text: String = ids.iter().filter_map(letter).collect();
            told_to_fail(&text).map_or(Ok(text), Err)
        };
        let texts: Vec<String> = request.ids.iter().map(text).collect::<Result<_, _>>()?;
        match texts.concat().as_str() {
            "wait" => std::future::pending().await,
            _ => Ok(texts),
        }
    }
}

/// The error that a text asks for.
fn told_to_fail(text: &str) -> Option<EngineError> {
    Some(match text {
        "overloaded" => EngineError::Overloaded { retry_after: Duration::from_micros(1_200_300) },
        "too late" => EngineError::TooLate {
            within: Duration::from_millis(50),
            predicted: Duration::from_millis(1250),
            retry_after: Duration::from_micros(1_200_300),
        },
        "expired" => EngineError::Expired { within: Duration::from_millis(50) },
        "tokenizer" => EngineError::Tokenizer { input: 0, why: "it is of no use".to_owned() },
        "no tokenizer" => EngineError::NoTokenizer,
        "backend" => EngineError::Backend("the \"device\" is\non fire".to_owned()),
        "panic" => panic!("an invariant broke"),
        "stopping" => EngineError::Stopping,
        "invalid id" => EngineError::InvalidId { input: 0, id: 1000, vocab_size: 1000 },
        _ => return None,
    })
}

/// A letter of three bytes that normalisers (NFKC) write as eighteen.
pub(crate) const LONG_LETTER: char = '\u{fdfa}';

/// A token per letter, or eighteen for the [`LONG_LETTER`], whose id is its number, between `^` and `$`.
fn bytes(text: &str, extent: Extent) -> Encoding {
    let mut encoding = Encoding::default();
    let mut push = |token: char, bytes: std::ops::Range<usize>, special| {
        encoding.input_ids.push(token.into());
        encoding.tokens.push(format!("<{token}>"));
        encoding.offsets.push(bytes);
        encoding.special.push(special);
    };
    let with = extent == Extent::Whole(SpecialTokens::With);
    if with {
        push('^', 0..0, true);
    }
    for (at, letter) in text.char_indices() {
        let tokens = if letter == LONG_LETTER { 18 } else { 1 };
        (0..tokens).for_each(|_| push(letter, at..at + letter.len_utf8(), false));
    }
    if with {
        push('$', 0..0, true);
    }
    encoding
}

/// Counts when it is dropped.
pub(crate) struct CountOnDrop<'a>(pub(crate) &'a AtomicUsize);

impl Drop for CountOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Infer for Fake {
    fn info(&self) -> &EngineInfo {
        &self.info
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

    fn health(&self) -> Health {
        self.health
    }
}

/// The fake tokenizer: a token per byte and one around them; ids are taken as they are.
pub(crate) fn tokens(input: &Input) -> usize {
    match input {
        Input::Text(text) => text.len() + 1,
        Input::Pair(first, second) => first.len() + second.len() + 2,
        Input::Ids(ids) => ids.len(),
        Input::Encoded(encoded) => encoded.input_ids.len(),
    }
}

/// The fake model: row `token` of an input, a function of the input alone.
pub(crate) fn row(input: &Input, token: usize) -> [f32; HIDDEN] {
    let mut state = 0x9e37_79b9_u32;
    let mut mix = |value: u32| state = (state ^ value).wrapping_mul(0x85eb_ca6b).rotate_left(13);
    match input {
        Input::Text(text) => text.bytes().for_each(|byte| mix(byte.into())),
        Input::Pair(first, second) => format!("{first}|{second}").bytes().for_each(|byte| mix(byte.into())),
        Input::Ids(ids) => ids.iter().for_each(|&id| mix(id)),
        Input::Encoded(encoded) => encoded.input_ids.iter().for_each(|&id| mix(id)),
    }
    mix(token as u32);
    [0, 1, 2, 3].map(|i: u32| {
        let bits = state.rotate_left(i * 7).wrapping_mul(0xc2b2_ae35 + i);
        (f64::from(bits) / f64::from(u32::MAX) - 0.5) as f32
    })
}

fn response(request: &InferRequest, width: usize, last_value: Option<f32>) -> InferResponse {
    let mut rows: Vec<Row> = request
        .inputs
        .iter()
        .map(|input| match request.output {
            OutputKind::Pooled { dimensions, .. } => {
                let row_len = dimensions.unwrap_or(width);
                Row { values: row(input, 0)[..row_len].to_vec(), row_len, tokens: tokens(input) }
            }
            OutputKind::Tokens | OutputKind::Selected => {
                let values = (0..tokens(input)).flat_map(|token| row(input, token)).collect();
                Row { values, row_len: HIDDEN, tokens: tokens(input) }
            }
        })
        .collect();
    if let (Some(value), Some(row)) = (last_value, rows.last_mut()) {
        row.values.pop();
        row.values.push(value);
    }
    let timings = Timings {
        total: Duration::from_micros(7500),
        tokenization: Duration::from_micros(1900),
        queue: Duration::from_micros(2100),
        inference: Duration::from_micros(3999),
    };
    let characters = request.inputs.iter().map(characters).sum();
    let tokens = rows.iter().map(|row| row.tokens).sum();
    InferResponse { rows, usage: Usage { timings, characters, tokens } }
}

fn characters(input: &Input) -> usize {
    match input {
        Input::Text(text) => text.chars().count(),
        Input::Pair(first, second) => first.chars().count() + second.chars().count(),
        Input::Ids(_) | Input::Encoded(_) => 0,
    }
}

/// All routes and services over that engine.
pub(crate) fn routes(engine: Arc<Fake>) -> Router {
    routes_with(engine, Metrics::install().expect("no test installs another recorder"))
}

/// The same, showing these metrics.
pub(crate) fn routes_with(engine: Arc<Fake>, metrics: Metrics) -> Router {
    let options = HttpOptions { payload_limit: PAYLOAD_LIMIT, ..HttpOptions::default() };
    let services = grpc::router(Arc::clone(&engine), metrics.clone(), PAYLOAD_LIMIT);
    router(engine, metrics, options).merge(services)
}

/// Calls `work` on this thread, with a function that tells whether a line of its log so far has all given parts.
pub(crate) fn logged(work: impl AsyncFnOnce(&dyn Fn(&[&str]) -> bool)) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_span_events(FmtSpan::CLOSE)
        .with_writer(Arc::new(file.reopen().unwrap()));
    let said = |line: &[&str]| {
        let log = std::fs::read_to_string(file.path()).unwrap();
        log.lines().any(|it| line.iter().all(|part| it.contains(part)))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // If there were only one dispatcher, a test on another thread, which has none, could be asked whether it wants
    // these lines.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    tracing::subscriber::with_default(subscriber.finish(), || runtime.block_on(work(&said)));
}

/// A server on a loopback port, stopped when dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A server with the fake engine.
pub(crate) struct Server {
    pub(crate) engine: Arc<Fake>,
    running: Running,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with_health(Health::Ready)
    }

    pub(crate) fn with_health(health: Health) -> Self {
        Self::of(Fake::new(health))
    }

    pub(crate) fn with_model(model: ModelInfo) -> Self {
        Self::of(Fake::of(model, Health::Ready))
    }

    fn of(engine: Fake) -> Self {
        let engine = Arc::new(engine);
        let running = Running::start(routes(engine.clone()));
        Self { engine, running }
    }
}

impl Deref for Server {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Running {
        &mut self.running
    }
}

impl Running {
    /// Serves these routes from a thread of its own.
    pub(crate) fn start(router: Router) -> Self {
        let (stop, stopped) = oneshot::channel();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let stopped = async { stopped.await.unwrap_or_default() };
                let _ = serve([listener.into()], router, stopped, GRACE).await;
            });
        });
        Self { address, stop: Some(stop), thread: Some(thread) }
    }

    /// Tells the server to stop.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
    }

    /// Waits until the server has stopped.
    pub(crate) fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }

    pub(crate) fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Reply {
        self.send("POST", path, &[("content-type", "application/json")], body)
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], "")
    }

    /// One request on a connection of its own.
    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> Reply {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .timeout_global(Some(Duration::from_secs(20)))
            .build()
            .into();
        let mut request =
            ureq::http::Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = body.as_ref().to_vec();
        let reply = if body.is_empty() && method != "POST" {
            agent.run(request.body(()).unwrap())
        } else {
            agent.run(request.body(body).unwrap())
        };
        let mut reply = reply.unwrap();
        let body = reply.body_mut().with_config().limit(1 << 30).read_to_vec().unwrap();
        Reply { status: reply.status().as_u16(), headers: reply.headers().clone(), body }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What came back.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: ureq::http::HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("an answer is UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no header {name}")).to_str().unwrap()
    }
}

/// Value of a counter in Prometheus' text, 0 when it is not there.
pub(crate) fn counter(metrics: &str, name: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse().unwrap())
}

/// Checks an error of text-embeddings-inference's routes; `said` is part of its sentence.
#[track_caller]
pub(crate) fn assert_tei(what: &str, reply: &Reply, status: u16, error_type: &str, said: &str) {
    assert_eq!(reply.status, status, "{what}: {}", reply.text());
    assert_eq!(reply.header("content-type"), "application/json", "{what}");
    let body = reply.json();
    assert_eq!(body["error_type"], error_type, "{what}: {body}");
    let message = body["error"].as_str().unwrap_or_else(|| panic!("{what}: no `error` in {body}"));
    assert!(message.contains(said), "{what}: {message:?} does not say {said:?}");
    assert_eq!(body.as_object().unwrap().len(), 2, "{what}: {body}");
}

/// How a request is refused: the status, the type, and part of the sentence.
pub(crate) type Refusal<'a> = (u16, &'a str, &'a str);

/// The refusal of a body that has something wrong in it.
pub(crate) fn invalid(said: &str) -> Refusal<'_> {
    (422, "Validation", said)
}

/// The refusal of a body that lacks something to answer.
pub(crate) fn empty(said: &str) -> Refusal<'_> {
    (400, "Empty", said)
}

/// Checks that a route of text-embeddings-inference refuses each of these bodies.
#[track_caller]
pub(crate) fn refuses<const N: usize>(
    server: &Running,
    path: &str,
    bodies: [(impl ToString, Refusal<'_>); N],
) {
    for (body, (status, error_type, said)) in bodies {
        let body = body.to_string();
        let reply = server.post(path, &body);
        assert_tei(&format!("{path} {body:.80}"), &reply, status, error_type, said);
    }
}

/// Waits until `condition`, or fails after a time that is far too long.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what} did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}
