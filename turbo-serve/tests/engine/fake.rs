//! A runner under the tests' control: it can be held before a batch, and told to fail or to panic.
//!
//! Its answer for a sequence is `[first id, number of tokens, sum of ids]`, per token `[id, position, 1]`, and per
//! selected token `[id, position]`.

use std::{
    future::Future,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use turbo_sched::{Candidate, Layout};
use turbo_serve::engine::{
    BatchTokens, Capacity, DeviceLost, Engine, EngineConfig, EngineError, HeldBytes, Infer, InferRequest,
    InferResponse, Input, Model, ModelInfo, OutputKind, Pending, Pooling, Progress, Prompts, RowLens, Rows,
    RunError, Runner, ScoreFunction, Sequence, StartError,
};

pub(crate) const HIDDEN_SIZE: usize = 3;
pub(crate) const MAX_INPUT_LENGTH: usize = 8;
/// A batch with this id fails.
pub(crate) const FAILS: u32 = 900;
/// A batch with this id panics.
pub(crate) const PANICS: u32 = 901;
/// A batch with this id panics, and the model cannot be built for the next time.
pub(crate) const BREAKS: u32 = 902;
/// A batch with this id loses the device.
pub(crate) const LOSES: u32 = 903;
/// A sequence with this id has a value too few in its rows.
pub(crate) const ONE_FEWER: u32 = 904;
/// A sequence with this id has a value too many.
pub(crate) const ONE_MORE: u32 = 905;
pub(crate) const VOCAB_SIZE: usize = 1000;
/// Nothing in these tests takes this long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// What tests and runner share.
#[derive(Default)]
pub(crate) struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Batches since the warm-up, as the first ids of their sequences.
    batches: Vec<Vec<u32>>,
    warm: bool,
    closed: bool,
    /// Batches that still pass while it is closed.
    tickets: usize,
    /// Whether reading a row waits.
    rows_wait: bool,
    /// Whether planning memory panics.
    plans_panic: bool,
    builds: usize,
    builds_fail: usize,
    /// Free bytes of the device; `None` if nothing limits them.
    free: Option<u64>,
    /// Free bytes of a device that several models share, from which each takes what it reserves.
    shared: Option<Arc<AtomicU64>>,
    /// Tokens of the largest batch that memory was taken for.
    reserved: usize,
    /// How long it takes to reserve memory, for batches of more than this many tokens.
    reserving: (Duration, usize),
}

impl State {
    fn passes(&mut self) -> bool {
        if !self.closed {
            return true;
        }
        let passes = self.tickets > 0;
        self.tickets -= usize::from(passes);
        passes
    }
}

impl Control {
    /// Lets no batch through from now on.
    pub(crate) fn close(&self) {
        self.change(|state| state.closed = true);
    }

    /// Lets this many batches through while it is closed; a batch that is held is the first of them.
    pub(crate) fn let_through(&self, batches: usize) {
        self.change(|state| state.tickets += batches);
    }

    /// Lets batches through again.
    pub(crate) fn open(&self) {
        self.change(|state| state.closed = false);
    }

    /// Makes reads of rows wait, or no longer.
    pub(crate) fn rows_wait(&self, wait: bool) {
        self.change(|state| state.rows_wait = wait);
    }

    /// Makes every plan of memory panic from now on.
    pub(crate) fn plans_panic(&self) {
        self.change(|state| state.plans_panic = true);
    }

    /// The batches since the warm-up, one that is held included.
    pub(crate) fn batches(&self) -> Vec<Vec<u32>> {
        self.state.lock().unwrap().batches.clone()
    }

    /// Waits until this many batches have started.
    pub(crate) fn wait_for_batches(&self, count: usize) {
        self.wait_until(|state| state.batches.len() >= count);
    }

    /// Gives the device this many free bytes.
    pub(crate) fn has_free(&self, bytes: u64) {
        self.change(|state| state.free = Some(bytes));
    }

    /// Gives the model a device that others may share, with this many free bytes.
    pub(crate) fn shares(&self, free: &Arc<AtomicU64>) {
        self.change(|state| state.shared = Some(Arc::clone(free)));
    }

    /// Makes reserving memory take this long, for batches of more tokens than `beyond`.
    pub(crate) fn takes_to_reserve(&self, time: Duration, beyond: usize) {
        self.change(|state| state.reserving = (time, beyond));
    }

    /// Tokens of the largest batch that memory was taken for.
    pub(crate) fn reserved(&self) -> usize {
        self.state.lock().unwrap().reserved
    }

    /// How often the runner was built.
    pub(crate) fn builds(&self) -> usize {
        self.state.lock().unwrap().builds
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn wait_until(&self, reached: impl Fn(&State) -> bool) {
        let state = self.state.lock().unwrap();
        let (state, timeout) =
            self.changed.wait_timeout_while(state, PATIENCE, |state| !reached(state)).unwrap();
        drop(state);
        assert!(!timeout.timed_out(), "waited in vain");
    }

    /// A batch that takes until the control is open, with a layer each millisecond; `false` when it was given up.
    fn passes(&self, keep_going: &mut dyn FnMut() -> bool) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while !self.state.lock().unwrap().passes() {
            assert!(Instant::now() < deadline, "waited in vain");
            if !keep_going() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    fn build(self: &Arc<Self>, capacity: Capacity) -> Result<Box<dyn Runner>, RunError> {
        let mut fails = false;
        self.change(|state| {
            state.builds += 1;
            fails = state.builds_fail > 0;
            state.builds_fail = state.builds_fail.saturating_sub(1);
        });
        if fails {
            return Err("no memory left".into());
        }
        self.reserve(capacity);
        Ok(Box::new(FakeRunner {
            control: Arc::clone(self),
            capacity,
            batch: Vec::new(),
            selected: Vec::new(),
            wanted: Vec::new(),
            stopped: false,
        }))
    }

    fn reserve(&self, capacity: Capacity) {
        let (time, beyond) = self.state.lock().unwrap().reserving;
        if capacity.total_tokens > beyond {
            std::thread::sleep(time);
        }
        self.change(|state| state.reserved = capacity.total_tokens);
    }
}

/// An error that has another one as its cause.
#[derive(Debug, thiserror::Error)]
#[error("not computed")]
struct WithCause(#[source] DeviceLost);

struct FakeRunner {
    control: Arc<Control>,
    capacity: Capacity,
    batch: Vec<Vec<u32>>,
    selected: Vec<Vec<u32>>,
    wanted: Vec<Option<Rows>>,
    stopped: bool,
}

impl Runner for FakeRunner {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn reserve(&mut self, capacity: Capacity) -> Result<(), RunError> {
        let bytes = |capacity: Capacity| (capacity.total_tokens * HIDDEN_SIZE * size_of::<f32>()) as u64;
        if let Some(shared) = &self.control.state.lock().unwrap().shared {
            shared.fetch_sub(bytes(capacity) - bytes(self.capacity), SeqCst);
        }
        self.control.reserve(capacity);
        self.capacity = capacity;
        Ok(())
    }

    fn held_bytes(&self) -> HeldBytes {
        let activations = self.capacity.total_tokens * 2 * HIDDEN_SIZE * size_of::<f32>();
        HeldBytes { weights: 5, activations }
    }

    fn free_bytes(&self) -> Option<u64> {
        let (free, shared) = {
            let state = self.control.state.lock().unwrap();
            (state.free, state.shared.clone())
        };
        let Some(shared) = shared else { return free };
        let free = shared.load(SeqCst);
        std::thread::sleep(Duration::from_millis(50)); // in which others may look, too
        Some(free)
    }

    fn footprint(&mut self, batch: &Candidate) -> usize {
        let panics = self.control.state.lock().unwrap().plans_panic;
        assert!(!panics, "an invariant of a plan broke");
        batch.total_tokens as usize * HIDDEN_SIZE * size_of::<f32>()
    }

    fn submit(
        &mut self,
        batch: &mut dyn Iterator<Item = Sequence<'_>>,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<(), RunError> {
        (self.batch, self.selected, self.wanted) = (Vec::new(), Vec::new(), Vec::new());
        for Sequence { input_ids, selected, rows, .. } in batch {
            self.batch.push(input_ids.to_vec());
            self.selected.push(selected.to_vec());
            self.wanted.push(rows);
        }
        let has = |id| self.batch.iter().flatten().any(|&x| x == id);
        let warm = self.control.state.lock().unwrap().warm;
        if warm {
            let firsts = self.batch.iter().map(|ids| ids[0]).collect();
            self.control.change(|state| state.batches.push(firsts));
            self.stopped = !self.control.passes(keep_going);
        }
        if warm && has(FAILS) {
            return Err("the device fell off the bus".into());
        }
        if warm && has(LOSES) {
            return Err(Box::new(WithCause(DeviceLost("the device is gone".into()))));
        }
        if warm && has(BREAKS) {
            self.control.change(|state| state.builds_fail = 1);
        }
        assert!(!(warm && (has(PANICS) || has(BREAKS))), "an invariant broke");
        Ok(())
    }

    fn poll(&mut self) -> Result<Progress, RunError> {
        Ok(if self.stopped { Progress::Stopped } else { Progress::Done })
    }

    fn read(&mut self, sequence: usize, rows: Rows, to: &mut Vec<f32>) -> Result<(), RunError> {
        assert!(
            self.wanted.contains(&None) || self.wanted.contains(&Some(rows)),
            "{rows:?} of {:?}",
            self.wanted
        );
        self.control.wait_until(|state| !state.rows_wait);
        let ids = &self.batch[sequence];
        if ids[0] == ONE_MORE {
            to.push(0.0);
        }
        match rows {
            Rows::Pooled => to.extend([ids[0] as f32, ids.len() as f32, ids.iter().sum::<u32>() as f32]),
            Rows::Tokens => {
                to.extend(ids.iter().enumerate().flat_map(|(i, &id)| [id as f32, i as f32, 1.0]));
            }
            Rows::Selected => {
                let row = |&at: &u32| [ids[at as usize] as f32, at as f32];
                to.extend(self.selected[sequence].iter().flat_map(row));
            }
        }
        if ids[0] == ONE_FEWER {
            to.pop();
        }
        Ok(())
    }
}

/// A configuration for quick tests: no budget for the warm-up beyond its first batch.
pub(crate) fn config() -> EngineConfig {
    EngineConfig {
        max_batch_tokens: BatchTokens::AtMost(64),
        warm_up: Duration::ZERO,
        ..EngineConfig::default()
    }
}

pub(crate) fn model(control: &Arc<Control>) -> Model {
    let control = Arc::clone(control);
    Model {
        info: info(),
        layout: Layout::Packed,
        tokenizer: None,
        padding_id: None,
        identity: None,
        fingerprint: None,
        build: Box::new(move |capacity| control.build(capacity)),
    }
}

/// A model that has rows of every kind.
fn info() -> ModelInfo {
    ModelInfo {
        model_id: "models/fake".into(),
        sha: None,
        name: "fake".into(),
        dtype: "float32",
        device: "test".into(),
        task: Pooling::Mean.into(),
        labels: Arc::default(),
        score_function: ScoreFunction::Identity,
        pair_score_function: ScoreFunction::Sigmoid,
        mask_token: None,
        prompts: Prompts::default(),
        takes_instruction: false,
        rows: RowLens { pooled: Some(HIDDEN_SIZE), tokens: Some(HIDDEN_SIZE), selected: Some(2) },
        max_input_length: MAX_INPUT_LENGTH,
        vocab_size: VOCAB_SIZE,
        type_vocab_size: 2,
    }
}

/// A warm engine, and the control over its runner.
pub(crate) fn start(config: &EngineConfig) -> (Engine, Arc<Control>) {
    let (engine, control) = try_start(config);
    (engine.unwrap(), control)
}

/// The same for a model that has this fingerprint.
pub(crate) fn start_as(fingerprint: &str, config: &EngineConfig) -> (Engine, Arc<Control>) {
    let control = Arc::new(Control::default());
    let model = Model { fingerprint: Some(fingerprint.into()), ..model(&control) };
    let engine = Engine::start(model, config).unwrap();
    warm(&control);
    (engine, control)
}

pub(crate) fn try_start(config: &EngineConfig) -> (Result<Engine, StartError>, Arc<Control>) {
    let control = Arc::new(Control::default());
    let engine = Engine::start(model(&control), config);
    warm(&control);
    (engine, control)
}

/// From now on the runner counts its batches and obeys: the warm-up is over.
pub(crate) fn warm(control: &Control) {
    control.change(|state| state.warm = true);
}

/// A request for pooled rows as the model leaves them.
pub(crate) fn request<const N: usize>(inputs: [&[u32]; N]) -> InferRequest {
    let inputs = inputs.map(|ids| Input::Ids(ids.to_vec())).to_vec();
    InferRequest::new(inputs, OutputKind::RAW)
}

/// Calls the engine without waiting: the request is under way when this returns.
pub(crate) fn begin(engine: &Engine, request: InferRequest) -> Pending<'_, InferResponse> {
    let mut pending = engine.infer(request);
    let first = pending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(first.is_pending(), "answered at once: {first:?}");
    pending
}

/// A request that holds the worker: its batch, of one input that begins with `id`, has begun and is not let through.
pub(crate) fn hold<'a>(engine: &'a Engine, control: &Control, id: u32) -> Pending<'a, InferResponse> {
    control.close();
    let begun = control.batches().len();
    let held = begin(engine, request([&[id]]));
    control.wait_for_batches(begun + 1);
    held
}

/// Waits for an answer, for a while.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, &mut future).await.expect("waited in vain") })
}

/// Asks and waits.
pub(crate) fn embed<const N: usize>(
    engine: &Engine,
    inputs: [&[u32]; N],
) -> Result<InferResponse, EngineError> {
    wait(engine.infer(request(inputs)))
}

/// The first values of the rows: by the fake's rule the first ids of the inputs.
pub(crate) fn firsts(response: &InferResponse) -> Vec<u32> {
    response.rows.iter().map(|row| row.values[0] as u32).collect()
}

/// Waits until `reached`, for a while.
pub(crate) fn eventually(reached: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < deadline, "waited in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a future is done already.
pub(crate) fn is_ready<F: Future + Unpin>(future: &mut F) -> bool {
    matches!(std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
}
