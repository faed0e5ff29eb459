//! Errors as clients receive them: a status, a type and a message.
//!
//! The types, their spelling and their statuses are those of text-embeddings-inference (which documents them in lower
//! case and sends them in camel case; clients match what is sent).

use std::time::Duration;

use axum::{
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use turbo_models::tasks::TaskError;

use super::write::NotFinite;
use crate::{
    engine::EngineError,
    metric_names::failure,
    models::{ChangeError, NotServed},
    net::NoRoom,
};

/// Milliseconds to wait. `Retry-After`, which is sent with it, has whole seconds only; OpenAI's clients read this one
/// first.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// The kind of a failure; serialised by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum ErrorType {
    Unhealthy,
    Backend,
    Overloaded,
    Validation,
    Tokenizer,
    Empty,
    /// Beyond text-embeddings-inference, which answers such a request with no body at all.
    Unauthorized,
    /// Beyond text-embeddings-inference, which does not refuse web pages.
    Forbidden,
    /// Beyond text-embeddings-inference, which knows no deadlines.
    Expired,
}

impl ErrorType {
    fn status(self) -> StatusCode {
        match self {
            Self::Unhealthy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Backend => StatusCode::FAILED_DEPENDENCY,
            Self::Overloaded => StatusCode::TOO_MANY_REQUESTS,
            Self::Validation | Self::Tokenizer => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Empty => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::Expired => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

/// Most bytes of a message. Some messages repeat the invalid value, which may fill a body; over gRPC a message is a
/// header, and clients accept only some kilobytes of headers.
const MOST_SAID: usize = 1000;

/// A failure before it is written in a protocol's form: [`TeiError`], [`OpenAiError`], [`RerankError`] or
/// [`KserveError`].
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    error_type: ErrorType,
    /// OpenAI's code, for errors for which its clients expect one.
    code: Option<&'static str>,
    message: String,
    retry_after: Option<Duration>,
    failure: Failure,
}

/// The label under which a failed request is counted; travels in the response's extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure(pub(crate) &'static str);

impl ApiError {
    /// A failure with its type's usual status.
    fn new(error_type: ErrorType, failure: &'static str, message: impl Into<String>) -> Self {
        Self {
            status: error_type.status(),
            error_type,
            code: None,
            message: shortened(message.into()),
            retry_after: None,
            failure: Failure(failure),
        }
    }

    /// An invalid request: 422.
    pub(crate) fn validation(message: impl Into<String>) -> Self {
        Self::new(ErrorType::Validation, failure::VALIDATION, message)
    }

    /// A request that HTTP has its own status for: 400, 404, 405, 408, 413 or 415.
    pub(crate) fn refused(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, ..Self::validation(message) }
    }

    /// An answer that cannot be given: 424.
    pub(crate) fn backend(message: impl Into<String>) -> Self {
        Self::new(ErrorType::Backend, failure::INFERENCE, message)
    }

    /// A model for another task: 424.
    pub(crate) fn wrong_model(message: impl Into<String>) -> Self {
        Self::new(ErrorType::Backend, failure::MODEL_TYPE, message)
    }

    /// A request without anything to answer: 400.
    pub(crate) fn empty(message: impl Into<String>) -> Self {
        Self::new(ErrorType::Empty, failure::VALIDATION, message)
    }

    /// A server that does not answer requests now: 503.
    pub(super) fn unhealthy(message: impl Into<String>) -> Self {
        Self::new(ErrorType::Unhealthy, failure::UNHEALTHY, message)
    }

    /// A request without this server's key: 401.
    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(ErrorType::Unauthorized, failure::UNAUTHORIZED, message)
    }

    /// A request from a web page that is not allowed: 403.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(ErrorType::Forbidden, failure::UNAUTHORIZED, message)
    }

    /// Names the body's field whose inputs the error is about.
    pub(super) fn of_field(self, field: &str) -> Self {
        Self { message: shortened(format!("`{field}`: {}", self.message)), ..self }
    }

    /// Appends what can be done about it.
    pub(super) fn with_remedy(self, remedy: &str) -> Self {
        Self { message: shortened(format!("{}: {remedy}", self.message)), ..self }
    }

    /// Its HTTP status.
    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// What kind of failure it is.
    pub(crate) fn error_type(&self) -> ErrorType {
        self.error_type
    }

    /// Whether its status is 404.
    pub(crate) fn is_not_found(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
    }

    /// Its message.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// When to retry, where that is known.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The label under which it is counted.
    pub(crate) fn failure(&self) -> Failure {
        self.failure
    }

    fn respond(self, body: Vec<u8>) -> Response {
        let mut response = (self.status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
        if let Some(wait) = self.retry_after {
            let millis = wait.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(u64::MAX);
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(millis.div_ceil(1000)));
            headers.insert(RETRY_AFTER_MS, HeaderValue::from(millis));
        }
        response.extensions_mut().insert(self.failure);
        response
    }
}

/// Shortens a message for sending. A long one keeps both ends, because what was expected comes last.
fn shortened(message: String) -> String {
    const LEFT_OUT: &str = "…";
    if message.len() <= MOST_SAID {
        return message;
    }
    let half = (MOST_SAID - LEFT_OUT.len()) / 2;
    let begin = &message[..message.floor_char_boundary(half)];
    let end = &message[message.ceil_char_boundary(message.len() - half)..];
    [begin, LEFT_OUT, end].concat()
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        let (error_type, label) = match &error {
            EngineError::Overloaded { .. }
            | EngineError::TooLate { .. }
            | EngineError::NoRoomForAnswer { .. } => (ErrorType::Overloaded, failure::OVERLOADED),
            EngineError::Expired { .. } => (ErrorType::Expired, failure::EXPIRED),
            EngineError::Empty => (ErrorType::Empty, failure::VALIDATION),
            EngineError::TooManyInputs { .. } => (ErrorType::Validation, failure::BATCH_SIZE),
            EngineError::EmptyInput { .. } => (ErrorType::Empty, failure::TOKENIZATION),
            EngineError::TooLong { .. } => (ErrorType::Validation, failure::TOKENIZATION),
            EngineError::InvalidId { .. }
            | EngineError::InvalidInput { .. }
            | EngineError::InvalidTokenTypes { .. }
            | EngineError::InvalidSelection { .. }
            | EngineError::AnswerTooLarge { .. }
            | EngineError::TooManyWindows { .. }
            | EngineError::TooManyAnswers { .. }
            | EngineError::InvalidDimensions { .. }
            | EngineError::UnknownPrompt { .. }
            | EngineError::PromptNeedsText { .. }
            | EngineError::NoInstruction
            | EngineError::InvalidInstruction(_)
            | EngineError::InstructionNeedsPair { .. } => (ErrorType::Validation, failure::VALIDATION),
            EngineError::NoSuchRows { .. } => (ErrorType::Backend, failure::MODEL_TYPE),
            EngineError::NoTokenizer | EngineError::Tokenizer { .. } => {
                (ErrorType::Tokenizer, failure::TOKENIZATION)
            }
            EngineError::Backend(_) => (ErrorType::Backend, failure::INFERENCE),
            EngineError::Stopping => (ErrorType::Unhealthy, failure::UNHEALTHY),
        };
        let retry_after = match error {
            EngineError::Overloaded { retry_after }
            | EngineError::TooLate { retry_after, .. }
            | EngineError::NoRoomForAnswer { retry_after, .. } => Some(retry_after),
            _ => None,
        };
        Self { retry_after, ..Self::new(error_type, label, message) }
    }
}

impl From<NotServed> for ApiError {
    fn from(error: NotServed) -> Self {
        let message = error.to_string();
        match error {
            NotServed::Stopping => EngineError::Stopping.into(),
            NotServed::Expired { .. } => Self::new(ErrorType::Expired, failure::EXPIRED, message),
            NotServed::UnknownModel { .. }
            | NotServed::UnknownVersion { .. }
            | NotServed::Unloaded { .. } => {
                let code = Some("model_not_found");
                Self { code, ..Self::refused(StatusCode::NOT_FOUND, message) }
            }
            NotServed::NotReady { .. } => Self::unhealthy(message),
            NotServed::Unavailable { retry_after, .. } => Self { retry_after, ..Self::unhealthy(message) },
        }
    }
}

impl From<ChangeError> for ApiError {
    fn from(error: ChangeError) -> Self {
        let message = error.to_string();
        match error {
            ChangeError::NotServed(error) => error.into(),
            ChangeError::Fixed => Self::validation(message),
            ChangeError::Failed { .. } | ChangeError::Versions { .. } | ChangeError::Stopping => {
                Self::unhealthy(message)
            }
        }
    }
}

impl From<NoRoom> for ApiError {
    fn from(error: NoRoom) -> Self {
        let retry_after = Some(NoRoom::retry_after());
        Self { retry_after, ..Self::new(ErrorType::Overloaded, failure::OVERLOADED, error.to_string()) }
    }
}

impl From<NotFinite> for ApiError {
    fn from(error: NotFinite) -> Self {
        Self::backend(error.to_string())
    }
}

impl From<TaskError> for ApiError {
    fn from(error: TaskError) -> Self {
        Self::backend(format!("inference failed: {error}"))
    }
}

/// A failure in text-embeddings-inference's form.
pub(super) struct TeiError(ApiError);

impl From<ApiError> for TeiError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for TeiError {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Body<'a> {
            error: &'a str,
            error_type: ErrorType,
        }
        let body = Body { error: &self.0.message, error_type: self.0.error_type };
        let body = serde_json::to_vec(&body).expect("two strings are always JSON");
        self.0.respond(body)
    }
}

/// A failure in text-embeddings-inference's form for OpenAI's routes and in OpenAI's own form at once: OpenAI's
/// JavaScript client reads only `error`.
pub(super) struct OpenAiError(ApiError);

impl From<ApiError> for OpenAiError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Body<'a> {
            #[serde(flatten)]
            coded: Coded<'a>,
            error: Error<'a>,
        }
        #[derive(Serialize)]
        struct Error<'a> {
            message: &'a str,
            r#type: ErrorType,
            /// The invalid field: always `null`, since only the message names it.
            param: (),
            code: Option<&'static str>,
        }
        let ApiError { message, error_type, code, .. } = &self.0;
        let error = Error { message, r#type: *error_type, param: (), code: *code };
        let body = Body { coded: Coded::from(&self.0), error };
        let body = serde_json::to_vec(&body).expect("strings and a number are always JSON");
        self.0.respond(body)
    }
}

/// A failure as clients of rerankers read it: Cohere's read `message`, Jina's read `detail`.
pub(super) struct RerankError(ApiError);

impl From<ApiError> for RerankError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for RerankError {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Body<'a> {
            detail: &'a str,
            #[serde(flatten)]
            coded: Coded<'a>,
        }
        let body = Body { detail: &self.0.message, coded: Coded::from(&self.0) };
        let body = serde_json::to_vec(&body).expect("strings and a number are always JSON");
        self.0.respond(body)
    }
}

/// A failure in the form of KServe's protocol: a message, beside the HTTP status.
pub(super) struct KserveError(ApiError);

impl From<ApiError> for KserveError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for KserveError {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Body<'a> {
            error: &'a str,
        }
        let body = serde_json::to_vec(&Body { error: &self.0.message }).expect("a string is always JSON");
        self.0.respond(body)
    }
}

/// A message, and fields for programs.
#[derive(Serialize)]
struct Coded<'a> {
    message: &'a str,
    code: Code,
    r#type: ErrorType,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Code {
    Word(&'static str),
    Status(u16),
}

impl<'a> From<&'a ApiError> for Coded<'a> {
    fn from(error: &'a ApiError) -> Self {
        let code = error.code.map_or(Code::Status(error.status.as_u16()), Code::Word);
        Self { message: &error.message, code, r#type: error.error_type }
    }
}
