//! The HTTP protocols, on top of any [`Embedder`](crate::engine::Embedder).
