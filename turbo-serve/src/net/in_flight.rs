//! How many bytes a server holds at a time for all of its clients: of bodies that come, and of answers that go.
//!
//! Each client alone is bounded, by what a body may have and by what an answer to it can be; many of them that send or read
//! slowly are bounded by this.
//!
//! | | counted from | to | beyond the limit |
//! |---|---|---|---|
//! | bodies | each piece as it comes, and once more as it is unpacked | the answer is made; in a stream of gRPC, that to its message | who sends is refused |
//! | answers | their tokens are counted, before they are computed | the socket has taken them, HTTP/2 the last piece | who asks is refused |
//!
//! Until an answer is written, it counts with its rows and what will be written of them ([`Planned`]); from then on with its
//! bytes. Where those turned out to be far more than was planned (who asks for the tokens of a text gets fifty times its
//! bytes), and there is no room for them, it is given up, and who asked is refused.
//!
//! Who calls over gRPC and does not send the rest of a message, or does not end a call whose only message is here, has the
//! time that a body of HTTP has ([`patience`]) once half of the room is taken: nobody else would let go of what has come.
//! Between its messages a stream may rest, for it holds nothing then; but for one with large packed messages, of which the
//! room to unpack the largest is kept.
//!
//! A packed message of gRPC is unpacked where nobody can look on: it counts once its bytes are known, and before that its
//! call holds the most that can become of it. The call does so to its end, for what gRPC unpacks in stays with it.
//!
//! What is counted is bytes as they come, unpack and go. What is made of a body is a few times as much for a while: ids
//! of one digit are two bytes of JSON and eight in memory.
//!
//! What HTTP/2 holds of an answer that its client does not read is [out of reach](super::answer), and not counted: others
//! would be refused for as long as that client likes.

use std::{
    collections::VecDeque,
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    BoxError, Router,
    body::{Body, Bytes, HttpBody},
    extract::{Request, State},
    http::{Method, Uri, Version},
    middleware::{self, Next},
    response::Response,
};
use hyper::body::{Frame, SizeHint};
use metrics::{Gauge, counter, gauge};
use tokio::time::{Instant, Sleep, sleep_until};

use super::answer::is_one_piece;
use crate::{
    engine::{AnswerRoom, EngineError, HoldAnswers, available_bytes},
    grpc,
    http::{ApiError, Failure, patience, refused, too_slow, turn_away},
    metric_names::{ADMISSION_REFUSALS, ANSWER_BYTES, BODY_BYTES, ERR, REASON, REQUEST_FAILURE, refusal},
    request_span,
};

/// An answer may have so many bytes more than were planned before it is looked whether there is room for them: such
/// answers are as many as are worked on at a time.
const MORE_THAN_PLANNED: usize = 64 << 10;

/// Most bytes that one of DEFLATE's becomes.
const MOST_UNPACKED: usize = 1032;

/// Room for packed messages that a stream may keep while it rests.
const MUCH_UNPACKED: usize = 64 << 10;

/// When it is worth asking again: nobody knows when a client will read on.
const RETRY_AFTER: Duration = Duration::from_secs(1);

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
    let framing = grpc::is_call(&head.headers).then(Framing::default);
    let body = Incoming {
        body,
        coming: bodies.add(0),
        unpacking: bodies.add(0),
        whole: Arc::downgrade(&arrived.messages),
        framing,
        wait: None,
        is_refused: false,
    };
    head.extensions.insert(arrived.clone());
    let answer = next.run(Request::from_parts(head, Body::new(body))).await;
    // A call of gRPC whose answer is a stream has its own handle, and goes on with it.
    drop(arrived);
    if over_http2 && is_one_piece(answer.body()) {
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
    answer.map(|body| Body::new(Outgoing { announced, body }))
}

/// What whoever asked gets where his answer is given up.
fn instead_of(answer: &Response, uri: &Uri, error: ApiError) -> Response {
    let (path, Failure(reason)) = (uri.path(), error.failure());
    counter!(REQUEST_FAILURE, ERR => reason).increment(1);
    let id = request_span::id(answer.headers()).and_then(|id| id.to_str().ok());
    tracing::debug!(path, id, reason, "an answer is given up");
    let mut refusal = refused(path, error);
    request_span::copy_id(answer.headers(), refusal.headers_mut());
    refusal
}

/// Bytes of one kind.
struct Tally {
    held: AtomicUsize,
    limit: usize,
    what: &'static str,
    flag: &'static str,
    gauge: Gauge,
}

/// So many of them, until this is dropped.
pub(crate) struct Held {
    tally: Arc<Tally>,
    bytes: usize,
}

/// Why no more are taken.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the server holds {held} bytes of {what}, and takes no more than {limit} (`{flag}`): retry in {} s",
    RETRY_AFTER.as_secs()
)]
pub(crate) struct NoRoom {
    held: usize,
    what: &'static str,
    limit: usize,
    flag: &'static str,
}

impl NoRoom {
    /// When it is worth asking again.
    pub(crate) fn retry_after() -> Duration {
        RETRY_AFTER
    }

    /// The one that made reading a body fail, if one did.
    pub(crate) fn behind<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let mut causes = std::iter::successors(Some(error), |&error| error.source());
        causes.find_map(|error| error.downcast_ref())
    }
}

impl Tally {
    fn new(limit: usize, what: &'static str, flag: &'static str, gauge: Gauge) -> Arc<Self> {
        gauge.set(0.0);
        Arc::new(Self { held: 0.into(), limit, what, flag, gauge })
    }

    fn is_full(&self) -> bool {
        self.held.load(Relaxed) >= self.limit
    }

    /// Whether others may soon be refused.
    fn is_pressed(&self) -> bool {
        self.held.load(Relaxed) >= self.limit / 2
    }

    /// Counts what is there in any case.
    fn add(self: &Arc<Self>, bytes: usize) -> Held {
        self.held.fetch_add(bytes, Relaxed);
        self.gauge.increment(bytes as f64);
        Held { tally: Arc::clone(self), bytes }
    }

    /// Counts what can still be refused.
    fn take(self: &Arc<Self>, bytes: usize) -> Result<Held, NoRoom> {
        let taken = self.add(bytes);
        if self.held.load(Relaxed) > self.limit {
            drop(taken);
            return Err(self.no_room());
        }
        Ok(taken)
    }

    /// Whether an answer of so many bytes could ever be held.
    fn check_answer(&self, bytes: usize) -> Result<(), EngineError> {
        let limit = self.limit;
        if bytes > limit { Err(EngineError::AnswerTooLarge { bytes, limit }) } else { Ok(()) }
    }

    /// Counts `more` bytes of an answer that has `bytes` with them.
    fn take_for_answer(self: &Arc<Self>, bytes: usize, more: usize) -> Result<Held, EngineError> {
        self.check_answer(bytes)?;
        let limit = self.limit;
        let no_room = |NoRoom { held, .. }| EngineError::NoRoomForAnswer {
            bytes,
            held,
            limit,
            retry_after: RETRY_AFTER,
        };
        self.take(more).map_err(no_room)
    }

    fn no_room(&self) -> NoRoom {
        counter!(ADMISSION_REFUSALS, REASON => refusal::BYTES).increment(1);
        let Self { what, limit, flag, .. } = *self;
        NoRoom { held: self.held.load(Relaxed), what, limit, flag }
    }
}

impl Held {
    /// So many of them apart, or all there are.
    fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { tally: Arc::clone(&self.tally), bytes }
    }

    /// Both together.
    fn join(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// So many of them from now on.
    fn resize(&mut self, bytes: usize) {
        drop(self.split(self.bytes.saturating_sub(bytes)));
        self.join(self.tally.add(bytes - self.bytes));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.tally.held.fetch_sub(self.bytes, Relaxed);
        self.tally.gauge.decrement(self.bytes as f64);
    }
}

/// What has come of a body and is held, message by message, until it is answered.
#[derive(Default)]
struct Messages {
    held: Mutex<VecDeque<Held>>,
    /// Then nothing is held of what follows: it is read to be thrown away.
    are_discarded: AtomicBool,
    /// Most bytes of a message that comes packed, in a call that somebody unpacks.
    unpacked_limit: AtomicUsize,
    /// The most that one has become so far.
    unpacked: AtomicUsize,
}

impl Messages {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, message: Held) {
        self.lock().push_back(message);
    }

    /// Whether there is none that whoever answers has still to take.
    fn are_taken(&self) -> bool {
        self.lock().is_empty()
    }

    fn are_discarded(&self) -> bool {
        self.are_discarded.load(Relaxed)
    }

    /// Most bytes that so many packed ones become.
    fn unpack_to(&self, bytes: usize) -> usize {
        bytes.saturating_mul(MOST_UNPACKED).min(self.unpacked_limit.load(Relaxed))
    }
}

/// What has come of a request and was not answered yet, and what is held of its answer; with the request, for whoever
/// answers it piece by piece.
#[derive(Clone)]
pub(crate) struct Arrived {
    messages: Arc<Messages>,
    bodies: Arc<Tally>,
    planned: Planned,
}

impl Arrived {
    /// The next message of a stream of gRPC, which is read no sooner than it is here.
    pub(crate) fn message(&self) -> Option<Held> {
        self.messages.lock().pop_front()
    }

    /// So many bytes came out of a packed body.
    pub(crate) fn unpacked(&self, bytes: usize) -> Result<(), NoRoom> {
        if !self.messages.are_discarded() {
            self.messages.keep(self.bodies.take(bytes)?);
        }
        Ok(())
    }

    /// From now on messages of gRPC that come packed become no more than that, each.
    pub(crate) fn unpacks_to(&self, limit: usize) {
        self.messages.unpacked_limit.store(limit, Relaxed);
    }

    /// So many bytes the next message of gRPC has, even if it came packed.
    pub(crate) fn unpacked_message(&self, bytes: usize) -> Result<(), NoRoom> {
        if let Some(message) = self.messages.lock().front_mut()
            && bytes > message.bytes
        {
            self.messages.unpacked.fetch_max(bytes, Relaxed);
            message.join(self.bodies.take(bytes - message.bytes)?);
        }
        Ok(())
    }

    /// Lets go of all that has come; what follows is thrown away as it comes.
    pub(crate) fn discard(&self) {
        self.messages.are_discarded.store(true, Relaxed);
        self.messages.lock().clear();
    }

    /// The answer to it, until it is written.
    pub(crate) fn planned(&self) -> Planned {
        self.planned.clone()
    }

    /// The answer to one message of a stream, until it is written.
    pub(crate) fn planned_of_message(&self) -> Planned {
        Planned::among(&self.planned.0.answers)
    }

    /// How many answers of so many values at most may be made for one stream at a time: what they take leaves room for
    /// others.
    pub(crate) fn at_once(&self, values: usize, written: usize) -> usize {
        let share = self.planned.0.answers.limit / STREAMS_SHARE;
        (share / values.saturating_mul(size_of::<f32>() + written).max(1)).max(1)
    }
}

/// Of all answers together those of one stream may be one part in so many.
const STREAMS_SHARE: usize = 4;

/// An answer that is not written yet, as it is held for one who asks; clones are the same. An engine holds its rows as soon
/// as it knows how many there will be.
#[derive(Clone, Debug)]
pub(crate) struct Planned(Arc<Plan>);

struct Plan {
    answers: Arc<Tally>,
    held: Mutex<Held>,
    /// Bytes that are written of a value.
    written: AtomicUsize,
}

impl Planned {
    fn among(answers: &Arc<Tally>) -> Self {
        Self(Arc::new(Plan {
            answers: Arc::clone(answers),
            held: Mutex::new(answers.add(0)),
            written: 0.into(),
        }))
    }

    /// From now on so many bytes are written of each value, beside its row.
    pub(crate) fn written_in(&self, bytes: usize) {
        self.0.written.store(bytes, Relaxed);
    }

    /// Whether an answer of so many values could ever be held; for one that is computed in parts, before the first of them.
    pub(crate) fn check(&self, values: usize) -> Result<(), EngineError> {
        self.0.answers.check_answer(self.0.bytes(values))
    }

    /// Where engines have it held.
    pub(crate) fn room(&self) -> AnswerRoom {
        AnswerRoom::of(self.0.clone())
    }

    /// Holds an answer that has so many bytes now, if there is room for it: for little more than was planned in any case.
    pub(crate) fn fits(&self, bytes: usize) -> Result<(), EngineError> {
        let mut held = self.0.lock();
        let more = bytes.saturating_sub(held.bytes);
        if more > MORE_THAN_PLANNED {
            let more = self.0.answers.take_for_answer(bytes, more)?;
            held.join(more);
        }
        Ok(())
    }

    /// The same, for as long as the result lives; nothing is left here.
    pub(crate) fn becomes(&self, bytes: usize) -> Result<Held, EngineError> {
        self.fits(bytes)?;
        let mut held = self.take();
        held.resize(bytes);
        Ok(held)
    }

    /// What is held so far; nothing is left here.
    fn take(&self) -> Held {
        std::mem::replace(&mut self.0.lock(), self.0.answers.add(0))
    }
}

impl Plan {
    /// What so many values take, and what is written of them.
    fn bytes(&self, values: usize) -> usize {
        values.saturating_mul(size_of::<f32>() + self.written.load(Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HoldAnswers for Plan {
    fn let_go(&self, values: usize) {
        drop(self.lock().split(self.bytes(values)));
    }

    fn hold(&self, values: usize) -> Result<(), EngineError> {
        let more = self.bytes(values);
        let mut held = self.lock();
        let bytes = held.bytes.saturating_add(more);
        held.join(self.answers.take_for_answer(bytes, more)?);
        Ok(())
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("bytes", &self.lock().bytes).finish_non_exhaustive()
    }
}

/// The body of a request.
struct Incoming {
    body: Body,
    /// What has come of a message that is not whole.
    coming: Held,
    /// Room for the largest of its messages that came packed.
    unpacking: Held,
    /// Where what is whole is kept until it is answered, for as long as somebody means to.
    whole: Weak<Messages>,
    /// Of a call of gRPC; any other body is one message.
    framing: Option<Framing>,
    /// While more of what is held has to come; only calls of gRPC have nobody else who looks after that.
    wait: Option<Wait>,
    /// Then what follows is read to be thrown away.
    is_refused: bool,
}

/// A wait for more of a message.
struct Wait {
    began: Instant,
    limit: Pin<Box<Sleep>>,
    /// At the limit it has dripped for so long, if that is why there is one.
    drips_for: Option<Duration>,
}

impl Wait {
    /// For more than so many bytes.
    fn begin(got: usize) -> Self {
        let began = Instant::now();
        let (until, drips_for) = patience(began, got);
        Self { began, limit: Box::pin(sleep_until(until)), drips_for }
    }

    /// The same when something has come, and there are so many.
    fn goes_on(mut self, got: usize) -> Self {
        let (until, drips_for) = patience(self.began, got);
        self.limit.as_mut().reset(until);
        Self { drips_for, ..self }
    }
}

impl Incoming {
    fn count(&mut self, data: &[u8]) -> Result<(), BoxError> {
        let whole = self.whole.upgrade();
        if self.is_refused || whole.as_ref().is_some_and(|whole| whole.are_discarded()) {
            return Ok(());
        }
        let more = self.take(data.len())?;
        self.coming.join(more);
        let ended = match &mut self.framing {
            Some(framing) => framing.ends(data),
            None => vec![Ended { bytes: data.len(), is_packed: false }],
        };
        // A call with one message can send others for ever: they do not begin its time anew.
        let same = ended.is_empty() || whole.as_ref().is_some_and(|whole| !whole.are_taken());
        for Ended { bytes, is_packed } in ended {
            let message = self.coming.split(bytes);
            let Some(whole) = &whole else { continue };
            if is_packed {
                let more = self.take(whole.unpack_to(bytes).saturating_sub(self.unpacking.bytes))?;
                self.unpacking.join(more);
            }
            whole.keep(message);
        }
        self.wait = self.wait.take().filter(|_| same).map(|wait| wait.goes_on(self.coming.bytes));
        Ok(())
    }

    /// Counts more, or refuses who sends it.
    fn take(&mut self, bytes: usize) -> Result<Held, BoxError> {
        self.coming.tally.take(bytes).map_err(|no_room| -> BoxError {
            self.is_refused = true;
            match self.framing {
                Some(_) => Box::new(grpc::status(&ApiError::from(no_room))),
                None => Box::new(no_room),
            }
        })
    }

    /// Lets go of the room for packed messages that none of those so far has taken. Those of a stream are taken before more
    /// is asked for, so by then it is known what they became.
    fn settle_unpacking(&mut self) {
        if let Some(whole) = self.whole.upgrade().filter(|whole| whole.are_taken()) {
            let free = self.unpacking.bytes.saturating_sub(whole.unpacked.load(Relaxed));
            drop(self.unpacking.split(free));
        }
    }

    /// Whether something is held for which more has to come: half a message, a whole one whose call does not end, or much
    /// room for packed ones, of which there may be no more.
    fn is_unfinished(&self) -> bool {
        let waits = || self.whole.upgrade().is_some_and(|whole| !whole.are_taken());
        self.framing.is_some() && (self.coming.bytes > 0 || self.unpacking.bytes > MUCH_UNPACKED || waits())
    }

    /// Ends with an error when something is held of which nothing more comes, or too slowly, and others may need its room. A
    /// stream may stand still through no fault of its client: where others of its connection are not read, the window that
    /// they share is gone.
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<BoxError> {
        self.settle_unpacking();
        if !self.is_unfinished() {
            return Poll::Pending;
        }
        let got = self.coming.bytes;
        loop {
            let wait = self.wait.get_or_insert_with(|| Wait::begin(got));
            ready!(wait.limit.as_mut().poll(cx));
            if self.coming.tally.is_pressed() {
                break;
            }
            self.wait = None;
        }
        let wait = self.wait.as_ref().expect("its limit was reached");
        let why = too_slow(got, wait.drips_for);
        drop((self.coming.split(got), self.unpacking.split(usize::MAX)));
        self.wait = None;
        Poll::Ready(Box::new(grpc::unfinished(&why)))
    }
}

impl HttpBody for Incoming {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(frame)) => frame,
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => return self.poll_wait(cx).map(|error| Some(Err(error))),
        };
        let counted = frame.map_err(BoxError::from).and_then(|frame| {
            let counted = frame.data_ref().map_or(Ok(()), |data| self.count(data));
            counted.map(|()| frame)
        });
        Poll::Ready(Some(counted))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A message that is whole.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    /// With its head.
    bytes: usize,
    is_packed: bool,
}

/// Where messages of gRPC end: before each stand a byte that says whether it is packed, and four of its length.
#[derive(Default)]
struct Framing {
    head: Vec<u8>,
    /// Bytes of the message that are still to come, once its head is there.
    left: usize,
}

impl Framing {
    const HEAD: usize = 5;

    /// All messages that end in this piece.
    fn ends(&mut self, mut data: &[u8]) -> Vec<Ended> {
        let mut ended = Vec::new();
        while !data.is_empty() {
            if self.head.len() < Self::HEAD {
                self.head.push(data[0]);
                data = &data[1..];
                self.left = self.len();
            } else {
                let taken = self.left.min(data.len());
                self.left -= taken;
                data = &data[taken..];
            }
            if self.head.len() == Self::HEAD && self.left == 0 {
                ended.push(Ended { bytes: Self::HEAD + self.len(), is_packed: self.head[0] != 0 });
                self.head.clear();
            }
        }
        ended
    }

    /// What the head says.
    fn len(&self) -> usize {
        let len = self.head.get(1..Self::HEAD).and_then(|len| len.try_into().ok());
        len.map_or(0, |len| u32::from_be_bytes(len) as usize)
    }
}

/// The body of an answer.
struct Outgoing {
    body: Body,
    /// What is known of it before it is read.
    announced: Held,
}

/// Bytes on their way: they are counted for as long as anybody has a part of them, and who sends them drops the last part
/// when the socket has taken it.
struct Counted {
    data: Bytes,
    #[expect(dead_code, reason = "held until the bytes are dropped")]
    held: Held,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let announced = &mut self.announced;
        let counted = |data: Bytes| {
            let mut held = announced.split(data.len());
            held.join(announced.tally.add(data.len() - held.bytes));
            Bytes::from_owner(Counted { data, held })
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(counted))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::poll_fn, time::Instant};

    use axum::{
        http::StatusCode,
        routing::{get, post},
    };
    use futures_util::{FutureExt, StreamExt, stream};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };
    use tower::ServiceExt;

    use super::*;
    use crate::net::{GRACE, serve};

    fn tally(limit: usize) -> Arc<Tally> {
        Tally::new(limit, "things", "--most", Gauge::noop())
    }

    #[test]
    fn what_is_dropped_is_given_back() {
        let tally = tally(10);
        let mut held = tally.take(7).unwrap();
        assert!(tally.take(4).is_err() && !tally.is_full());
        held.join(tally.take(3).unwrap());
        assert!(tally.is_full());
        let part = held.split(4);
        drop(held);
        assert_eq!(tally.held.load(Relaxed), 4);
        drop((part, tally.add(100)));
        assert_eq!(tally.held.load(Relaxed), 0);
    }

    #[test]
    fn messages_end_where_their_heads_say_however_they_are_cut() {
        let bytes = [&[1, 0, 0, 0, 3][..], b"abc", &[0, 0, 0, 0, 0], &[0, 0, 0, 1, 0], &[7; 256]].concat();
        let expected =
            [(8, true), (5, false), (261, false)].map(|(bytes, is_packed)| Ended { bytes, is_packed });
        for piece in [1, 2, 7, bytes.len()] {
            let mut framing = Framing::default();
            let ends: Vec<Ended> = bytes.chunks(piece).flat_map(|data| framing.ends(data)).collect();
            assert_eq!(ends, expected, "in pieces of {piece}");
        }
    }

    /// A call of gRPC.
    fn incoming(body: Body, tally: &Arc<Tally>, messages: &Arc<Messages>) -> Incoming {
        Incoming {
            body,
            coming: tally.add(0),
            unpacking: tally.add(0),
            whole: Arc::downgrade(messages),
            framing: Some(Framing::default()),
            wait: None,
            is_refused: false,
        }
    }

    #[test]
    fn a_packed_message_counts_as_all_that_it_may_become_until_it_is_known() {
        let sent = || Body::from([[1, 0, 0, 0, 1, b'a'], [1, 0, 0, 0, 1, b'b']].concat());
        let next = |body: &mut Incoming| {
            poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).now_or_never().unwrap().unwrap()
        };
        let tally = tally(5000);
        let (bodies, planned) = (|| Arc::clone(&tally), || Planned::among(&tally));
        let arrived = || Arrived { messages: Arc::default(), bodies: bodies(), planned: planned() };
        let (arrived, of_a_stream) = (arrived(), arrived());
        let held = || tally.held.load(Relaxed);
        let mut body = incoming(sent(), &tally, &arrived.messages);
        arrived.unpacks_to(6000);
        assert!(next(&mut body).unwrap_err().to_string().contains("--most"), "six times 1032 are too many");
        drop(body);
        arrived.unpacks_to(2000);
        let mut body = incoming(sent(), &tally, &arrived.messages);
        next(&mut body).unwrap();
        assert_eq!(held(), 6 + 6 + 2000);
        arrived.unpacked_message(100).unwrap();
        assert_eq!(held(), 100 + 6 + 2000);
        drop(arrived.message());
        assert!(arrived.unpacked_message(3007).is_err());
        assert_eq!(held(), 6 + 2000);
        drop((body, arrived.message()));
        assert_eq!(held(), 0);

        let one = stream::iter([Ok::<_, Infallible>(&[1, 0, 0, 0, 1, b'a'][..])]);
        let mut body =
            incoming(Body::from_stream(one.chain(stream::pending())), &tally, &of_a_stream.messages);
        of_a_stream.unpacks_to(2000);
        next(&mut body).unwrap();
        of_a_stream.unpacked_message(100).unwrap();
        drop(of_a_stream.message());
        assert!(poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).now_or_never().is_none());
        assert_eq!(held(), 100, "what it became is known by now");
    }

    /// After how many seconds a call is given up whose client sends a piece every twenty, and then nothing; `None` is never.
    /// The messages that are whole are taken as those of a stream, or wait for the call's end.
    async fn given_up_after(pieces: &[&'static [u8]], are_taken: bool, room_is_scarce: bool) -> Option<u64> {
        let (tally, messages) = (tally(100), Arc::new(Messages::default()));
        let others = tally.add(if room_is_scarce { 50 } else { 0 });
        let sent = stream::iter(pieces.to_vec()).then(|piece| async move {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok::<_, Infallible>(piece)
        });
        let mut body = incoming(Body::from_stream(sent.chain(stream::pending())), &tally, &messages);
        let began = tokio::time::Instant::now();
        let read = async {
            loop {
                match poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.unwrap() {
                    Ok(_) if are_taken => messages.lock().clear(),
                    Ok(_) => {}
                    Err(error) => return error.to_string(),
                }
            }
        };
        let error = tokio::time::timeout(Duration::from_secs(600), read).await.ok()?;
        assert!(error.contains("the call is unfinished"), "{error}");
        messages.lock().clear(); // as whoever was to answer goes
        assert_eq!(tally.held.load(Relaxed), others.bytes);
        Some(began.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_finish_what_it_sends_is_not_waited_for() {
        const HALF: &[u8] = &[0, 0, 0, 0, 9, b'a'];
        const WHOLE: &[u8] = &[0, 0, 0, 0, 1, b'a'];
        const WHOLE_AND_HALF: &[u8] = &[0, 0, 0, 0, 1, b'a', 0, 0, 0];
        for (pieces, are_taken, expected) in [
            (&[HALF][..], true, Some(50)),
            (&[WHOLE], false, Some(50)),
            (&[WHOLE, WHOLE, WHOLE], false, Some(50)),
            (&[HALF, b"b", b"c"], true, Some(50)), // it drips
            (&[WHOLE_AND_HALF], true, Some(50)),
            (&[WHOLE, WHOLE, WHOLE], true, None),
        ] {
            assert_eq!(given_up_after(pieces, are_taken, true).await, expected, "{pieces:?}, {are_taken}");
        }
        assert_eq!(given_up_after(&[HALF], true, false).await, None, "nobody needs the room");
    }

    #[tokio::test]
    async fn small_answers_over_http2_that_are_not_read_have_nobody_refused() {
        let router = Router::new().route("/", post(|| async { "here" }));
        for (version, then) in
            [(Version::HTTP_11, StatusCode::TOO_MANY_REQUESTS), (Version::HTTP_2, StatusCode::OK)]
        {
            let router = bounded(router.clone(), InFlightLimits { bodies: 10, answers: 4 });
            let ask = async || {
                let request = Request::post("/").version(version).body(Body::empty()).unwrap();
                router.clone().oneshot(request).await.unwrap()
            };
            let unread = ask().await;
            assert_eq!((unread.status(), ask().await.status()), (StatusCode::OK, then), "{version:?}");
        }
    }

    #[tokio::test]
    async fn answers_that_become_more_than_was_planned_are_given_up_where_there_is_no_room() {
        let router = Router::new().route("/", post(async |asked: Bytes| vec![0_u8; asked.len() << 20]));
        let router = router.layer(middleware::from_fn(request_span::span));
        let router = bounded(router, InFlightLimits { bodies: 10, answers: 5 << 19 });
        let ask = async |megabytes: usize| {
            let request = Request::post("/").body(Body::from(vec![0; megabytes])).unwrap();
            router.clone().oneshot(request).await.unwrap()
        };
        let (one, another) = (ask(1).await, ask(1).await);
        let refused = [ask(1).await, ask(3).await].map(|answer| {
            assert!(request_span::id(answer.headers()).is_some(), "{:?}", answer.headers());
            answer.status()
        });
        assert_eq!([one.status(), another.status()], [StatusCode::OK; 2]);
        assert_eq!(refused, [StatusCode::TOO_MANY_REQUESTS, StatusCode::UNPROCESSABLE_ENTITY]);
        drop(one);
        assert_eq!(ask(1).await.status(), StatusCode::OK, "what was given up is not held");
    }

    /// Far more than the system buffers.
    const LARGE: usize = 64 << 20;

    async fn ask(client: &mut TcpStream, request: &str) {
        let head = "HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        client.write_all(format!("{request} {head}").as_bytes()).await.unwrap();
    }

    #[tokio::test]
    async fn while_answers_are_not_read_nothing_new_is_taken_in() {
        let router = Router::new()
            .route("/large", post(|| async { vec![0_u8; LARGE] }))
            .route("/small", post(|| async { "here" }))
            .route("/health", get(|| async { "well" }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = bounded(router, InFlightLimits { bodies: 10, answers: LARGE });
        tokio::spawn(serve([listener.into()], router, std::future::pending(), GRACE));
        let answer = async |request: &str| {
            let mut client = TcpStream::connect(address).await.unwrap();
            ask(&mut client, request).await;
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let becomes = async |request: &str, said: &str| {
            let started = Instant::now();
            loop {
                let answer = answer(request).await;
                if answer.contains(said) {
                    return answer;
                }
                assert!(started.elapsed() < Duration::from_secs(30), "{request}: {answer}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(answer("POST /small").await.ends_with("here"));
        let mut clients = Vec::new();
        for _ in 0..3 {
            let mut client = TcpStream::connect(address).await.unwrap();
            ask(&mut client, "POST /large").await;
            clients.push(client);
        }
        let refused = becomes("POST /small", "HTTP/1.1 429").await;
        assert!(
            ["retry-after: 1\r\n", "x-request-id: ", "--max-answer-bytes"]
                .iter()
                .all(|said| refused.contains(said)),
            "{refused}"
        );
        assert!(answer("GET /health").await.ends_with("well"));
        drop(clients);
        becomes("POST /small", "here").await;
    }
}
