//! gRPC: the services of text-embeddings-inference and KServe with their streams, health and reflection.
//!
//! In: messages. Out: messages, or a status. The routes are axum's, so they share a port with those of
//! [`http`](crate::http).
//!
//! ```text
//! message ─▶ calls (which model) ─▶ Ask ─▶ InferRequest ─▶ Infer
//! stream  ─▶ as many at a time as half the slots, in order ──▲   (KServe's: 256)
//! ```
//!
//! | service | what it is |
//! |---|---|
//! | `tei.v1.Info`, `.Embed`, `.Predict`, `.Rerank`, `.Tokenize` | [`proto::tei`] |
//! | `inference.GRPCInferenceService` | KServe's Open Inference Protocol v2, [`proto::open_inference`] |
//! | `grpc.health.v1.Health` | the health of the server (the empty name), or of a service; `Watch` sends changes |
//! | `grpc.reflection.v1.ServerReflection`, `v1alpha` | the contents of the `.proto` files |
//!
//! The metadata key `x-model`, with `name` or `name/version`, selects one of several models; KServe's messages name
//! theirs. A call's deadline (`grpc-timeout`, in which every client sends it) and `x-request-priority` (`low`,
//! `normal`, `high`) set its urgency: a call that cannot be answered in time is refused at once. A stream's deadline
//! covers the whole stream.
//!
//! Messages may be compressed with gzip or deflate. Answers are not compressed.
//!
//! # Streams
//! Answers come in the order of their messages, each as soon as it and those before it are ready. A stream that sends
//! faster than the model answers is read more slowly. It takes at most half of the model's slots (at most 256 for
//! KServe's stream, whose messages may name several models), and waits for slots where other requests are refused and
//! told to retry. While one of its messages waits, the next one is not submitted, and later ones stay with the client.
//! The same holds while that many answers wait to be read by the client; messages that were submitted before are still
//! answered. The first error ends a stream and cancels its other requests, and so does a client that disconnects.
//! KServe's stream reports the failure of a single request in a message and goes on; only an error after which no
//! message can be read ends it, after the answers to earlier messages.
//!
//! # Statuses
//! | status | when |
//! |---|---|
//! | `INVALID_ARGUMENT` | the message is invalid |
//! | `FAILED_PRECONDITION` | the model has another task, has no tokenizer, or failed |
//! | `RESOURCE_EXHAUSTED` | no slot is free, or the answer would come too late; `grpc-retry-pushback-ms` says when to retry. Without that: a message is too large when it is unpacked |
//! | `OUT_OF_RANGE` | a message is too large as it is sent |
//! | `DEADLINE_EXCEEDED` | the call was not answered in time, or its client did not send the rest of it |
//! | `NOT_FOUND` | there is no such model |
//! | `UNAVAILABLE` | the server is stopping, or the model cannot be run |
//! | `UNAUTHENTICATED` | the key is missing |

mod calls;
mod few_fields;
mod health;
mod observe;
mod open_inference;
mod router;
mod status;
mod streams;
mod tei;
mod urgency;

pub use router::router;
pub(crate) use status::{counted, has_failed, is_call, is_public, is_service, refused, unfinished};

/// Generated from the `.proto` files: messages, and clients and servers of their services.
pub mod proto {
    /// The descriptors of all services, for reflection.
    pub(super) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors"));

    /// Package `tei.v1`.
    #[expect(missing_docs, clippy::all, reason = "generated")]
    pub mod tei {
        tonic::include_proto!("tei.v1");
    }

    /// Package `inference`: KServe's protocol.
    #[expect(missing_docs, reason = "generated")]
    pub mod open_inference {
        tonic::include_proto!("inference");
    }
}
