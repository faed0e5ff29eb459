//! Names of every metric the server reports: one list, so that dashboards, engine and protocols agree.
//!
//! The names, labels and units are those of text-embeddings-inference: dashboards made for it work unchanged.
//! Durations are in seconds, queue and batch sizes in requests' inputs, lengths in tokens.
//! A *request* is one call of a client; an *input* is one sequence of that call.
//!
//! | recorded by | metrics |
//! |---|---|
//! | the protocol | `te_request_*` per request, and [`REQUEST_FAILURE`] for every failure that a client is told |
//! | the engine | `te_embed_*` per input, [`QUEUE_SIZE`], [`BATCH_NEXT_SIZE`], [`BATCH_NEXT_TOKENS`], [`REQUEST_INPUT_LENGTH`], and [`REQUEST_FAILURE`] with [`failure::DROPPED`], which no client hears of |

/// Counter, label `method`: requests received.
pub const REQUEST_COUNT: &str = "te_request_count";
/// Counter, label `method`: requests answered with 200.
pub const REQUEST_SUCCESS: &str = "te_request_success";
/// Counter, label `err` (see [`failure`]): requests that failed.
pub const REQUEST_FAILURE: &str = "te_request_failure";
/// Histogram, seconds: from the parsed request to the finished answer.
pub const REQUEST_DURATION: &str = "te_request_duration";
/// Histogram, seconds: mean tokenization time of a request's inputs.
pub const REQUEST_TOKENIZATION_DURATION: &str = "te_request_tokenization_duration";
/// Histogram, seconds: mean time that a request's inputs waited for their batch.
pub const REQUEST_QUEUE_DURATION: &str = "te_request_queue_duration";
/// Histogram, seconds: mean time that the model spent on the batches of a request's inputs.
pub const REQUEST_INFERENCE_DURATION: &str = "te_request_inference_duration";
/// Histogram, tokens: length of an input after truncation.
pub const REQUEST_INPUT_LENGTH: &str = "te_request_input_length";

/// Counter: inputs to embed.
pub const EMBED_COUNT: &str = "te_embed_count";
/// Counter: inputs embedded.
pub const EMBED_SUCCESS: &str = "te_embed_success";
/// Histogram, seconds: one input from arrival to its embedding.
pub const EMBED_DURATION: &str = "te_embed_duration";
/// Histogram, seconds: tokenization of one input.
pub const EMBED_TOKENIZATION_DURATION: &str = "te_embed_tokenization_duration";
/// Histogram, seconds: one input's wait for its batch.
pub const EMBED_QUEUE_DURATION: &str = "te_embed_queue_duration";
/// Histogram, seconds: the model's time on the batch that held the input.
pub const EMBED_INFERENCE_DURATION: &str = "te_embed_inference_duration";

/// Gauge: inputs waiting for a batch.
pub const QUEUE_SIZE: &str = "te_queue_size";
/// Histogram, inputs: size of a batch sent to the model.
pub const BATCH_NEXT_SIZE: &str = "te_batch_next_size";
/// Histogram, tokens: total tokens of a batch sent to the model.
pub const BATCH_NEXT_TOKENS: &str = "te_batch_next_tokens";

/// Label of [`REQUEST_COUNT`] and [`REQUEST_SUCCESS`].
pub const METHOD: &str = "method";
/// Values of the label [`METHOD`].
pub mod method {
    /// `inputs` was one text or one list of ids.
    pub const SINGLE: &str = "single";
    /// `inputs` was a list of them.
    pub const BATCH: &str = "batch";
}

/// Label of [`REQUEST_FAILURE`].
pub const ERR: &str = "err";
/// Values of the label [`ERR`].
pub mod failure {
    /// The tokenizer refused a text.
    pub const TOKENIZATION: &str = "tokenization";
    /// No room in the queue.
    pub const OVERLOADED: &str = "overloaded";
    /// The request was wrong.
    pub const VALIDATION: &str = "validation";
    /// More inputs than one request may have.
    pub const BATCH_SIZE: &str = "batch_size";
    /// The model failed.
    pub const INFERENCE: &str = "inference";
    /// The server is stopping, or its model cannot be run.
    pub const UNHEALTHY: &str = "unhealthy";
    /// The client went away before its answer was ready.
    pub const DROPPED: &str = "dropped";
}
