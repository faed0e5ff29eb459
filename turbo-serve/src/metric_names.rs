//! The names of all metrics that the server reports: one list, so that dashboards, engine and protocols agree.
//!
//! Names, labels and units are those of text-embeddings-inference, so that dashboards made for it work unchanged. Names
//! that it does not have begin with `turbo_`. `docs/metrics.md` documents them for operators. Durations are in seconds,
//! queue and batch sizes in inputs, lengths in tokens. A *request* is one call of a client; an *input* is one sequence
//! of that call.
//!
//! | recorded by | metrics |
//! |---|---|
//! | the protocol | `te_request_*` per request, and [`REQUEST_FAILURE`] for every failure that a client receives for a `POST` request; [`PROCESS_RESIDENT_MEMORY`] whenever metrics are shown |
//! | the engine | [`EMBED`] or [`PREDICT`] per input, [`QUEUE_SIZE`], [`BATCH_NEXT_SIZE`], [`BATCH_NEXT_TOKENS`], [`BATCH_FILL`], [`BATCH_COST_ERROR`], [`BATCH_COST_ERROR_MEDIAN`], [`ADMISSION_REFUSALS`], [`DEADLINE_MISSES`], [`PRIORITY_QUEUE_SIZE`], [`PRIORITY_DURATION`], [`PLANNED_BYTES`], [`USED_BYTES`], [`REQUEST_INPUT_LENGTH`], [`CACHE_HITS`], [`CACHE_SHARED`], [`CACHE_MISSES`], and [`REQUEST_FAILURE`] with [`failure::DROPPED`], which no client receives |
//! | the server | [`BODY_BYTES`], [`ANSWER_BYTES`], and [`ADMISSION_REFUSALS`] with [`refusal::BYTES`] |
//! | the cache | [`CACHE_BYTES`], [`CACHE_ENTRIES`], [`CACHE_EVICTIONS`], [`CACHE_UNWRITTEN`]; it may be shared by several engines |

use metrics::Label;

/// Counter, label `method`: requests received.
pub const REQUEST_COUNT: &str = "te_request_count";
/// Counter, label `method`: requests answered with 200.
pub const REQUEST_SUCCESS: &str = "te_request_success";
/// Counter, label `err` (see [`failure`]): requests that failed.
pub const REQUEST_FAILURE: &str = "te_request_failure";
/// Histogram, seconds: from the parsed request to the finished answer, whether or not its client has taken it.
pub const REQUEST_DURATION: &str = "te_request_duration";
/// Histogram, seconds: the mean time in which a request's inputs were tokenized.
pub const REQUEST_TOKENIZATION_DURATION: &str = "te_request_tokenization_duration";
/// Histogram, seconds: the mean time for which a request's inputs waited for their batch.
pub const REQUEST_QUEUE_DURATION: &str = "te_request_queue_duration";
/// Histogram, seconds: the mean time that the model spent on the batches of a request's inputs.
pub const REQUEST_INFERENCE_DURATION: &str = "te_request_inference_duration";
/// Histogram, tokens: length of an input after truncation.
pub const REQUEST_INPUT_LENGTH: &str = "te_request_input_length";

/// Names of the metrics that are recorded per input; each has the task's word in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskNames {
    /// Counter: inputs received.
    pub count: &'static str,
    /// Counter: inputs that were answered.
    pub success: &'static str,
    /// Histogram, seconds: one input from arrival to its answer.
    pub duration: &'static str,
    /// Histogram, seconds: tokenization of one input.
    pub tokenization_duration: &'static str,
    /// Histogram, seconds: one input's wait for its batch.
    pub queue_duration: &'static str,
    /// Histogram, seconds: the model's time on the batch that held the input.
    pub inference_duration: &'static str,
}

/// Metrics of models that give vectors, dense or sparse.
pub const EMBED: TaskNames = TaskNames {
    count: "te_embed_count",
    success: "te_embed_success",
    duration: "te_embed_duration",
    tokenization_duration: "te_embed_tokenization_duration",
    queue_duration: "te_embed_queue_duration",
    inference_duration: "te_embed_inference_duration",
};

/// Metrics of models that give scores: of labels, of words, or of the places of an answer.
pub const PREDICT: TaskNames = TaskNames {
    count: "te_predict_count",
    success: "te_predict_success",
    duration: "te_predict_duration",
    tokenization_duration: "te_predict_tokenization_duration",
    queue_duration: "te_predict_queue_duration",
    inference_duration: "te_predict_inference_duration",
};

/// Gauge: inputs waiting for a batch.
pub const QUEUE_SIZE: &str = "te_queue_size";
/// Histogram, inputs: size of a batch sent to the model.
pub const BATCH_NEXT_SIZE: &str = "te_batch_next_size";
/// Histogram, tokens: total tokens of a batch sent to the model.
pub const BATCH_NEXT_TOKENS: &str = "te_batch_next_tokens";

/// Counter, label [`TIER`]: inputs whose answer was found in that tier.
pub const CACHE_HITS: &str = "turbo_cache_hits";
/// Counter: inputs that had to be computed.
pub const CACHE_MISSES: &str = "turbo_cache_misses";
/// Counter: inputs that were answered with the result of a computation already under way for another one.
pub const CACHE_SHARED: &str = "turbo_cache_shared";
/// Counter, label [`TIER`]: answers evicted to make room for others.
pub const CACHE_EVICTIONS: &str = "turbo_cache_evictions";
/// Gauge, bytes, label [`TIER`]: the size of the cache, including keys and tables.
pub const CACHE_BYTES: &str = "turbo_cache_bytes";
/// Gauge, label [`TIER`]: answers that are kept.
pub const CACHE_ENTRIES: &str = "turbo_cache_entries";

/// Counter, label [`TIER`]: answers that were not written to that tier, because it was too slow or could not be used.
pub const CACHE_UNWRITTEN: &str = "turbo_cache_unwritten";

/// Label of the response cache's metrics.
pub const TIER: &str = "tier";
/// Values of the label [`TIER`].
pub mod tier {
    /// Memory of this process.
    pub const MEMORY: &str = "memory";
    /// A folder of its own.
    pub const FOLDER: &str = "folder";
    /// A Redis server, which other servers may share.
    pub const REDIS: &str = "redis";
}

/// Histogram, 0 to 1: how full a batch is, in tokens or in inputs, whichever is the greater.
pub const BATCH_FILL: &str = "turbo_batch_fill";
/// Histogram: the error of a batch's predicted cost, as a fraction of what the batch took.
pub const BATCH_COST_ERROR: &str = "turbo_batch_cost_error";
/// Gauge: the median of the last hundred of these errors.
pub const BATCH_COST_ERROR_MEDIAN: &str = "turbo_batch_cost_error_median";

/// Counter, label [`REASON`]: requests that were not admitted. Requests that wait for room, such as the messages of a
/// stream, do not count.
pub const ADMISSION_REFUSALS: &str = "turbo_admission_refusals";
/// Label of [`ADMISSION_REFUSALS`].
pub const REASON: &str = "reason";
/// Values of the label [`REASON`].
pub mod refusal {
    /// All slots were taken.
    pub const SLOTS: &str = "slots";
    /// The answer would have come too late.
    pub const DEADLINE: &str = "deadline";
    /// The server holds as many bytes of bodies or answers as its limits allow.
    pub const BYTES: &str = "bytes";
}

/// Counter, label [`OUTCOME`]: requests that were not answered in time, or could not have been even alone.
pub const DEADLINE_MISSES: &str = "turbo_deadline_misses";
/// Label of [`DEADLINE_MISSES`].
pub const OUTCOME: &str = "outcome";
/// Values of the label [`OUTCOME`].
pub mod outcome {
    /// Given up: the deadline passed, or left less time than the request takes alone.
    pub const EXPIRED: &str = "expired";
    /// Answered after its deadline, whether the client set it or the server promised it.
    pub const LATE: &str = "late";
}

/// Gauge, label [`PRIORITY`]: inputs of a class that wait for a batch.
pub const PRIORITY_QUEUE_SIZE: &str = "turbo_priority_queue_size";
/// Histogram, seconds, label [`PRIORITY`]: one input of a class from arrival to its answer.
pub const PRIORITY_DURATION: &str = "turbo_priority_duration";
/// Label of metrics by priority class: `low`, `normal` or `high`.
pub const PRIORITY: &str = "priority";

/// Gauge, bytes, label [`BATCH`]: the memory plan of a batch.
pub const PLANNED_BYTES: &str = "turbo_planned_bytes";
/// Label of [`PLANNED_BYTES`].
pub const BATCH: &str = "batch";
/// Values of the label [`BATCH`].
pub mod batch {
    /// The largest possible batch: memory is reserved for it.
    pub const LARGEST: &str = "largest";
    /// The last batch; updated at most once a second, because planning takes longer than counting.
    pub const LAST: &str = "last";
}

/// Gauge, bytes, label [`OF`]: device memory that a model holds.
pub const USED_BYTES: &str = "turbo_used_bytes";
/// Label of [`USED_BYTES`].
pub const OF: &str = "of";
/// Values of the label [`OF`].
pub mod of {
    /// Weights, as kernels read them.
    pub const WEIGHTS: &str = "weights";
    /// Activations and rows of batches.
    pub const ACTIVATIONS: &str = "activations";
}

/// Gauge, bytes: bodies that the server holds because they are arriving or their requests are not answered yet.
pub const BODY_BYTES: &str = "turbo_body_bytes";
/// Gauge, bytes: answers that the server holds because their clients have not taken them yet.
pub const ANSWER_BYTES: &str = "turbo_answer_bytes";

/// Gauge, bytes: memory of the process, under the name that Prometheus' own clients use; where the system reports it.
pub const PROCESS_RESIDENT_MEMORY: &str = "process_resident_memory_bytes";

/// Label of every metric of a model, if a server has several: `name/version`. Failures that clients receive do not have
/// it, because many of them concern no model.
pub const MODEL: &str = "model";

/// These labels, and [`MODEL`] if there is one.
pub(crate) fn labels<const N: usize>(
    model: Option<&str>,
    others: [(&'static str, &'static str); N],
) -> Vec<Label> {
    let others = others.map(|(key, value)| Label::from_static_parts(key, value));
    others.into_iter().chain(model.map(|model| Label::new(MODEL, model.to_owned()))).collect()
}

/// Label of [`REQUEST_COUNT`] and [`REQUEST_SUCCESS`].
pub const METHOD: &str = "method";
/// Values of the label [`METHOD`].
pub mod method {
    /// `inputs` was one text or one list of ids.
    pub const SINGLE: &str = "single";
    /// `inputs` was a list of texts or of lists of ids.
    pub const BATCH: &str = "batch";
}

/// Label of [`REQUEST_FAILURE`].
pub const ERR: &str = "err";
/// Values of the label [`ERR`].
pub mod failure {
    /// The tokenizer refused a text.
    pub const TOKENIZATION: &str = "tokenization";
    /// No slots are free, or the deadline cannot be met.
    pub const OVERLOADED: &str = "overloaded";
    /// The deadline has passed.
    pub const EXPIRED: &str = "expired";
    /// The request was invalid.
    pub const VALIDATION: &str = "validation";
    /// More inputs than one request may have.
    pub const BATCH_SIZE: &str = "batch_size";
    /// The model failed.
    pub const INFERENCE: &str = "inference";
    /// The server is stopping, or its model cannot be run.
    pub const UNHEALTHY: &str = "unhealthy";
    /// The model is for another task than the route.
    pub const MODEL_TYPE: &str = "model_type";
    /// The request came without the server's key, or from a web page that is not allowed.
    pub const UNAUTHORIZED: &str = "unauthorized";
    /// The client went away before its answer was ready.
    pub const DROPPED: &str = "dropped";
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_metric_is_in_the_documents() {
        let documents = include_str!("../../docs/metrics.md");
        let names: Vec<&str> = include_str!("metric_names.rs")
            .split('"')
            .filter(|text| ["te_", "turbo_", "process_"].iter().any(|begins| text.starts_with(begins)))
            .filter(|text| text.len() > "process_".len())
            .collect();
        assert!(names.len() > 30, "{names:?}");
        for name in names {
            assert!(documents.contains(&format!("`{name}`")), "{name}");
        }
    }
}
