//! Many requests in one call: answered in order, a bounded number at a time.
//!
//! The requests run on a task of their own. If they were polled only when the client reads an answer, they would stall
//! half done while it does not read: their timings would measure the client, and a server that is stopping would wait
//! for them.

use std::{
    panic::resume_unwind,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use prost::Message;
use tokio::{
    sync::{Semaphore, mpsc},
    task::{JoinError, JoinSet},
};
use tonic::{Request, Response, Status, Streaming};
use tracing::{Instrument, Span};

use super::calls::{Answered, Ask, CallHead, Calls, WRITTEN};
use crate::{
    engine::{EngineError, OutputKind},
    http::ApiError,
    models::{NotServed, Served},
    net::{Arrived, Held},
    tasks::Door,
};

/// How often a stream that waits for its client checks that its model is still served.
const LOOK: Duration = Duration::from_millis(250);

/// Most requests of one stream that run at a time when they may name several models, each with slots of its own: half
/// of the slots that a server has by default. For a model with fewer slots the requests wait for them.
pub(super) const AT_ONCE: usize = 256;

/// Most tokenizer requests of one stream at a time: they share no batch, and the answer to a long text is fifty times
/// as long as the text.
const TOKENIZED_AT_ONCE: usize = 4;

/// The answers of a stream, as the client receives them.
pub(super) type Answers<A> = Pin<Box<dyn Stream<Item = Result<A, Status>> + Send>>;

/// Answers that the client has not taken yet, each with its room, if bytes in flight are counted.
type Made<A> = Answers<(A, Option<Held>)>;

/// The places of one stream: each request takes one until the client has taken its answer. Clones share them.
#[derive(Clone)]
pub(super) struct Places(Arc<Semaphore>);

impl Places {
    /// Makes this many places.
    pub(super) fn new(at_once: usize) -> Self {
        Self(Arc::new(Semaphore::new(at_once)))
    }

    /// The messages, each read only once there is a place for it.
    pub(super) fn read<M: Send>(
        self,
        messages: impl Stream<Item = M> + Send,
    ) -> impl Stream<Item = M> + Send {
        stream::unfold((self, Box::pin(messages)), |(places, mut messages)| async move {
            // The semaphore is never closed. `give_out` returns the place when the answer is taken.
            places.0.acquire().await.ok()?.forget();
            let message = messages.next().await?;
            Some((message, (places, messages)))
        })
    }

    /// Computes the answers on a task, whether or not the client takes them, until the first error, which ends the
    /// call. Dropping the result cancels the requests that still run.
    pub(super) fn give_out<A: Send + 'static>(self, mut answers: Made<A>) -> Answers<A> {
        let (made, taken) = mpsc::unbounded_channel(); // bounded by the places
        let mut making = JoinSet::new();
        let make = async move {
            while let Some(answer) = answers.next().await {
                let is_last = answer.is_err();
                if made.send(answer).is_err() || is_last {
                    return;
                }
            }
        };
        making.spawn(make.instrument(Span::current()));
        let answers = stream::unfold((self, taken, making), |(places, mut taken, making)| async move {
            let Some(answer) = taken.recv().await else {
                join(making).await;
                return None;
            };
            places.0.add_permits(1);
            Some((answer, (places, taken, making)))
        });
        answers.map_ok(|(answer, _held)| answer).boxed()
    }
}

/// Waits for a task to end, and passes on its panic.
async fn join(mut task: JoinSet<()>) {
    while let Some(ended) = task.join_next().await {
        if let Err(Ok(panic)) = ended.map_err(JoinError::try_into_panic) {
            resume_unwind(panic);
        }
    }
}

/// What holds a stream's messages until they are answered; `None` if bytes in flight are not counted.
pub(super) fn arrived<Q>(request: &Request<Streaming<Q>>) -> Option<Arrived> {
    request.extensions().get().cloned()
}

/// Most requests of one stream that run on a model at a time: enough to fill batches, and room for other clients.
pub(super) fn at_once(served: &Served) -> usize {
    (served.engine().info().max_concurrent_requests / 2).max(1)
}

/// Most requests of one stream at a time whose answers have a row for each token: few enough that inputs of any
/// length have room.
fn answers_at_once(served: &Served, arrived: &Arrived) -> usize {
    let info = served.engine().info();
    let row_len = info.model.row_len(OutputKind::Tokens).unwrap_or_default();
    arrived.at_once(info.max_input_length.saturating_mul(row_len), WRITTEN)
}

impl Calls {
    /// Answers each message of a stream with one message.
    pub(super) async fn answer_each<Q: Ask + Message>(
        &self,
        request: Request<Streaming<Q>>,
    ) -> Result<Response<Answers<Q::Answer>>, Status> {
        let head = self.head(request.metadata())?;
        let (served, arrived) = (self.lease_for(&head).await?, arrived(&request));
        let at_once = match &arrived {
            Some(arrived) if Q::OF_TOKENS => at_once(&served).min(answers_at_once(&served, arrived)),
            _ if Q::COUNTED.is_none() => at_once(&served).min(TOKENIZED_AT_ONCE),
            _ => at_once(&served),
        };
        drop(served);
        let places = Places::new(at_once);
        let messages = places.clone().read(self.clone().messages(Some(head.clone()), request));
        let answers = self.clone().ask_each(head, at_once, arrived, messages);
        let answers = answers.map_ok(|(answered, held)| (answered.message, held));
        Ok(Response::new(places.give_out(answers.boxed())))
    }

    /// Runs each message; the answers come in the order of the messages. Dropping the stream cancels the running
    /// requests. While one waits for a slot, no other message is read, so what a client sends ahead stays with the
    /// client. Messages are held in `arrived` until they are answered; each answer comes with its room.
    pub(super) fn ask_each<Q: Ask>(
        self,
        head: CallHead,
        at_once: usize,
        arrived: Option<Arrived>,
        messages: impl Stream<Item = Result<Q, Status>> + Send,
    ) -> impl Stream<Item = Result<(Answered<Q::Answer>, Option<Held>), Status>> + Send {
        let door = Door::default();
        let at_door = door.clone();
        let coming = arrived.clone();
        let come = move |message: Result<Q, Status>| {
            let held = coming.as_ref().and_then(Arrived::message);
            message.map(|message| ((message, Instant::now()), held))
        };
        let ask = move |come: Result<((Q, Instant), Option<Held>), Status>| {
            let (calls, head, door) = (self.clone(), head.clone(), door.clone());
            let arrived = arrived.clone();
            async move {
                let (message, _held) = come?;
                let planned = arrived.as_ref().map(Arrived::planned_of_message);
                let (answered, _) = calls.ask(&head, message, Some(door), planned.clone()).await?;
                let waits =
                    planned.map(|planned| planned.becomes(answered.message.encoded_len())).transpose();
                Ok((answered, waits.map_err(|error| calls.refuse(&error.into()))?))
            }
        };
        // Lets a message in after the previous one: once other tasks have run, that one is submitted or waits at the
        // door.
        let let_in = move |message| {
            let door = at_door.clone();
            async move {
                tokio::task::yield_now().await;
                door.nobody().await;
                message
            }
        };
        messages.map(come).then(let_in).map(ask).buffered(at_once)
    }

    /// The [coming](Self::coming) messages, each counted with its unpacked size. A message for which there is no room
    /// becomes an error.
    pub(super) fn messages<Q: Message + 'static>(
        self,
        head: Option<CallHead>,
        request: Request<Streaming<Q>>,
    ) -> impl Stream<Item = Result<Q, Status>> + Send {
        let (calls, arrived) = (self.clone(), arrived(&request));
        let counted = move |message: Q| calls.count(&message, arrived.as_ref()).map(|()| message);
        self.coming(head, request).map(move |message| message.and_then(&counted))
    }

    /// A client's messages, until it sends no more, or until none can be read or answered any more: the last item is
    /// then an error. Without a `head`, the messages may name any model.
    pub(super) fn coming<Q: Message + 'static>(
        self,
        head: Option<CallHead>,
        request: Request<Streaming<Q>>,
    ) -> impl Stream<Item = Result<Q, Status>> + Send {
        let messages = request.into_inner();
        let end = Box::pin(async move { self.refuse(&self.end(head.as_ref()).await) });
        stream::unfold(Some((messages, end)), |open| async move {
            let (mut messages, mut end) = open?;
            tokio::select! {
                message = messages.message() => match message.transpose()? {
                    Ok(message) => Some((Ok(message), Some((messages, end)))),
                    Err(status) => Some((Err(status), None)),
                },
                status = &mut end => Some((Err(status), None)),
            }
        })
    }

    /// Waits until no message could be answered any more, and returns why. Without this, a stream whose client is
    /// silent would keep the server from stopping.
    pub(super) async fn end(&self, head: Option<&CallHead>) -> ApiError {
        loop {
            tokio::time::sleep(LOOK).await;
            if self.are_stopping() {
                return EngineError::Stopping.into();
            }
            match head.map(|head| self.models.find(head.wanted())) {
                None | Some(Ok(_) | Err(NotServed::NotReady { .. } | NotServed::Unavailable { .. })) => {}
                Some(Err(error)) => return error.into(),
            }
        }
    }
}
