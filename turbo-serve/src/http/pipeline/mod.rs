//! `POST /pipeline/{task}`: the bodies and answers that Hugging Face's inference clients send and read.
//!
//! | task | `inputs` | answer |
//! |---|---|---|
//! | `feature-extraction`, `sentence-similarity` | as `/embed`, `/similarity` | as there |
//! | `text-classification` | a text, or a list of texts | `[[{"label", "score"}]]` |
//! | `token-classification` | a text, or a list of texts | `[{"entity_group", "score", "word", "start", "end"}]`, or a list of them |
//! | `question-answering` | `{"question", "context"}` | `{"score", "start", "end", "answer"}`; a list for `top_k` above 1 |
//! | `fill-mask` | a text | `[{"score", "token", "token_str", "sequence"}]`, or a list of them for several masks |
//!
//! `start` and `end` count characters, as Python does.

mod classify;
mod entities;
mod gaps;
mod questions;

pub(super) use classify::text_classification;
pub(super) use entities::token_classification;
pub(super) use gaps::fill_mask;
pub(super) use questions::question_answering;
