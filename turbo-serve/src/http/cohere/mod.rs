//! Cohere's route for vectors, as its clients call it, and those of vLLM in its words. Its reranker is one of
//! [several](super::rerank).
//!
//! | route | body | answer |
//! |---|---|---|
//! | `/v2/embed` | `texts` | `{"embeddings": {"float": [[f32]], …}, "texts", "meta", …}` |

mod embed;
mod input_type;

pub(super) use embed::embed;
