//! From inputs to tokens, on threads of their own: here length limits and truncation are settled, once.
//!
//! In: the inputs of an admitted request. Out: its [`Job`]s to the worker, all at once, or an error to its client. So
//! a request with one bad input computes nothing, and the inputs of a good one can share a batch.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
    time::Instant,
};

use super::{
    EngineError, Input, Truncation,
    queue::{Inbox, Job},
    ticket::Ticket,
};

/// The tokens of one input. `token_type_ids` is as long as `input_ids`, or empty: all zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Ids of the tokens, special tokens included.
    pub input_ids: Vec<u32>,
    /// Which segment each token belongs to.
    pub token_type_ids: Vec<u32>,
}

/// From text to tokens; shared by all tokenizer threads.
pub trait Tokenize: Send + Sync {
    /// The tokens of `text`, special tokens added, cut to the model's limit if `truncation` says so.
    ///
    /// # Errors
    /// [`TokenizeError::TooLong`] with truncation off; [`TokenizeError::Failed`].
    fn encode(&self, text: &str, truncation: Truncation) -> Result<Encoded, TokenizeError>;
}

/// Why a text has no tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizeError {
    /// The text is longer than the model's limit.
    #[error("{tokens} tokens exceed the limit of {limit}")]
    TooLong {
        /// Its tokens, special tokens included.
        tokens: usize,
        /// The most a model takes.
        limit: usize,
    },
    /// The tokenizer does not take this text.
    #[error("{0}")]
    Failed(String),
}

/// What makes an input valid, and how it becomes tokens.
pub(super) struct Rules {
    pub tokenizer: Option<Arc<dyn Tokenize>>,
    pub max_input_length: usize,
    pub vocab_size: usize,
}

impl Rules {
    /// The tokens of input number `input` of its request.
    fn encode(&self, input: usize, value: &Input, truncation: Truncation) -> Result<Encoded, EngineError> {
        let encoded = match value {
            Input::Text(text) => self.encode_text(input, text, truncation)?,
            Input::Ids(ids) => {
                let input_ids = self.cut(input, ids, truncation)?.to_vec();
                Encoded { input_ids, token_type_ids: Vec::new() }
            }
        };
        if encoded.input_ids.is_empty() {
            return Err(EngineError::EmptyInput { input });
        }
        // Ids of a tokenizer are looked at too: its vocabulary may be larger than the model's.
        match encoded.input_ids.iter().find(|&&id| id as usize >= self.vocab_size) {
            Some(&id) => Err(EngineError::InvalidId { input, id, vocab_size: self.vocab_size }),
            None => Ok(encoded),
        }
    }

    fn encode_text(&self, input: usize, text: &str, truncation: Truncation) -> Result<Encoded, EngineError> {
        let tokenizer = self.tokenizer.as_ref().ok_or(EngineError::NoTokenizer)?;
        // The tokenizer is foreign code that meets any text in the world; its panic must cost one request only.
        match catch_unwind(AssertUnwindSafe(|| tokenizer.encode(text, truncation))) {
            Ok(Ok(encoded)) => Ok(encoded),
            Ok(Err(TokenizeError::TooLong { tokens, limit })) => {
                Err(EngineError::TooLong { input, tokens, limit })
            }
            Ok(Err(TokenizeError::Failed(why))) => Err(EngineError::Tokenizer(why)),
            Err(_) => Err(EngineError::Tokenizer("it panicked on this text".into())),
        }
    }

    fn cut<'a>(
        &self,
        input: usize,
        ids: &'a [u32],
        truncation: Truncation,
    ) -> Result<&'a [u32], EngineError> {
        let (tokens, limit) = (ids.len(), self.max_input_length);
        match truncation {
            _ if tokens <= limit => Ok(ids),
            Truncation::Off => Err(EngineError::TooLong { input, tokens, limit }),
            Truncation::Left => Ok(&ids[tokens - limit..]),
            Truncation::Right => Ok(&ids[..limit]),
        }
    }
}

/// The inputs of one request while they become tokens; whoever finishes the last of them passes all on.
struct Group {
    ticket: Arc<Ticket>,
    inputs: Vec<Input>,
    truncation: Truncation,
    made: Mutex<Made>,
}

struct Made {
    encoded: Vec<Option<Encoded>>,
    missing: usize,
    error: Option<EngineError>,
}

impl Group {
    fn new(ticket: Arc<Ticket>, inputs: Vec<Input>, truncation: Truncation) -> Self {
        let made = Made { encoded: vec![None; inputs.len()], missing: inputs.len(), error: None };
        Self { ticket, inputs, truncation, made: Mutex::new(made) }
    }

    /// Makes the tokens of one input; after the last one, submits the request or answers it with its first error.
    fn encode(&self, input: usize, rules: &Rules, inbox: &Inbox) {
        let skip = self.lock().error.is_some() || self.ticket.is_withdrawn();
        let encoded = (!skip).then(|| rules.encode(input, &self.inputs[input], self.truncation));
        let mut made = self.lock();
        made.missing -= 1;
        match encoded {
            Some(Ok(encoded)) => made.encoded[input] = Some(encoded),
            Some(Err(error)) => made.error = made.error.take().or(Some(error)),
            None => {}
        }
        if made.missing > 0 {
            return;
        }
        match made.error.take() {
            Some(error) => self.ticket.fail(error),
            None if self.ticket.is_withdrawn() => {}
            None => inbox.submit(self.jobs(&mut made.encoded)),
        }
    }

    fn jobs(&self, encoded: &mut Vec<Option<Encoded>>) -> Vec<Job> {
        let encoded_at = Instant::now();
        let job = |(input, encoded)| Job { ticket: Arc::clone(&self.ticket), input, encoded, encoded_at };
        encoded.drain(..).flatten().enumerate().map(job).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Made> {
        // Rules never run under the lock, so a poisoned one still guards a whole value.
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a tokenizer thread is told.
enum Task {
    Encode(Arc<Group>, usize),
    Stop,
}

/// A text of so many bytes waits among its like. Making its tokens may take seconds where the tokenizer finds no place
/// to cut it (2 MB of punctuation: three seconds); shorter ones take 30 ms at most, and mostly microseconds.
const LONG_TEXT: usize = 16 << 10;
/// Most threads for long texts. Each may take a gigabyte while it works on the worst of them, and two make the tokens of
/// ordinary long texts faster than a model uses them.
const LONG_TEXT_WORKERS: usize = 2;

/// The tokenizer threads, and the way in for inputs that need none.
pub(super) struct Encoders {
    rules: Arc<Rules>,
    inbox: Inbox,
    short: Lane,
    long: Lane,
}

/// Threads that share a queue of texts.
struct Lane {
    /// Unbounded as a channel; the slots of admitted inputs bound it.
    tasks: Sender<Task>,
    workers: usize,
}

impl Lane {
    fn start(
        name: &str,
        workers: usize,
        rules: &Arc<Rules>,
        inbox: &Inbox,
    ) -> io::Result<(Self, Vec<JoinHandle<()>>)> {
        let (tasks, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let spawn = |worker| {
            let (rules, receiver, inbox) = (Arc::clone(rules), Arc::clone(&receiver), inbox.clone());
            let thread = std::thread::Builder::new().name(format!("turbo-{name}-{worker}"));
            thread.spawn(move || work(&rules, &receiver, &inbox))
        };
        let threads = (0..workers).map(spawn).collect::<io::Result<Vec<_>>>()?;
        Ok((Self { tasks, workers }, threads))
    }

    fn send(&self, group: &Arc<Group>, input: usize) {
        if self.tasks.send(Task::Encode(Arc::clone(group), input)).is_err() {
            group.ticket.fail(EngineError::Stopping);
        }
    }

    fn stop(&self) {
        for _ in 0..self.workers {
            // A thread that has ended already needs no telling.
            drop(self.tasks.send(Task::Stop));
        }
    }
}

impl Encoders {
    /// Starts `workers` threads for short texts, and a few for long ones: nobody's long text holds up the others.
    pub(super) fn start(
        rules: Rules,
        workers: usize,
        inbox: Inbox,
    ) -> io::Result<(Self, Vec<JoinHandle<()>>)> {
        let rules = Arc::new(rules);
        let (short, mut threads) = Lane::start("tokens", workers, &rules, &inbox)?;
        let (long, more) = Lane::start("long-texts", workers.min(LONG_TEXT_WORKERS), &rules, &inbox)?;
        threads.extend(more);
        Ok((Self { rules, inbox, short, long }, threads))
    }

    /// Takes in the inputs of a request. Ids are settled at once, on the calling thread; texts by the threads.
    pub(super) fn encode(&self, ticket: Ticket, inputs: Vec<Input>, truncation: Truncation) {
        let group = Arc::new(Group::new(Arc::new(ticket), inputs, truncation));
        let only_ids = group.inputs.iter().all(|input| matches!(input, Input::Ids(_)));
        for (index, input) in group.inputs.iter().enumerate() {
            match input {
                _ if only_ids || self.rules.tokenizer.is_none() => {
                    group.encode(index, &self.rules, &self.inbox);
                }
                Input::Text(text) if text.len() >= LONG_TEXT => self.long.send(&group, index),
                _ => self.short.send(&group, index),
            }
        }
    }

    /// Tells threads and worker to end when they have done what came before.
    pub(super) fn stop(&self) {
        self.short.stop();
        self.long.stop();
        self.inbox.stop();
    }
}

fn work(rules: &Rules, tasks: &Mutex<Receiver<Task>>, inbox: &Inbox) {
    loop {
        let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match task {
            Ok(Task::Encode(group, input)) => group.encode(input, rules, inbox),
            Ok(Task::Stop) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules { tokenizer: None, max_input_length: 3, vocab_size: 10 }
    }

    #[test]
    fn ids_are_checked_and_cut() {
        let too_long = EngineError::TooLong { input: 7, tokens: 4, limit: 3 };
        let invalid = EngineError::InvalidId { input: 7, id: 10, vocab_size: 10 };
        for (ids, truncation, expected) in [
            (&[1, 2, 3][..], Truncation::Off, Ok(&[1, 2, 3][..])),
            (&[1, 2, 3, 4], Truncation::Off, Err(too_long)),
            (&[1, 2, 3, 4], Truncation::Left, Ok(&[2, 3, 4])),
            (&[1, 2, 3, 4], Truncation::Right, Ok(&[1, 2, 3])),
            (&[1, 2, 3, 10], Truncation::Right, Ok(&[1, 2, 3])),
            (&[9, 10], Truncation::Off, Err(invalid)),
            (&[], Truncation::Off, Err(EngineError::EmptyInput { input: 7 })),
        ] {
            let got = rules().encode(7, &Input::Ids(ids.to_vec()), truncation);
            assert_eq!(got.map(|encoded| encoded.input_ids), expected.map(<[u32]>::to_vec), "{ids:?}");
        }
    }

    #[test]
    fn text_needs_a_tokenizer() {
        let text = Input::Text("hello".into());
        assert_eq!(rules().encode(0, &text, Truncation::Off), Err(EngineError::NoTokenizer));
    }
}
