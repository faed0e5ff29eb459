//! OpenAI's routes, as its clients call them.

mod embeddings;
mod models;

pub(super) use embeddings::{EncodingFormat, Endianness, check_bytes, check_count, embeddings};
pub(super) use models::{list, retrieve};
