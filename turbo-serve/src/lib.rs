//! From request to response: the turbo engine and server.
//!
//! | module | what it is about |
//! |---|---|
//! | [`engine`] | inputs in, rows out: admission, tokens, queue, batches; no protocol |
//! | [`cache`] | cached answers, so that the same input need not be computed again |
//! | [`models`] | what is served, by name and version; loaded and unloaded while serving |
//! | [`http`] | the routes of text-embeddings-inference, OpenAI, Cohere, Jina, vLLM, Hugging Face's pipelines, KServe and Vertex AI over [`models::Models`] |
//! | [`grpc`] | the gRPC services of text-embeddings-inference and KServe, health and reflection |
//! | [`dashboard`] | a page that shows live what the server does |
//! | [`net`] | sockets, TLS, HTTP/1.1 and HTTP/2, keys, and limits that apply to every protocol |
//! | [`tasks`] | from rows to what they mean: labels, answers, words |
//! | [`files`] | files of texts in, files of answers out, row by row |
//! | [`hub`] | models by their names on the Hugging Face Hub |
//! | [`metric_names`] | the metrics, and what records them |
//!
#![doc = include_str!("../README.md")]

pub mod cache;
pub mod dashboard;
pub mod engine;
pub mod files;
pub mod grpc;
pub mod http;
pub mod hub;
mod kserve;
pub mod metric_names;
pub mod models;
pub mod net;
mod request_span;
pub mod tasks;
