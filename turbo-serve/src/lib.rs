//! From request to response: the turbo engine and server.

pub mod engine;
pub mod http;
pub mod metric_names;
