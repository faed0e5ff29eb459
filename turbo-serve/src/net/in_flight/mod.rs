//! How many bytes a server holds at a time for all of its clients: of bodies that come, and of answers that go.
//!
//! Each client alone is bounded, by what a body may have and by what an answer to it can be; many of them that send or read
//! slowly are bounded by this.
//!
//! | | counted from | to | beyond the limit |
//! |---|---|---|---|
//! | bodies | each piece as it comes, and once more as it is unpacked | the answer is made; in a stream of gRPC, that to its message; what is kept of it for the end, that | the request is refused |
//! | answers | their tokens are counted, before they are computed | the socket has taken them, HTTP/2 the last piece | the request is refused |
//!
//! Until an answer is written, it counts with its rows and what will be written of them ([`Planned`]); from then on with its
//! bytes. Where those are far more than was planned (the tokens of a text are fifty times its bytes) and there is no
//! room for them, the answer is given up and the request refused: a request counts as answered when its answer goes
//! out.
//!
//! A client of gRPC that does not send the rest of a message, or does not end a call whose only message is here, has
//! the time that a body of HTTP has once half of the room is taken: nothing else would release what has come. Between
//! its messages a stream may rest, as it holds nothing then. The exceptions are streams that keep much room for
//! compressed messages, or much of their texts for the end, as those whose texts are ranked together and given back.
//!
//! An answer that is taken slowly keeps its room to its last byte: once half of the room is taken it has five minutes
//! altogether, or as long as a thousand bytes a second make it if that is less.
//!
//! A compressed message of gRPC is unpacked inside the library: it counts once its bytes are known, and before that its
//! call holds the most that it may unpack to. The room of the largest stays with the call, as the library's buffer
//! does.
//!
//! What is counted is bytes as they come, unpack and go. What is made of a body is a few times as much for a while: ids
//! of one digit are two bytes of JSON and eight in memory.
//!
//! What HTTP/2 holds of an answer that its client does not read is [out of reach](super::answer), and not counted: others
//! would be refused for as long as that client likes.

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
    /// What suits this machine: of the memory that is free now a 32nd for bodies, of which a few times as much may be made,
    /// and a 16th for answers; but room for some bodies of `payload_limit`.
    #[must_use]
    pub fn of_this_machine(payload_limit: usize) -> Self {
        let free = available_bytes().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(16 << 30);
        let least = payload_limit.saturating_mul(8);
        Self { bodies: (free / 32).max(least), answers: (free / 16).max(least) }
    }
}

/// Has all routes hold no more than that.
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

/// What is held of both.
#[derive(Clone)]
struct InFlight {
    bodies: Arc<Tally>,
    answers: Arc<Tally>,
}

async fn count(State(in_flight): State<InFlight>, request: Request, next: Next) -> Response {
    let InFlight { bodies, answers } = in_flight;
    // Who looks how the server is asks for little, and has to be answered.
    let asks = request.method() == Method::POST && !grpc::is_public(request.uri().path());
    if asks && answers.is_full() {
        return turn_away(request, ApiError::from(answers.no_room())).await;
    }
    let over_http2 = request.version() == Version::HTTP_2;
    let path = asks.then(|| request.uri().clone());
    let planned = Planned::among(&answers);
    let arrived = Arrived { messages: Arc::default(), bodies: Arc::clone(&bodies), planned: planned.clone() };
    let (mut head, body) = request.into_parts();
    // On any other path a body is one, whatever its head says: its bytes are no heads of messages.
    let is_call = grpc::is_call(&head.headers) && grpc::is_service(head.uri.path());
    let framing = is_call.then(Framing::default);
    let body = Incoming::new(body, &bodies, &arrived.messages, framing);
    head.extensions.insert(arrived.clone());
    let answer = next.run(Request::from_parts(head, Body::new(body))).await;
    // A call of gRPC whose answer is a stream has its own handle, and goes on with it.
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

/// The response to a request whose answer is given up.
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
