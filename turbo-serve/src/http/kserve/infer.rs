//! `POST /v2/models/{name}/infer`: tensors in, tensors out.

use std::time::Instant;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::Response,
};

use super::{
    about::wrong_method,
    path::{ModelPath, Verb},
    read::{Read, read},
    write::{Head, write},
};
use crate::{
    engine::Urgency,
    http::{
        ApiError, answer::answered, body, error::KserveError, metrics::Arity, router::Server, target::Target,
        urgency::urgency, write::BYTES_PER_VALUE,
    },
    kserve::{self, OutputTensor},
    models::Wanted,
};

/// The length in bytes of the JSON at the beginning of a body, which binary tensors follow.
pub(super) const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// `POST /v2/models/{name}/infer`, `POST /v2/models/{name}/versions/{version}/infer`.
pub(super) async fn infer(
    State(server): State<Server>,
    path: ModelPath,
    request: Request,
) -> Result<Response, KserveError> {
    let (wanted, verb) = path.asked();
    if verb != Verb::Infer {
        return Ok(wrong_method(request, "GET,HEAD").await);
    }
    let (head, body) = request.into_parts();
    let urgency = match check(&server, wanted, &head.headers) {
        Ok(urgency) => urgency,
        Err(error) => {
            body::discard(&head, body).await;
            return Err(error.into());
        }
    };
    let bytes = body::bytes(&head, body, server.payload_limit()).await?;
    let received = Instant::now();
    let Read { id, asked, binary } = read(&head.headers, &bytes, received)?;
    drop(bytes);
    // After the body: a client that sends slowly must not keep a model from being unloaded.
    let target = Target::lease(&head, &server, wanted, urgency).await.map_err(ApiError::from)?;
    let target = target.writing(BYTES_PER_VALUE);
    target.metrics().received(Arity::Batch);
    let target = target.begun()?;
    let head = Head { model: target.name().to_owned(), version: target.version().to_owned(), id };
    let held = target.planned();
    let write = move |tensors: Vec<OutputTensor>| {
        let _held = held; // until it is written, even if the client disconnects
        Ok(write(&head, &tensors, &binary))
    };
    let ((body, json_length), usage) = kserve::answer(target.engine(), asked, write).await?;
    let mut response = answered(&target, Arity::Batch, &usage, received, body);
    if let Some(length) = json_length {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(JSON_LENGTH, HeaderValue::from(length));
    }
    Ok(response)
}

/// The urgency from a request's head, if its model is served.
fn check(server: &Server, wanted: Wanted<'_>, headers: &HeaderMap) -> Result<Urgency, ApiError> {
    server.models().check(wanted)?;
    urgency(headers)
}
