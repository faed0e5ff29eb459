//! Headers that report an answer's usage and timings, as in text-embeddings-inference; times are in whole milliseconds.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::engine::Usage;

const COMPUTE_TYPE: HeaderName = HeaderName::from_static("x-compute-type");
const COMPUTE_TIME: HeaderName = HeaderName::from_static("x-compute-time");
const COMPUTE_CHARACTERS: HeaderName = HeaderName::from_static("x-compute-characters");
const COMPUTE_TOKENS: HeaderName = HeaderName::from_static("x-compute-tokens");
const TOTAL_TIME: HeaderName = HeaderName::from_static("x-total-time");
const TOKENIZATION_TIME: HeaderName = HeaderName::from_static("x-tokenization-time");
const QUEUE_TIME: HeaderName = HeaderName::from_static("x-queue-time");
const INFERENCE_TIME: HeaderName = HeaderName::from_static("x-inference-time");

/// The kind of device for `x-compute-type`: the first word of the device's name.
pub(crate) fn compute_type(device: &str) -> HeaderValue {
    let kind = device.split_whitespace().next().unwrap_or_default();
    HeaderValue::from_str(kind).unwrap_or(HeaderValue::from_static("unknown"))
}

/// Headers of an answer that took `total` from the request's last byte to the answer's.
pub(crate) fn of(usage: &Usage, compute_type: HeaderValue, total: Duration) -> HeaderMap {
    let millis = |time: Duration| number(time.as_millis());
    let timings = &usage.timings;
    HeaderMap::from_iter([
        (COMPUTE_TYPE, compute_type),
        (COMPUTE_TIME, millis(total)),
        (COMPUTE_CHARACTERS, number(usage.characters as u128)),
        (COMPUTE_TOKENS, number(usage.tokens as u128)),
        (TOTAL_TIME, millis(total)),
        (TOKENIZATION_TIME, millis(timings.tokenization)),
        (QUEUE_TIME, millis(timings.queue)),
        (INFERENCE_TIME, millis(timings.inference)),
    ])
}

fn number(value: u128) -> HeaderValue {
    HeaderValue::from(u64::try_from(value).unwrap_or(u64::MAX))
}
