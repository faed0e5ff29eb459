//! What goes into an engine and what comes out: plain values, no protocol, no device.

use std::{ops::Add, time::Duration};

use turbo_models::Truncation;

use super::{AnswerRoom, Instruction, PromptName, Urgency};

/// One input to a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A text; the model's tokenizer adds its special tokens.
    Text(String),
    /// Two texts that the model reads together, such as a question and a document, or a premise and a hypothesis.
    Pair(String, String),
    /// Token ids, used verbatim: no special tokens are added.
    Ids(Vec<u32>),
    /// Everything that the model reads, used verbatim.
    Encoded(Encoded),
}

/// What a model reads of one input. `token_type_ids` is as long as `input_ids`, or empty: all zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Ids of the tokens, special tokens included.
    pub input_ids: Vec<u32>,
    /// Which segment each token belongs to.
    pub token_type_ids: Vec<u32>,
    /// Positions of the tokens whose rows [`OutputKind::Selected`] gives, ascending, at most [`MAX_SELECTED`].
    pub selected: Vec<u32>,
}

/// Most tokens of one input that can be selected.
pub const MAX_SELECTED: usize = 128;

/// What a request wants back for each input. Which kinds a model has follows from its task:
/// [`ModelInfo::rows`](super::ModelInfo::rows).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// One row per input.
    Pooled {
        /// Whether the row is divided by its L2 norm.
        normalize: bool,
        /// How many leading values are kept, before normalising (Matryoshka); `None` keeps all.
        dimensions: Option<usize>,
    },
    /// One row per token of the input.
    Tokens,
    /// One row per token that [`Encoded::selected`] names.
    Selected,
}

impl OutputKind {
    /// The pooled row as the model leaves it: logits of labels, weights of words.
    pub const RAW: Self = Self::Pooled { normalize: false, dimensions: None };

    /// What its rows are called.
    pub(crate) fn rows_name(self) -> &'static str {
        match self {
            Self::Pooled { .. } => "pooled",
            Self::Tokens => "token",
            Self::Selected => "selected",
        }
    }
}

/// Inputs that are answered together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InferRequest {
    /// One to `max_client_batch_size` inputs.
    pub inputs: Vec<Input>,
    /// What is wanted for each of them.
    pub output: OutputKind,
    /// What happens to inputs that are too long; `None` is the server's default. [`Input::Encoded`] is never cut.
    pub truncation: Option<Truncation>,
    /// Most tokens of each input, where that is less than the model takes; more is too long. [`Input::Encoded`] has the
    /// model's limit alone.
    pub max_input_length: Option<usize>,
    /// Which of the model's prompts is put before each text. The default prompt is not put before pairs and ids; a
    /// request that names a prompt may have neither.
    pub prompt_name: PromptName,
    /// The instruction by which pairs are judged, in place of the model's own; all inputs have to be pairs then. If it
    /// is empty, the model's template has words of its own.
    pub instruction: Option<Instruction>,
    /// Its deadline and priority.
    pub urgency: Urgency,
    /// The room in which its answer is held.
    pub room: AnswerRoom,
    /// Whether the caller waits and retries where there is no room. Such a rejection is not counted, and the request
    /// never stands back for one that waits for several slots, as a new request does.
    pub retries: bool,
    /// Whether it is part of a request that has begun: an engine that runs several models then begins none of its own,
    /// which a stopping server would reject.
    pub continues: bool,
}

impl InferRequest {
    /// A request with the server's defaults.
    #[must_use]
    pub fn new(inputs: Vec<Input>, output: OutputKind) -> Self {
        Self {
            inputs,
            output,
            truncation: None,
            max_input_length: None,
            prompt_name: PromptName::Default,
            instruction: None,
            urgency: Urgency::default(),
            room: AnswerRoom::default(),
            retries: false,
            continues: false,
        }
    }
}

/// The answer to one input.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// `[rows, row_len]`: one row for [`OutputKind::Pooled`], `tokens` rows for [`OutputKind::Tokens`], one for each
    /// selected token for [`OutputKind::Selected`].
    pub values: Vec<f32>,
    /// Values per row: those of the model's rows, or the `dimensions` asked for.
    pub row_len: usize,
    /// Tokens of the input after truncation, special tokens included.
    pub tokens: usize,
}

impl Row {
    /// The rows, one after the other.
    pub fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.values.chunks_exact(self.row_len.max(1))
    }
}

/// The answers to a request, in the order of its inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct InferResponse {
    /// One per input.
    pub rows: Vec<Row>,
    /// What it took.
    pub usage: Usage,
}

/// What a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Where the time went.
    pub timings: Timings,
    /// Unicode characters of all texts, without prompts; for [`Input::Ids`], their number.
    pub characters: usize,
    /// Tokens of all inputs after truncation.
    pub tokens: usize,
}

impl Usage {
    /// Adds the tokens and times of a part of the request; its characters and the total time are counted for the whole.
    /// (The times of concurrent parts all count: they are times of the models.)
    pub(crate) fn add_work(&mut self, part: &Self) {
        let (sum, timings) = (&mut self.timings, &part.timings);
        sum.tokenization += timings.tokenization;
        sum.queue += timings.queue;
        sum.inference += timings.inference;
        self.tokens += part.tokens;
    }
}

/// Where the time of a request went. `total` is for the request; the others are means over its inputs, as
/// text-embeddings-inference reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From the call until the answer was sent, whenever the caller takes it.
    pub total: Duration,
    /// From the call until the input was tokenized (waiting for a tokenizer thread included).
    pub tokenization: Duration,
    /// From the end of that until its batch started; 0 where the answer was cached.
    pub queue: Duration,
    /// The time of its batch; 0 where the answer was cached.
    pub inference: Duration,
}

impl Add for Timings {
    type Output = Self;

    /// The timings of two requests, one after the other.
    fn add(self, other: Self) -> Self {
        Self {
            total: self.total + other.total,
            tokenization: self.tokenization + other.tokenization,
            queue: self.queue + other.queue,
            inference: self.inference + other.inference,
        }
    }
}

/// Whether requests are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Requests are answered.
    Ready,
    /// The model is being built or measured; requests wait.
    Starting,
    /// The model cannot be run any more; every request fails.
    Failing,
    /// New requests are rejected, accepted ones are being answered.
    Stopping,
}
