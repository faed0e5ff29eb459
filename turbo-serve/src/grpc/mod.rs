//! gRPC: the services of text-embeddings-inference and KServe with their streams, health and reflection.
//!
//! In: messages. Out: messages, or a status. The routes are axum's, so they stand beside those of
//! [`http`](crate::http) behind one port.
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
//! | `grpc.health.v1.Health` | of the server (the empty name), or of a service; `Watch` tells changes |
//! | `grpc.reflection.v1.ServerReflection`, `v1alpha` | what is in the `.proto` files |
//!
//! The metadata `x-model: name` or `name/version` say which of several models is meant; KServe's messages say it
//! themselves. A call's deadline (`grpc-timeout`, which every client sends for it) and `x-request-priority` (`low`,
//! `normal`, `high`) set its urgency: a call that cannot be answered in time is refused at once. A stream's deadline
//! covers all of the stream.
//!
//! Messages may come packed with gzip or deflate. Answers are not packed.
//!
//! # Streams
//! Answers have the order of their messages, and each is sent as soon as it and those before it are ready. A stream
//! that sends faster than the model answers is read more slowly: it takes half of the model's slots at most (KServe's,
//! whose messages may name several models, 256), and waits for slots where other requests are refused and told to
//! retry. While one of its messages waits, the next one is not submitted, and those after it stay with the client. The
//! same holds while as many answers as that wait to be read by the client; messages that were submitted before are
//! answered meanwhile. The first error ends a stream and cancels its other requests, as does a client that disconnects.
//! KServe's stream reports the failure of one request in a message and goes on; an error after which no message can be
//! read ends it, too, after the answers to earlier messages.
//!
//! # Statuses
//! | status | when |
//! |---|---|
//! | `INVALID_ARGUMENT` | the message is invalid |
//! | `FAILED_PRECONDITION` | the model has another task, has no tokenizer, or failed |
//! | `RESOURCE_EXHAUSTED` | no slot is free, or the answer would come too late; `grpc-retry-pushback-ms` says when to retry. Without it, a message that is too large when it is unpacked |
//! | `OUT_OF_RANGE` | a message is too large as it is sent |
//! | `DEADLINE_EXCEEDED` | it was not answered in time, or its client did not send the rest of it |
//! | `NOT_FOUND` | there is no such model |
//! | `UNAVAILABLE` | the server stops, or the model cannot be run |
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
