//! From request to response: the turbo engine and server
pub mod metric_names;
