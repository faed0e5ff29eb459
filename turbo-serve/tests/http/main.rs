//! The protocols over HTTP, against an engine that knows its answers beforehand, and against the real one: statuses,
//! bodies, headers, metrics, cancelling, stopping, and malformed input.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod answers;
mod cohere;
mod dashboard;
mod engine;
mod fake;
mod fuzz;
mod grpc;
mod grpc_observed;
mod guards;
mod kserve;
mod kserve_grpc;
mod lifecycle;
mod models;
mod openapi;
mod pipelines;
mod poison;
mod rerank;
mod several;
mod statuses;
mod tei;
mod tiny;
mod vertex;
mod vllm;
