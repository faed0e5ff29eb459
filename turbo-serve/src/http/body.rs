//! The body of a request: bounded, of the right type, JSON, and an object of the right fields.
//!
//! Whatever is wrong is told in the JSON of the route's protocol, where axum's own extractor answers with plain text.

use std::{future::poll_fn, pin::Pin, time::Duration};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::{HeaderMap, StatusCode, header},
};
use hyper::body::Frame;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::error::ApiError;

/// What is read of a refused body, so that its sender comes to the point of reading the answer: a connection closed on
/// unread bytes is reset, and the answer with it.
const DISCARDED_BYTES: usize = 64 << 20;
/// For how long a refused body is read.
const DISCARDING: Duration = Duration::from_secs(2);

/// For how long a client may send nothing in the middle of a body.
const STALL: Duration = Duration::from_secs(30);

/// The bytes of a body that says to be JSON, `limit` at most.
pub(super) async fn json(headers: &HeaderMap, body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    if !says_json(headers) {
        let said = headers
            .get(header::CONTENT_TYPE)
            .map_or("none".into(), |value| format!("`{}`", String::from_utf8_lossy(value.as_bytes())));
        discard(headers, body).await;
        let message = format!("expected content-type `application/json`, got {said}");
        return Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    bytes(headers, body, limit).await
}

/// Whether the content type is `application/json` or `application/…+json`, with any parameters.
fn says_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let subtype = essence.strip_prefix("application/");
    subtype.is_some_and(|subtype| subtype == "json" || subtype.ends_with("+json"))
}

/// The bytes of a body, `limit` at most.
pub(super) async fn bytes(headers: &HeaderMap, mut body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let stalled = |_| {
        let message = format!("body is incomplete: nothing came for {} s", STALL.as_secs());
        ApiError::refused(StatusCode::REQUEST_TIMEOUT, message)
    };
    let too_large = || {
        let message = format!("body is larger than the limit of {limit} bytes");
        ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let announced: usize = announced.unwrap_or(0);
    if announced > limit {
        discard(headers, body).await;
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(announced);
    while let Some(frame) = tokio::time::timeout(STALL, next_frame(&mut body)).await.map_err(stalled)? {
        let frame = frame.map_err(|error| {
            ApiError::refused(StatusCode::BAD_REQUEST, format!("body ended early: {error}"))
        })?;
        let Ok(data) = frame.into_data() else { continue }; // trailers
        if bytes.len() + data.len() > limit {
            discard(headers, body).await;
            return Err(too_large());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

async fn next_frame(body: &mut Body) -> Option<Result<Frame<Bytes>, axum::Error>> {
    poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
}

/// Reads a refused body to its end without keeping it, within bounds.
pub(super) async fn discard(headers: &HeaderMap, mut body: Body) {
    if headers.contains_key(header::EXPECT) {
        return; // who asks before sending sends nothing after a refusal
    }
    let reading = async {
        let mut left = DISCARDED_BYTES;
        while let Some(Ok(frame)) = next_frame(&mut body).await {
            match left.checked_sub(frame.data_ref().map_or(0, |data| data.len())) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    };
    // either way the answer is sent: who is still sending now may not see it
    let _ = tokio::time::timeout(DISCARDING, reading).await;
}

/// Not JSON is 400, JSON that says something else than was asked for is 422.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let not_json = |error: serde_json::Error| {
        let message = format!("body is not JSON: {error}");
        ApiError::refused(StatusCode::BAD_REQUEST, message)
    };
    // serde reads a struct from a list, too: `["a text", true]` would be taken for `inputs` and `truncate`
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        serde_json::from_slice::<IgnoredAny>(bytes).map_err(not_json)?;
        return Err(ApiError::validation("expected a JSON object, got another JSON value"));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        // 1e999 is JSON, but serde_json counts it as bad syntax
        if error.is_data() || error.to_string().starts_with("number out of range") {
            ApiError::validation(error.to_string())
        } else {
            not_json(error)
        }
    })
}
