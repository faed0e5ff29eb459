//! The routes of vLLM's pooling models that no other protocol has, as its clients call them.
//!
//! | route | body | answer |
//! |---|---|---|
//! | `/score`, `/v1/score` | `queries` and `documents`, or `text_1` and `text_2` | `{"data": [{"index", "object": "score", "score"}], …}` |
//! | `/classify` | `input` | `{"data": [{"index", "label", "probs", "num_classes"}], …}` |
//! | `/pooling` | `input`, `task` | `{"data": [{"index", "object": "pooling", "data"}], …}` |
//!
//! Fields that do not change an answer are ignored (`user`, `priority`). Fields that would change it in a way that is
//! not possible here are refused by name ([`fields`]).

mod classify;
pub(super) mod fields;
mod pooling;
mod score;

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::answer::new_id;

pub(super) use classify::classes;
pub(super) use pooling::pooling;
pub(super) use score::{NAMES, score};

/// A list of answers, and its usage.
#[derive(Serialize)]
struct List<'a, T> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    data: Vec<T>,
    usage: Usage,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl<'a, T: Serialize> List<'a, T> {
    fn new(id: String, model: &'a str, data: Vec<T>, tokens: usize) -> Self {
        let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
        Self { id, object: "list", created: created(), model, data, usage }
    }

    fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and strings are always JSON")
    }
}

/// The time at which an answer is made, in seconds since 1970.
fn created() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// The id of an answer: the client's id of the request, if it sent one, or a new one.
fn id_of(kind: &str, request_id: Option<String>) -> String {
    request_id.map_or_else(|| new_id(kind), |id| format!("{kind}-{id}"))
}
