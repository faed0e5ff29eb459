//! Cohere's route for vectors, which vLLM also has. Its route for ranking documents is in [`rerank`](super::rerank).
//!
//! | route | body | answer |
//! |---|---|---|
//! | `/v2/embed` | `texts` | `{"embeddings": {"float": [[f32]], …}, "texts", "meta", …}` |

mod embed;
mod input_type;

pub(super) use embed::embed;
