//! One request on its way: what its inputs share, and where its answers are gathered.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{EngineError, OutputKind};

/// What the worker made of one input.
#[derive(Debug)]
pub(super) struct Answer {
    /// `[rows, hidden_size]`, as the model leaves them.
    pub values: Vec<f32>,
    pub tokens: usize,
    pub tokenization: Duration,
    pub queue: Duration,
    pub inference: Duration,
}

/// All answers in the order of the inputs, or the first error.
pub(super) type Reply = Result<Vec<Answer>, EngineError>;

/// A request that was admitted. Its inputs share it; when the last of them drops it unanswered, the receiver learns
/// that there will be no answer.
#[derive(Debug)]
pub(super) struct Ticket {
    pub started: Instant,
    pub output: OutputKind,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    answers: Vec<Option<Answer>>,
    missing: usize,
    /// Taken by whoever answers. The slots go back before the answer leaves: a client that sends its next request
    /// on receiving it must find them free.
    reply: Option<(oneshot::Sender<Reply>, OwnedSemaphorePermit)>,
}

impl Ticket {
    pub(super) fn new(
        started: Instant,
        inputs: usize,
        output: OutputKind,
        slots: OwnedSemaphorePermit,
    ) -> (Self, oneshot::Receiver<Reply>) {
        let (reply, receiver) = oneshot::channel();
        let answers = std::iter::repeat_with(|| None).take(inputs).collect();
        let open = Mutex::new(Open { answers, missing: inputs, reply: Some((reply, slots)) });
        (Self { started, output, open }, receiver)
    }

    /// Whether nobody waits any more: the client has gone, or the request was already answered with an error.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.lock().reply.as_ref().is_none_or(|(reply, _)| reply.is_closed())
    }

    /// Sets the answer of one input; the last one sends all of them.
    pub(super) fn complete(&self, input: usize, answer: Answer) {
        let mut open = self.lock();
        if open.answers[input].replace(answer).is_none() {
            open.missing -= 1;
        }
        if open.missing == 0 {
            let answers = open.answers.drain(..).flatten().collect();
            open.send(Ok(answers));
        }
    }

    /// Answers the whole request with an error, unless it has an answer.
    pub(super) fn fail(&self, error: EngineError) {
        self.lock().send(Err(error));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Open> {
        // Nothing in here panics half-way, so a poisoned lock still guards a whole value.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn send(&mut self, answer: Reply) {
        if let Some((reply, slots)) = self.reply.take() {
            drop(slots);
            // The client may have gone in this very moment; then nobody misses the answer.
            drop(reply.send(answer));
        }
    }
}
