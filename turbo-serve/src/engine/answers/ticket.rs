//! One request in progress: what its inputs share, and where their answers are gathered.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::engine::{AnswerRoom, Encoded, EngineError, OutputKind, admit::forecast::Place};

/// The answer to one input, computed or found in a cache.
#[derive(Debug)]
pub(in crate::engine) struct Answer {
    /// `[rows, row_len]`, as the model leaves them.
    pub values: Vec<f32>,
    pub tokens: usize,
    pub tokenization: Duration,
    pub queue: Duration,
    pub inference: Duration,
}

/// The channel back to a client, for the results of all inputs of its request, in their order, or the first error.
///
/// It holds the slots of the request and releases them before it sends the answer: a client that sends its next request
/// as soon as it has the answer must find them free. If it is dropped unanswered, the receiver gets a closed channel.
#[derive(Debug)]
pub(in crate::engine) struct Reply<T>(Option<(Sender<T>, OwnedSemaphorePermit)>);

type Sender<T> = oneshot::Sender<Result<Vec<T>, EngineError>>;

/// Where the client of a [`Reply`] waits.
pub(in crate::engine) type Receiver<T> = oneshot::Receiver<Result<Vec<T>, EngineError>>;

impl<T> Reply<T> {
    pub(in crate::engine) fn new(slots: OwnedSemaphorePermit) -> (Self, Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Some((sender, slots))), receiver)
    }

    /// Whether the client no longer waits: it has gone, or was answered.
    pub(in crate::engine) fn is_withdrawn(&self) -> bool {
        self.0.as_ref().is_none_or(|(sender, _)| sender.is_closed())
    }

    /// Whether it was answered.
    fn is_answered(&self) -> bool {
        self.0.is_none()
    }

    /// Sends the answer, unless one was sent before.
    pub(in crate::engine) fn send(&mut self, answer: Result<Vec<T>, EngineError>) {
        if let Some((sender, slots)) = self.0.take() {
            drop(slots);
            // Fails if the client has just gone, and then the answer is not needed.
            drop(sender.send(answer));
        }
    }
}

/// An admitted request that is to be computed; its inputs share it.
#[derive(Debug)]
pub(in crate::engine) struct Ticket {
    pub place: Arc<Place>,
    pub output: OutputKind,
    /// The room that its answer is held in, and the number of values of one row.
    room: (AnswerRoom, usize),
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    answers: Vec<Option<Answer>>,
    missing: usize,
    /// Number of values of its rows that are held in the room.
    held: usize,
    reply: Reply<Answer>,
}

impl Ticket {
    pub(in crate::engine) fn new(
        place: Arc<Place>,
        inputs: usize,
        output: OutputKind,
        slots: OwnedSemaphorePermit,
    ) -> (Self, Receiver<Answer>) {
        let (reply, receiver) = Reply::new(slots);
        let answers = std::iter::repeat_with(|| None).take(inputs).collect();
        let open = Mutex::new(Open { answers, missing: inputs, held: 0, reply });
        (Self { place, output, room: (AnswerRoom::default(), 0), open }, receiver)
    }

    /// The same ticket, with its answer held in `room`, in rows of `row_len` values.
    pub(in crate::engine) fn held_in(self, room: AnswerRoom, row_len: usize) -> Self {
        Self { room: (room, row_len), ..self }
    }

    /// Reserves room for the rows that answer `inputs`.
    ///
    /// # Errors
    /// Those of [`AnswerRoom::hold`].
    pub(in crate::engine) fn hold(&self, inputs: &[Encoded]) -> Result<(), EngineError> {
        let rows = |input: &Encoded| match self.output {
            OutputKind::Pooled { .. } => 1,
            OutputKind::Tokens => input.input_ids.len(),
            OutputKind::Selected => input.selected.len(),
        };
        let (room, row_len) = &self.room;
        let values = inputs.iter().map(rows).sum::<usize>().saturating_mul(*row_len);
        room.hold(values)?;
        self.lock().held = values;
        Ok(())
    }

    /// Fails the whole request before any of it is computed, and releases its room in case it is retried.
    pub(super) fn refuse(&self, error: EngineError) {
        self.room.0.let_go(std::mem::take(&mut self.lock().held));
        self.fail(error);
    }

    /// When its request arrived.
    pub(in crate::engine) fn started(&self) -> Instant {
        self.place.terms().started
    }

    /// Whether its client no longer waits: it has gone, or was answered.
    pub(in crate::engine) fn is_withdrawn(&self) -> bool {
        self.lock().reply.is_withdrawn()
    }

    /// Whether an answer, or an error, was sent.
    pub(in crate::engine) fn is_answered(&self) -> bool {
        self.lock().reply.is_answered()
    }

    /// Sets the answer of one input; the last one sends all of them.
    pub(in crate::engine) fn complete(&self, input: usize, answer: Answer) {
        let mut open = self.lock();
        if open.answers[input].replace(answer).is_none() {
            open.missing -= 1;
        }
        if open.missing == 0 {
            let answers = open.answers.drain(..).flatten().collect();
            self.place.ends();
            open.reply.send(Ok(answers));
        }
    }

    /// Fails the whole request, unless it was answered.
    pub(in crate::engine) fn fail(&self, error: EngineError) {
        let mut open = self.lock();
        self.place.ends();
        open.reply.send(Err(error));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Open> {
        // Nothing in here panics half-way, so a poisoned lock still guards a whole value.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
