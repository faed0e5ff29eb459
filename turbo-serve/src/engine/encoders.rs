//! From inputs to tokens: ids and short texts are settled on the calling thread, others on the tokenizer threads.
//!
//! In: the inputs of an admitted request. Out: what the model reads of them to [`Recall`], all at once, or an error to
//! its client. So a request with one bad input computes nothing, and the inputs of a good one can share a batch. Requests
//! that want tokens, and no model, take the same way and are answered from here.

use std::{
    io,
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use tokio::sync::OwnedSemaphorePermit;

use super::{
    DecodeRequest, Encoded, EngineError, Input, Prompt, TokenizeRequest, Tokenized,
    abandoned::Abandoned,
    gather::{Gather, Parts, Recipient},
    lanes::{self, Lanes},
    queue::Inbox,
    recall::Recall,
    rules::{Manner, Rules},
    ticket::{Receiver, Reply, Ticket},
};

/// Requests of so many bytes of text do not go to other threads, each of which has to be woken and given a core, on a busy
/// machine after milliseconds. Making their tokens takes a tenth of a millisecond, and a few where no word is known.
const SHORT_REQUEST: usize = 4 << 10;

/// The tokenizer threads, and the way in for inputs that need none.
pub(super) struct Encoders {
    rules: Arc<Rules>,
    recall: Arc<Recall>,
    inbox: Inbox,
    lanes: Lanes,
    abandoned: Arc<Abandoned>,
}

/// Where the inputs of a ticket go together.
struct ToRecall {
    ticket: Arc<Ticket>,
    recall: Arc<Recall>,
}

impl Recipient<Encoded> for ToRecall {
    fn is_withdrawn(&self) -> bool {
        self.ticket.is_withdrawn()
    }

    fn receive(&self, whole: Result<Vec<Encoded>, EngineError>) {
        match whole {
            Ok(encoded) => self.recall.answer(&self.ticket, encoded),
            Err(error) => self.ticket.fail(error),
        }
    }
}

impl Encoders {
    /// Starts the threads; without a tokenizer there is nothing for them to do.
    pub(super) fn start(
        rules: Rules,
        workers: usize,
        recall: Recall,
        inbox: Inbox,
        abandoned: Arc<Abandoned>,
    ) -> io::Result<(Self, Vec<JoinHandle<()>>)> {
        let workers = if rules.tokenizer.is_some() { workers } else { 0 };
        let (lanes, threads) = Lanes::start(workers)?;
        Ok((Self { rules: Arc::new(rules), recall: Arc::new(recall), inbox, lanes, abandoned }, threads))
    }

    /// Takes in the inputs of a request for the model.
    pub(super) fn encode(&self, ticket: Ticket, inputs: Vec<Input>, manner: Manner) {
        let bytes: Vec<usize> = inputs.iter().map(|input| text_bytes(input, &manner.prompt)).collect();
        let rules = Arc::clone(&self.rules);
        let make = move |input: usize| rules.encode(input, &inputs[input], &manner);
        let recipient = ToRecall { ticket: Arc::new(ticket), recall: Arc::clone(&self.recall) };
        let parts = Gather::new(bytes.len(), make, recipient, Arc::clone(&self.abandoned));
        self.work(Arc::new(parts), &bytes);
    }

    /// Takes in a request for tokens.
    pub(super) fn tokenize(
        &self,
        request: TokenizeRequest,
        slots: OwnedSemaphorePermit,
    ) -> Receiver<Tokenized> {
        let bytes: Vec<usize> =
            request.texts.iter().map(|texts| request.prompt.bytes() + texts.bytes()).collect();
        let rules = Arc::clone(&self.rules);
        self.reply(move |text| rules.tokens(text, &request), &bytes, slots)
    }

    /// Takes in a request for the text of tokens.
    pub(super) fn decode(&self, request: DecodeRequest, slots: OwnedSemaphorePermit) -> Receiver<String> {
        let bytes: Vec<usize> = request.ids.iter().map(Vec::len).collect();
        let rules = Arc::clone(&self.rules);
        self.reply(move |list| rules.decode(list, &request), &bytes, slots)
    }

    /// Tells threads and worker to end when they have done what came before.
    pub(super) fn stop(&self) {
        self.lanes.stop();
        self.inbox.stop();
    }

    /// Has the worker look at what waits.
    pub(super) fn wake(&self) {
        self.inbox.wake();
    }

    fn reply<T: Send + 'static>(
        &self,
        make: impl Fn(usize) -> Result<T, EngineError> + Send + Sync + 'static,
        bytes: &[usize],
        slots: OwnedSemaphorePermit,
    ) -> Receiver<T> {
        let (reply, receiver) = Reply::new(slots);
        let parts = Gather::new(bytes.len(), make, Mutex::new(reply), Arc::clone(&self.abandoned));
        self.work(Arc::new(parts), bytes);
        receiver
    }

    /// What is done sooner than a thread wakes is done on this one.
    fn work(&self, parts: Arc<dyn Parts>, bytes: &[usize]) {
        let here = bytes.iter().sum::<usize>() <= SHORT_REQUEST || self.rules.tokenizer.is_none();
        for (part, &bytes) in bytes.iter().enumerate() {
            match here {
                true => lanes::work_on(&*parts, part),
                false => self.lanes.send(&parts, part, bytes),
            }
        }
    }
}

/// How much text a thread will have to read.
fn text_bytes(input: &Input, prompt: &Prompt) -> usize {
    match input {
        Input::Text(text) => prompt.bytes() + text.len(),
        Input::Pair(first, second) => first.len() + second.len(),
        Input::Ids(_) | Input::Encoded(_) => 0,
    }
}
