//! What all routes that run the model do between their protocol's request and their protocol's answer.

use std::{
    future::{Future, poll_fn},
    hash::{BuildHasher, Hasher, RandomState},
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::LazyLock,
    task::Poll,
    thread::available_parallelism,
    time::Instant,
};

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use tokio::sync::Semaphore;

use super::{error::ApiError, headers, metrics::Arity, target::Target, write::values_in};
use crate::{
    engine::{
        EngineError, InferRequest, InferResponse, Input, OutputKind, Pending, PromptName, Truncation, Usage,
    },
    request_span,
    tasks::{IfFull, infer_in_parts},
};

/// Answers with more values than this (about a millisecond of writing) are written on a blocking thread, so that other
/// connections of this thread need not wait.
const VALUES_WRITTEN_HERE: usize = 1 << 15;

/// What is asked about the inputs of a request, independent of any protocol.
pub(super) struct Question {
    /// Whether the inputs came as one or as a list.
    pub(super) arity: Arity,
    pub(super) output: OutputKind,
    /// `None`: the server's default.
    pub(super) truncation: Option<Truncation>,
    /// `None`: as long as the model takes.
    pub(super) max_input_length: Option<usize>,
    /// The prompt that is put before texts.
    pub(super) prompt_name: PromptName,
    /// The instruction by which pairs are judged, instead of the model's own.
    pub(super) instruction: Option<String>,
    /// The two fields of the body that the inputs come from, if they come from two.
    pub(super) sides: Option<Sides>,
    pub(super) received: Instant,
}

/// Two fields of a body: the inputs of the first come first.
#[derive(Clone, Copy)]
pub(super) struct Sides {
    pub(super) fields: [&'static str; 2],
    /// How many inputs the first field has.
    pub(super) firsts: usize,
}

impl Sides {
    /// An error that names the field of its input, and numbers inputs within that field.
    fn told(self, error: EngineError) -> ApiError {
        let mut field = None;
        let error = error.renumbered(|input| {
            let second = input.checked_sub(self.firsts);
            field = Some(self.fields[usize::from(second.is_some())]);
            second.unwrap_or(input)
        });
        match field {
            Some(field) => ApiError::from(error).of_field(field),
            None => error.into(),
        }
    }
}

impl Question {
    /// A question with the server's and the model's defaults for everything else.
    pub(super) fn new(arity: Arity, output: OutputKind, received: Instant) -> Self {
        let (truncation, max_input_length, instruction) = (None, None, None);
        let prompt_name = PromptName::Default;
        let sides = None;
        Self { arity, output, truncation, max_input_length, prompt_name, instruction, sides, received }
    }

    fn request(self, inputs: Vec<Input>) -> InferRequest {
        let Self { output, truncation, max_input_length, prompt_name, instruction, .. } = self;
        InferRequest {
            truncation,
            max_input_length,
            prompt_name,
            instruction: instruction.map(Into::into),
            ..InferRequest::new(inputs, output)
        }
    }
}

/// Asks the engine about `inputs`, and has `write` turn its answer into JSON. Dropping the future cancels the request.
pub(super) async fn answer(
    target: &Target,
    question: Question,
    inputs: Vec<Input>,
    write: impl FnOnce(&InferResponse) -> Result<Vec<u8>, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let (arity, sides, received) = (question.arity, question.sides, question.received);
    let request = question.request(inputs);
    let response = told(sides, || target.engine().infer(request));
    answer_with(target, arity, received, response, write).await
}

/// Like `answer`, for any number of `inputs`: the request is begun ([`Target::begun`]), and the engine asked in parts of
/// as many inputs as it takes. `if_full` applies to the first part.
pub(super) async fn answer_in_parts(
    target: Target,
    question: Question,
    inputs: impl Iterator<Item = Input> + Send,
    if_full: IfFull,
    write: impl FnOnce(&InferResponse) -> Result<Vec<u8>, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let target = target.begun()?;
    let (arity, sides, received) = (question.arity, question.sides, question.received);
    let request = question.request(Vec::new());
    let response = told(sides, || Box::pin(infer_in_parts(target.engine(), request, inputs, if_full)));
    answer_with(&target, arity, received, response, write).await
}

/// Counts a request, waits for its response and has it written.
async fn answer_with(
    target: &Target,
    arity: Arity,
    received: Instant,
    response: impl Future<Output = Result<InferResponse, ApiError>>,
    write: impl FnOnce(&InferResponse) -> Result<Vec<u8>, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    target.metrics().received(arity);
    let response = response.await?;
    let (usage, values, held) = (response.usage, values_in(&response.rows), target.planned());
    let write = move || {
        let _held = held; // even if the client goes meanwhile
        write(&response)
    };
    let body = written(values, write).await?;
    Ok(answered(target, arity, &usage, received, body))
}

/// The response with an answer's body: its headers report usage and timings, and it is counted when it goes out.
pub(super) fn answered(
    target: &Target,
    arity: Arity,
    usage: &Usage,
    received: Instant,
    body: Vec<u8>,
) -> Response {
    let total = received.elapsed();
    let (metrics, timings) = (target.metrics().clone(), usage.timings);
    let count = move || metrics.answered(arity, &timings, total);
    match target.planned() {
        // An answer that finds no room is dropped, and not counted.
        Some(planned) => planned.when_it_goes_out(count),
        None => count(),
    }
    request_span::took(&target.engine().info().model.name, usage);
    let headers = headers::of(usage, target.compute_type(), total);
    (headers, json(body)).into_response()
}

/// A body of JSON.
pub(super) fn json(body: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// The answer of an engine; with two `sides`, its errors name the field of their input.
async fn told<'a, T>(sides: Option<Sides>, ask: impl FnOnce() -> Pending<'a, T>) -> Result<T, ApiError> {
    let answer = even_if_it_panics(ask).await?;
    answer.map_err(|error| match sides {
        Some(sides) => sides.told(error),
        None => error.into(),
    })
}

/// The answer of an engine, or an error if it panics: otherwise the connection would close without an answer.
pub(crate) async fn caught<'a, T>(ask: impl FnOnce() -> Pending<'a, T>) -> Result<T, ApiError> {
    Ok(even_if_it_panics(ask).await??)
}

async fn even_if_it_panics<'a, T>(
    ask: impl FnOnce() -> Pending<'a, T>,
) -> Result<Result<T, EngineError>, ApiError> {
    let panicked = |_| ApiError::backend("inference failed: the engine panicked");
    // Unwind-safe: a future that has panicked is not polled again, and the engine looks after any state it shared.
    let mut answer = catch_unwind(AssertUnwindSafe(ask)).map_err(panicked)?;
    let polled = poll_fn(|cx| {
        let poll = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx)));
        poll.map_or_else(|panic| Poll::Ready(Err(panic)), |poll| poll.map(Ok))
    });
    polled.await.map_err(panicked)
}

/// Writes an answer of this many values: a small one here, a large one on a blocking thread.
pub(crate) async fn written<T: Send + 'static>(
    values: usize,
    write: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match values <= VALUES_WRITTEN_HERE {
        true => write(),
        false => elsewhere(write).await,
    }
}

/// Does long work on a blocking thread, at most one job per core at a time: more would finish no sooner, and the bytes
/// that a job produces are not counted until it is done.
pub(super) async fn elsewhere<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    static CORES: LazyLock<Semaphore> =
        LazyLock::new(|| Semaphore::new(available_parallelism().map_or(1, NonZeroUsize::get)));
    let core = CORES.acquire().await;
    let worked = tokio::task::spawn_blocking(move || {
        let _core = core; // even if the client goes meanwhile
        work()
    });
    let worked = worked.await;
    worked.map_err(|error| ApiError::backend(format!("writing the answer failed: {error}")))?
}

/// A new id for an answer of this kind. It is random: each of the standard library's random states has its own keys.
pub(super) fn new_id(kind: &str) -> String {
    format!("{kind}-{:016x}", RandomState::new().build_hasher().finish())
}
