//! Failures in gRPC's words.

use axum::{
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use tonic::{Code, Status, body::Body, metadata::MetadataValue};

use crate::http::{ApiError, ErrorType};

/// Milliseconds after which to ask again; gRPC's clients heed it where they retry at all.
const RETRY_PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Services that whoever watches a server asks for, and tools that look at what there is: they have no key.
const PUBLIC: [&str; 2] = ["/grpc.health.v1.", "/grpc.reflection.v1"];

/// The status that tells an error: the codes are text-embeddings-inference's.
pub(crate) fn status(error: &ApiError) -> Status {
    let code = match error.error_type() {
        ErrorType::Unhealthy => Code::Unavailable,
        ErrorType::Backend | ErrorType::Tokenizer => Code::FailedPrecondition,
        ErrorType::Overloaded => Code::ResourceExhausted,
        ErrorType::Expired => Code::DeadlineExceeded,
        ErrorType::Unauthorized => Code::Unauthenticated,
        ErrorType::Forbidden => Code::PermissionDenied,
        _ if error.is_not_found() => Code::NotFound,
        ErrorType::Validation | ErrorType::Empty => Code::InvalidArgument,
    };
    let mut status = Status::new(code, error.message());
    if let Some(wait) = error.retry_after() {
        let millis = u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        status.metadata_mut().insert(RETRY_PUSHBACK, MetadataValue::from(millis));
    }
    status
}

/// What a call is told whose client does not send the rest of it.
pub(crate) fn unfinished(why: &str) -> Status {
    Status::deadline_exceeded(format!("the call is unfinished: {why}"))
}

/// Whether a request is a call of gRPC.
pub(crate) fn is_call(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Whether these headers are the answer to a call that failed here: as OpenTelemetry has it of servers, and where a model
/// cannot answer, as over HTTP. A stream that was answered at first says in its end how it went.
pub(crate) fn has_failed(headers: &HeaderMap) -> bool {
    headers.get(Status::GRPC_STATUS).is_some_and(|code| {
        matches!(
            Code::from_bytes(code.as_bytes()),
            Code::Unknown
                | Code::DeadlineExceeded
                | Code::FailedPrecondition
                | Code::Unimplemented
                | Code::Internal
                | Code::Unavailable
                | Code::DataLoss
        )
    })
}

/// Whether a path is of a service that needs no key.
pub(crate) fn is_public(path: &str) -> bool {
    PUBLIC.iter().any(|service| path.starts_with(service))
}

/// What a call is answered that comes to no service: it has no key, or there is none.
pub(crate) fn refused(error: &ApiError) -> Response {
    let status = match error.is_not_found() {
        true => Status::unimplemented(error.message()),
        false => status(error),
    };
    status.into_http::<Body>().into_response()
}
