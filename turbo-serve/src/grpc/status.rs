//! Failures as gRPC statuses.

use axum::{
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use metrics::counter;
use tonic::{Code, Status, body::Body, metadata::MetadataValue};

use crate::{
    http::{ApiError, ErrorType, Failure},
    metric_names::{ERR, REQUEST_FAILURE, failure},
};

/// Milliseconds after which to retry; gRPC clients that retry honour it.
const RETRY_PUSHBACK: &str = "grpc-retry-pushback-ms";

/// The reason under which a failure is counted. It travels with the status to the call's log line, and is removed
/// before the client sees it.
const REASON: &str = "x-turbo-reason";

/// Services that need no key: for monitoring, and for tools that list the services.
const PUBLIC: [&str; 2] = ["/grpc.health.v1.", "/grpc.reflection.v1"];

/// All services.
const SERVICES: [&str; 4] = ["/tei.v1.", "/inference.GRPCInferenceService/", PUBLIC[0], PUBLIC[1]];

/// Content types of calls whose messages are protobuf; gRPC has others, which are not supported.
const CONTENT_TYPES: [&[u8]; 2] = [b"application/grpc", b"application/grpc+proto"];

/// The status for an error, with its reason.
pub(crate) fn status(error: &ApiError) -> Status {
    let Failure(reason) = error.failure();
    with_reason(told(error), reason)
}

fn with_reason(mut status: Status, reason: &'static str) -> Status {
    status.metadata_mut().insert(REASON, MetadataValue::from_static(reason));
    status
}

/// The reason under which a status is counted; every status made here has one.
pub(super) fn reason_of(status: &Status) -> Option<&str> {
    status.metadata().get(REASON)?.to_str().ok()
}

/// Takes the reason out of headers, or trailers, that go to a client.
pub(super) fn without_reason(headers: &mut HeaderMap) {
    headers.remove(REASON);
}

/// The status that a client receives for an error, with text-embeddings-inference's codes.
fn told(error: &ApiError) -> Status {
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

/// The status for a failure that is found before a message reaches its service; also counts it.
pub(crate) fn counted(error: &ApiError) -> Status {
    let Failure(reason) = error.failure();
    counter!(REQUEST_FAILURE, ERR => reason).increment(1);
    status(error)
}

/// The status of a call whose client does not send the rest of it; also counts it, as over HTTP.
pub(crate) fn unfinished(why: &str) -> Status {
    counter!(REQUEST_FAILURE, ERR => failure::VALIDATION).increment(1);
    with_reason(Status::deadline_exceeded(format!("the call is unfinished: {why}")), failure::VALIDATION)
}

/// Whether a request's content type says that it is a gRPC call.
pub(crate) fn is_call(headers: &HeaderMap) -> bool {
    let Some(said) = headers.get(header::CONTENT_TYPE) else { return false };
    let essence = said.as_bytes().split(|&byte| byte == b';').next().unwrap_or_default();
    CONTENT_TYPES.contains(&essence.trim_ascii())
}

/// Whether a path belongs to a service, and so to none of [`http`](crate::http)'s routes.
pub(crate) fn is_service(path: &str) -> bool {
    SERVICES.iter().any(|service| path.starts_with(service))
}

/// Whether these headers, or trailers of an answer that has begun, report a server-side failure: the codes that
/// OpenTelemetry counts as server errors, and those of a model that cannot answer, as over HTTP.
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

/// Whether a path belongs to a service that needs no key.
pub(crate) fn is_public(path: &str) -> bool {
    PUBLIC.iter().any(|service| path.starts_with(service))
}

/// The answer, with its reason, to a call that reaches no service: the key is missing, or there is no such service.
pub(crate) fn refused(error: &ApiError) -> Response {
    let status = match error.is_not_found() {
        true => Status::unimplemented(error.message()),
        false => told(error),
    };
    let mut response = status.into_http::<Body>().into_response();
    response.extensions_mut().insert(error.failure());
    response
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use tonic_health::pb::health_server;
    use tonic_reflection::pb::{v1, v1alpha};

    use super::*;
    use crate::grpc::proto::{open_inference::grpc_inference_service_server, tei};

    #[test]
    fn calls_say_so() {
        let is_call = |value: &'static str| {
            is_call(&HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(value))]))
        };
        for call in ["application/grpc", "application/grpc+proto", "application/grpc ; charset=utf-8"] {
            assert!(is_call(call), "{call}");
        }
        for other in ["", "application/grpc+json", "application/grpc-web", "application/grpc+proto+json"] {
            assert!(!is_call(other), "{other}");
        }
        assert!(!super::is_call(&HeaderMap::new()));
    }

    #[test]
    fn calls_go_to_services() {
        for service in [
            tei::info_server::SERVICE_NAME,
            tei::embed_server::SERVICE_NAME,
            tei::predict_server::SERVICE_NAME,
            tei::rerank_server::SERVICE_NAME,
            tei::tokenize_server::SERVICE_NAME,
            grpc_inference_service_server::SERVICE_NAME,
            health_server::SERVICE_NAME,
            v1::server_reflection_server::SERVICE_NAME,
            v1alpha::server_reflection_server::SERVICE_NAME,
        ] {
            assert!(is_service(&format!("/{service}/Method")), "{service}");
        }
        for path in ["/embed", "/v2/models/tei.v1.Embed/infer", "/models/tei.v1.Embed/embed"] {
            assert!(!is_service(path), "{path}");
        }
    }
}
