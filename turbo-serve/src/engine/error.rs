//! Why a request was not answered.

use std::time::{Duration, Instant};

use turbo_models::Task;

/// Why a request was not answered. Clients or protocols react to each variant differently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// No slots are free for its inputs, or another request has waited for them for long; nothing was started.
    #[error("model is overloaded: retry {}", when(*retry_after))]
    Overloaded {
        /// Predicted time until all requests accepted before are done.
        retry_after: Duration,
    },
    /// The answer is predicted to come too late; nothing was started.
    #[error(
        "model is overloaded: the answer is predicted in {} ms, and wanted within {} ms: retry {}",
        ms(*predicted), ms(*within), when(*retry_after)
    )]
    TooLate {
        /// The time that the client allows, or that the server promises.
        within: Duration,
        /// Predicted time from the call to the answer.
        predicted: Duration,
        /// Predicted time until the same request would be answered in time.
        retry_after: Duration,
    },
    /// The time allowed for the answer is over, or the client allows less than the request takes even alone.
    #[error("not answered within {}", time_left(*within))]
    Expired {
        /// The time that the client allowed, or that the server promises.
        within: Duration,
    },
    /// This answer alone would exceed the limit of all answers together.
    #[error(
        "the answer to these inputs would take {bytes} bytes, but the server holds at most {limit} bytes of answers \
         (`--max-answer-bytes-in-flight`): send fewer or shorter inputs at a time"
    )]
    AnswerTooLarge {
        /// Bytes of the answer: its rows, and what they are written as.
        bytes: usize,
        /// Most bytes of all answers together.
        limit: usize,
    },
    /// There is no room for the answer in addition to those that clients have not read yet.
    #[error(
        "the answer to these inputs would take {bytes} bytes, but the server already holds {held} bytes of answers that \
         were not read yet, of at most {limit} (`--max-answer-bytes-in-flight`): retry in {} s",
        retry_after.as_secs()
    )]
    NoRoomForAnswer {
        /// Bytes of the answer: its rows, and what they are written as.
        bytes: usize,
        /// Bytes of the other answers.
        held: usize,
        /// Most bytes of all answers together.
        limit: usize,
        /// When to retry. This is no prediction: it is not known when clients read their answers.
        retry_after: Duration,
    },
    /// A request without inputs.
    #[error("`inputs` cannot be empty")]
    Empty,
    /// More inputs than a request may have.
    #[error("batch size {got} > maximum allowed batch size {limit}")]
    TooManyInputs {
        /// Inputs of the request.
        got: usize,
        /// `max_client_batch_size`.
        limit: usize,
    },
    /// An input has no tokens at all.
    #[error("input {input} has no tokens")]
    EmptyInput {
        /// Which input, counted from 0.
        input: usize,
    },
    /// An input is longer than the model's limit, and truncation is off.
    #[error(
        "input {input} has at least {tokens} tokens, at most {limit} are possible: shorten it or have it cut \
         (`truncate`; on OpenAI's and vLLM's routes `truncate_prompt_tokens`)"
    )]
    TooLong {
        /// Which input, counted from 0.
        input: usize,
        /// Its tokens, special tokens included; too few where counting stopped early, as it does for long texts.
        tokens: usize,
        /// `max_input_length`.
        limit: usize,
    },
    /// A token id that the model does not have.
    #[error("input {input} has token id {id}, the model's ids are below {vocab_size}")]
    InvalidId {
        /// Which input, counted from 0.
        input: usize,
        /// The id.
        id: u32,
        /// One past the last valid id.
        vocab_size: usize,
    },
    /// Token types that the model does not have, or not one per token.
    #[error("input {input}: {why}")]
    InvalidTokenTypes {
        /// Which input, counted from 0.
        input: usize,
        /// What is wrong with them.
        why: String,
    },
    /// Selected tokens that the input does not have, no selected token, or too many.
    #[error("input {input}: {why}")]
    InvalidSelection {
        /// Which input, counted from 0.
        input: usize,
        /// What is wrong with them.
        why: String,
    },
    /// An input of a kind that is not accepted here.
    #[error("input {input}: {why}")]
    InvalidInput {
        /// Which input, counted from 0.
        input: usize,
        /// What was expected.
        why: String,
    },
    /// `dimensions` asks for no value, or for more than the model has.
    #[error("`dimensions` is {got}, the model's rows have 1 to {limit} values")]
    InvalidDimensions {
        /// What was asked for.
        got: usize,
        /// Values of a pooled row.
        limit: usize,
    },
    /// A context whose windows would have too many tokens together.
    #[error(
        "the context may have {windows} windows of {max_len} tokens, at most {limit} tokens together are possible: \
         shorten the context or the question, or let windows overlap less"
    )]
    TooManyWindows {
        /// Windows, if the context had as many tokens as its text may have.
        windows: usize,
        /// Tokens of one window.
        max_len: usize,
        /// Most tokens of all.
        limit: usize,
    },
    /// A context with so many windows that their candidate answers would have too many tokens together.
    #[error(
        "the context may have {windows} windows, each with {top_k} candidate answers (`top_k`) of up to {answer_len} \
         tokens, at most {limit} tokens together are possible: ask for fewer or shorter answers"
    )]
    TooManyAnswers {
        /// Windows, if the context had as many tokens as its text may have.
        windows: usize,
        /// Candidate answers of one window.
        top_k: usize,
        /// Most tokens of one answer.
        answer_len: usize,
        /// Most tokens of all.
        limit: usize,
    },
    /// Rows that a model for this task does not have.
    #[error("this model is for {task}: it has no {rows} rows")]
    NoSuchRows {
        /// What the model is for.
        task: Task,
        /// Which rows: pooled, token or selected; or what a task makes of them: entity, answer.
        rows: &'static str,
    },
    /// A prompt that the model does not have.
    #[error("`prompt_name` is `{name}`, {}", known_prompts(known))]
    UnknownPrompt {
        /// What was asked for.
        name: String,
        /// The model's prompts.
        known: Vec<String>,
    },
    /// A prompt was named, but an input is not a plain text.
    #[error("`prompt_name` is for texts, but input {input} is a pair of texts or a list of token ids")]
    PromptNeedsText {
        /// Which input, counted from 0.
        input: usize,
    },
    /// An instruction was sent, but the model takes none.
    #[error("`instruction` is not possible here: this model has no template of pairs with a place for it")]
    NoInstruction,
    /// An instruction was sent that the model's template cannot take.
    #[error("`instruction`: {0}")]
    InvalidInstruction(String),
    /// An instruction was sent, but an input is not a pair of texts.
    #[error("`instruction` is for pairs of texts, but input {input} is not a pair")]
    InstructionNeedsPair {
        /// Which input, counted from 0.
        input: usize,
    },
    /// A text was sent, but the model has no tokenizer.
    #[error("this model has no tokenizer: send token ids instead of text")]
    NoTokenizer,
    /// The tokenizer failed on an input.
    #[error("tokenizer: input {input}: {why}")]
    Tokenizer {
        /// Which input, counted from 0.
        input: usize,
        /// What it says.
        why: String,
    },
    /// Inference failed: an error of the device, a panic, or a worker that has ended.
    #[error("inference failed: {0}")]
    Backend(String),
    /// The server is stopping: it rejects new requests, and fails accepted ones once they are abandoned.
    #[error("server is stopping")]
    Stopping,
}

impl EngineError {
    /// How long a caller that waits for room until this deadline pauses before it retries; `None` where a retry is of
    /// no use.
    pub(crate) fn again(&self, deadline: Option<Instant>) -> Option<Duration> {
        match self {
            Self::Overloaded { retry_after } => Some(*retry_after),
            // The server's promise is counted from each retry anew; a client's deadline is not.
            Self::TooLate { retry_after, .. } if deadline.is_none() => Some(*retry_after),
            _ => None,
        }
    }

    /// Whether a request with this deadline is retried after this error; `retries` says that its caller retries where
    /// that is of use.
    pub(crate) fn is_retried(&self, retries: bool, deadline: Option<Instant>) -> bool {
        retries && self.again(deadline).is_some()
    }

    /// The same error, with its input number moved up by `others`, the inputs before those of this request.
    pub(crate) fn behind(self, others: usize) -> Self {
        self.renumbered(|input| others + input)
    }

    /// The same error, with another number of its input.
    pub(crate) fn renumbered(mut self, number: impl FnOnce(usize) -> usize) -> Self {
        match &mut self {
            Self::EmptyInput { input }
            | Self::TooLong { input, .. }
            | Self::InvalidId { input, .. }
            | Self::InvalidTokenTypes { input, .. }
            | Self::InvalidSelection { input, .. }
            | Self::InvalidInput { input, .. }
            | Self::Tokenizer { input, .. }
            | Self::PromptNeedsText { input }
            | Self::InstructionNeedsPair { input } => *input = number(*input),
            _ => {}
        }
        self
    }
}

/// Whole milliseconds, rounded up: a deadline of 1 ms leaves a little less once the request has been read, and not 0.
fn ms(time: Duration) -> u128 {
    time.as_nanos().div_ceil(1_000_000)
}

/// The time that was left for an answer when its request had been read. `0 ms` would read as if no answer were
/// possible.
fn time_left(time: Duration) -> String {
    match ms(time) {
        0 => "its time, which was over before the request was read".into(),
        millis => format!("{millis} ms"),
    }
}

/// When to retry, as text.
fn when(time: Duration) -> String {
    match ms(time) {
        0 => "at once".into(),
        millis @ 1..1000 => format!("in {millis} ms"),
        _ => format!("in {:.1} s", time.as_secs_f64()),
    }
}

fn known_prompts(known: &[String]) -> String {
    if known.is_empty() {
        return "but this model has no prompts: leave it out".into();
    }
    format!("this model's prompts are `{}`", known.join("`, `"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tokenizer_says_is_said_of_an_input_of_the_whole() {
        let failed = EngineError::Tokenizer { input: 1, why: "it panicked on this text".to_owned() };
        assert_eq!(failed.behind(32).to_string(), "tokenizer: input 33: it panicked on this text");
    }

    /// A long text is tokenized only until it is known to be too long.
    #[test]
    fn tokens_that_were_counted_are_the_least_that_there_are() {
        let too_long = EngineError::TooLong { input: 0, tokens: 822, limit: 256 };
        assert!(
            too_long.to_string().starts_with("input 0 has at least 822 tokens, at most 256 are possible: ")
        );
    }

    #[test]
    fn what_is_left_of_a_millisecond_is_not_none() {
        for (nanos, said) in [
            (0, "its time, which was over before the request was read"),
            (1, "1 ms"),
            (910_000, "1 ms"),
            (1_000_000, "1 ms"),
            (49_700_000, "50 ms"),
            (50_000_000, "50 ms"),
        ] {
            let expired = EngineError::Expired { within: Duration::from_nanos(nanos) };
            assert_eq!(expired.to_string(), format!("not answered within {said}"));
        }
    }

    #[test]
    fn nobody_is_told_to_wait_for_no_time() {
        for (micros, said) in [
            (0, "at once"),
            (1, "in 1 ms"),
            (10_000, "in 10 ms"),
            (998_500, "in 999 ms"),
            (999_100, "in 1.0 s"),
            (1_200_300, "in 1.2 s"),
        ] {
            let overloaded = EngineError::Overloaded { retry_after: Duration::from_micros(micros) };
            assert_eq!(overloaded.to_string(), format!("model is overloaded: retry {said}"));
        }
    }
}
