//! Limits on the bytes that a server holds at a time for all of its clients: of request bodies and of answers.
//!
//! A single request is bounded by the size limit of a body and by how large its answer can be. These limits bound what
//! many clients that send or read slowly take together.
//!
//! | | counted from | to | beyond the limit |
//! |---|---|---|---|
//! | bodies | the arrival of each piece; when it is unpacked, once more | the answer is made; in a gRPC stream, the answer to the message; for what is kept for the stream's end, the last answer | the request is refused |
//! | answers | the count of their tokens, before they are computed | the socket has taken them; over HTTP/2, the last piece is handed over | the request is refused |
//!
//! Until an answer is written, its rows and the bytes that will be written of them count ([`Planned`]); from then on,
//! its bytes do. If these are far more than was planned (the tokens of a text take fifty times its bytes) and there is
//! no room for them, the answer is dropped and the request refused: a request counts as answered only when its answer
//! goes out.
//!
//! Once half of the room is taken, a gRPC call that does not send the rest of a message, or does not end after its only
//! message, has the time limit of an HTTP body: nothing else would release what has arrived. Between messages a stream
//! may pause, since it holds nothing then. The exception is a stream that reserves much room for packed messages, or
//! keeps much of their content for its end, such as one whose texts are ranked together and returned.
//!
//! An answer that is read slowly keeps its room until its last byte is taken. Once half of the room is taken, it has
//! five minutes altogether, or the time that it needs at a thousand bytes a second if that is less.
//!
//! A packed gRPC message is unpacked inside the gRPC library, out of sight. Its unpacked size counts once it is known;
//! before that, the call reserves the most that it can become. The size of the largest message stays reserved until the
//! call ends, because the library's buffer for unpacking stays allocated.
//!
//! Only bytes that arrive, are unpacked or are sent count. For a while, what a body is parsed into takes a few times as
//! much: ids of one digit are two bytes of JSON and eight in memory.
//!
//! What HTTP/2 holds of an answer that its client does not read [cannot be released](super::answer), and does not
//! count: otherwise one client could have other requests refused for as long as it likes.

mod framing;
mod incoming;
mod messages;
mod outgoing;
mod planned;
mod tally;

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, HttpBody},
    extract::{Request, State},
    http::{Method, Uri, Version},
    middleware::{self, Next},
    response::Response,
};
use metrics::{counter, gauge};

pub(crate) use messages::Arrived;
pub(crate) use planned::Planned;
pub(super) use tally::Room;
pub(crate) use tally::{Held, NoRoom};

use self::{framing::Framing, incoming::Incoming, outgoing::Outgoing, tally::Tally};
use super::answer::is_one_piece;
use crate::{
    engine::available_bytes,
    grpc,
    http::{ApiError, Failure, refused, turn_away},
    metric_names::{ANSWER_BYTES, BODY_BYTES, ERR, REQUEST_FAILURE},
    request_span,
};

/// Most bytes that are held at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightLimits {
    /// Of bodies.
    pub bodies: usize,
    /// Of answers.
    pub answers: usize,
}

impl InFlightLimits {
    /// Defaults for this machine: of the memory that is free now, a 32nd for bodies, which may be parsed into a few
    /// times as much, and a 16th for answers; each at least eight times `payload_limit`.
    #[must_use]
    pub fn of_this_machine(payload_limit: usize) -> Self {
        let free = available_bytes().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(16 << 30);
        let least = payload_limit.saturating_mul(8);
        Self { bodies: (free / 32).max(least), answers: (free / 16).max(least) }
    }
}

/// Bounds the bytes that all routes of `router` hold together.
pub fn bounded(router: Router, limits: InFlightLimits) -> Router {
    let in_flight = InFlight {
        bodies: Tally::new(limits.bodies, "bodies", "--max-body-bytes-in-flight", gauge!(BODY_BYTES)),
        answers: Tally::new(
            limits.answers,
            "answers that were not read yet",
            "--max-answer-bytes-in-flight",
            gauge!(ANSWER_BYTES),
        ),
    };
    router.layer(middleware::from_fn_with_state(in_flight, count))
}

/// The bytes held of both kinds.
#[derive(Clone)]
struct InFlight {
    bodies: Arc<Tally>,
    answers: Arc<Tally>,
}

async fn count(State(in_flight): State<InFlight>, request: Request, next: Next) -> Response {
    let InFlight { bodies, answers } = in_flight;
    // Health checks and metrics are small, and have to be answered in any case.
    let asks = request.method() == Method::POST && !grpc::is_public(request.uri().path());
    if asks && answers.is_full() {
        return turn_away(request, ApiError::from(answers.no_room())).await;
    }
    let over_http2 = request.version() == Version::HTTP_2;
    let path = asks.then(|| request.uri().clone());
    let planned = Planned::among(&answers);
    let arrived = Arrived { messages: Arc::default(), bodies: Arc::clone(&bodies), planned: planned.clone() };
    let (mut head, body) = request.into_parts();
    // On any other path a body is a single message, whatever its content type says: its bytes contain no message heads.
    let is_call = grpc::is_call(&head.headers) && grpc::is_service(head.uri.path());
    let framing = is_call.then(Framing::default);
    let body = Incoming::new(body, &bodies, &arrived.messages, framing);
    head.extensions.insert(arrived.clone());
    let answer = next.run(Request::from_parts(head, Body::new(body))).await;
    // A gRPC call whose answer is a stream goes on with its own clone.
    drop(arrived);
    if over_http2 && is_one_piece(answer.body()) {
        planned.goes_out();
        return answer;
    }
    let exact = answer.body().size_hint().exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let announced = match (path, exact) {
        (Some(path), Some(bytes)) => match planned.becomes(bytes) {
            Ok(announced) => announced,
            Err(error) => return instead_of(&answer, &path, ApiError::from(error)),
        },
        (None, Some(bytes)) => answers.add(bytes),
        (_, None) => planned.take(),
    };
    planned.goes_out();
    let mut answer = answer.map(|body| Body::new(Outgoing { announced, body }));
    answer.extensions_mut().insert(Room(answers));
    answer
}

/// The refusal that is sent instead of an answer for which there is no room.
fn instead_of(answer: &Response, uri: &Uri, error: ApiError) -> Response {
    let (path, Failure(reason)) = (uri.path(), error.failure());
    counter!(REQUEST_FAILURE, ERR => reason).increment(1);
    let id = request_span::id(answer.headers()).and_then(|id| id.to_str().ok());
    tracing::debug!(path, id, reason, "an answer is given up");
    let mut refusal = refused(path, error);
    request_span::copy_id(answer.headers(), refusal.headers_mut());
    refusal
}

#[cfg(test)]
mod tests;
