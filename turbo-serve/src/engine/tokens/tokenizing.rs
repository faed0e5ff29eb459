//! From inputs to tokens: ids and short texts are encoded on the calling thread, others on the tokenizer threads.
//!
//! In: the inputs of an admitted request. Out: all of them together, encoded, to [`Recall`], or an error to the client.
//! So nothing is computed for a request with one bad input, and the inputs of a good one can share a batch. Requests to
//! tokenize or decode take the same path and are answered from here.

use std::{
    io,
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use tokio::sync::OwnedSemaphorePermit;

use super::{
    gather::{Gather, Parts, Recipient},
    lanes::{self, Lanes},
    rules::{Manner, Rules},
};
use crate::engine::{
    DecodeRequest, Encoded, EngineError, Input, TokenizeRequest, Tokenized,
    admit::abandoned::Abandoned,
    answers::{
        recall::Recall,
        ticket::{Receiver, Reply, Ticket},
    },
    compute::inbox::Inbox,
};

/// Requests of up to this many bytes of text are tokenized on the calling thread. Another thread would have to be woken
/// and given a core, which takes milliseconds on a busy machine. Tokenizing itself takes a tenth of a millisecond, or a
/// few milliseconds where no word is known.
const SHORT_REQUEST: usize = 4 << 10;

/// The tokenizer threads, and the entry for inputs that need none.
pub(in crate::engine) struct Tokenizing {
    rules: Arc<Rules>,
    recall: Arc<Recall>,
    inbox: Inbox,
    lanes: Lanes,
    abandoned: Arc<Abandoned>,
}

/// Sends the encoded inputs of a ticket to [`Recall`].
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

impl Tokenizing {
    /// Starts the threads; none without a tokenizer.
    pub(in crate::engine) fn start(
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

    /// Encodes the inputs of a request for the model.
    pub(in crate::engine) fn encode(&self, ticket: Ticket, inputs: Vec<Input>, manner: Manner) {
        let bytes: Vec<usize> = inputs.iter().map(|input| text_bytes(input, &manner)).collect();
        let rules = Arc::clone(&self.rules);
        let make = move |input: usize| rules.encode(input, &inputs[input], &manner);
        let recipient = ToRecall { ticket: Arc::new(ticket), recall: Arc::clone(&self.recall) };
        let parts = Gather::new(bytes.len(), make, recipient, Arc::clone(&self.abandoned));
        self.work(Arc::new(parts), &bytes);
    }

    /// Tokenizes the texts of a request.
    pub(in crate::engine) fn tokenize(
        &self,
        request: TokenizeRequest,
        slots: OwnedSemaphorePermit,
    ) -> Receiver<Tokenized> {
        let bytes: Vec<usize> =
            request.texts.iter().map(|texts| request.prompt.bytes() + texts.bytes()).collect();
        let rules = Arc::clone(&self.rules);
        self.reply(move |text| rules.tokens(text, &request), &bytes, slots)
    }

    /// Decodes the ids of a request.
    pub(in crate::engine) fn decode(
        &self,
        request: DecodeRequest,
        slots: OwnedSemaphorePermit,
    ) -> Receiver<String> {
        let bytes: Vec<usize> = request.ids.iter().map(Vec::len).collect();
        let rules = Arc::clone(&self.rules);
        self.reply(move |list| rules.decode(list, &request), &bytes, slots)
    }

    /// Tells threads and worker to end when all earlier work is done.
    pub(in crate::engine) fn stop(&self) {
        self.lanes.stop();
        self.inbox.stop();
    }

    /// Tells the worker not to wait for new requests.
    pub(in crate::engine) fn hurry(&self) {
        self.inbox.hurry();
    }

    /// Wakes the worker to check the waiting jobs.
    pub(in crate::engine) fn wake(&self) {
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

    /// Works on the parts: on the calling thread where that is quicker than waking another.
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

/// Bytes of text that have to be tokenized.
fn text_bytes(input: &Input, Manner { prompt, instruction, .. }: &Manner) -> usize {
    match input {
        Input::Text(text) => prompt.bytes() + text.len(),
        Input::Pair(first, second) => {
            first.len() + second.len() + instruction.as_ref().map_or(0, |words| words.as_str().len())
        }
        Input::Ids(_) | Input::Encoded(_) => 0,
    }
}
