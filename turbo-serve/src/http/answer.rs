//! What every embedding route does between its protocol's request and its protocol's answer.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    task::Poll,
    time::Instant,
};

use axum::{
    http::header,
    response::{IntoResponse, Response},
};

use super::{
    error::ApiError,
    headers,
    inputs::Inputs,
    metrics::Arity,
    router::Server,
    write::{NotFinite, values_in},
};
use crate::engine::{EmbedRequest, EmbedResponse, OutputKind, Pending, Truncation};

/// Answers with more values than this (about a millisecond of writing) are written on a thread of their own, so that
/// other connections of this thread need not wait.
const VALUES_WRITTEN_HERE: usize = 1 << 15;

/// A request in the words of no protocol.
pub(super) struct Question {
    pub(super) inputs: Inputs,
    pub(super) output: OutputKind,
    /// `None` is the server's default.
    pub(super) truncation: Option<Truncation>,
    pub(super) received: Instant,
}

/// Has the engine answer, and `write` put the answer into JSON. Dropping the future withdraws the request.
pub(super) async fn answer(
    server: &Server,
    question: Question,
    write: impl FnOnce(&EmbedResponse) -> Result<Vec<u8>, NotFinite> + Send + 'static,
) -> Result<Response, ApiError> {
    let Question { inputs, output, truncation, received } = question;
    let (arity, inputs) = match inputs {
        Inputs::Single(input) => (Arity::Single, vec![input]),
        Inputs::Batch(inputs) => (Arity::Batch, inputs),
    };
    server.metrics().received(arity);
    let response = caught(|| server.engine().embed(EmbedRequest { inputs, output, truncation })).await?;
    let (response, body) = written(response, write).await?;
    let total = received.elapsed();
    server.metrics().answered(arity, &response.timings, total);
    let headers = headers::of(&response, server.compute_type(), total);
    Ok((headers, [(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// The answer of an engine, be it that it panics: else the connection would end without a word.
async fn caught<'a>(embed: impl FnOnce() -> Pending<'a>) -> Result<EmbedResponse, ApiError> {
    let panicked = |_| ApiError::backend("inference failed: the engine panicked");
    // A future that has panicked is not polled again, and what it shared with others is the engine's to look after.
    let mut answer = catch_unwind(AssertUnwindSafe(embed)).map_err(panicked)?;
    let polled = poll_fn(|cx| {
        let poll = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx)));
        poll.map_or_else(|panic| Poll::Ready(Err(panic)), |poll| poll.map(Ok))
    });
    Ok(polled.await.map_err(panicked)??)
}

/// Writes small answers at once and large ones elsewhere; gives the response back for its headers.
async fn written(
    response: EmbedResponse,
    write: impl FnOnce(&EmbedResponse) -> Result<Vec<u8>, NotFinite> + Send + 'static,
) -> Result<(EmbedResponse, Vec<u8>), ApiError> {
    let (response, body) = if values_in(&response.rows) <= VALUES_WRITTEN_HERE {
        let body = write(&response);
        (response, body)
    } else {
        let writing = tokio::task::spawn_blocking(move || {
            let body = write(&response);
            (response, body)
        });
        writing.await.map_err(|error| ApiError::backend(format!("writing the answer failed: {error}")))?
    };
    let body = body.map_err(|error| ApiError::backend(error.to_string()))?;
    Ok((response, body))
}
