//! Reading a request's body: limits on its size and time, its content type, its JSON, and the fields of that.
//!
//! Errors are JSON in the form of the route's protocol; axum's own extractor would answer with plain text.

use std::{borrow::Cow, future::poll_fn, pin::Pin, time::Duration};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{HeaderMap, StatusCode, header, request::Parts},
    middleware::Next,
    response::Response,
};
use hyper::body::Frame;
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::{
    task::consume_budget,
    time::{Instant, timeout_at},
};

use super::error::ApiError;
use crate::net::{Arrived, NoRoom};

/// Most bytes of a refused body that are read, so that the client gets to read the answer: closing a connection with
/// unread bytes resets it, and the answer is lost.
const DISCARDED_BYTES: usize = 64 << 20;
/// How long such a body is read, at most.
const DISCARDING: Duration = Duration::from_secs(2);

/// How long a client may send nothing before its body is complete.
const STALL: Duration = Duration::from_secs(30);
/// Bytes per second that must arrive on average after the first [`STALL`]: otherwise a body could trickle in for ever.
pub(crate) const SLOWEST: usize = 1000;

/// Reads a body of at most `limit` bytes whose content type must be JSON.
pub(super) async fn json(head: &Parts, body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    if !says_json(&head.headers) {
        let said = head
            .headers
            .get(header::CONTENT_TYPE)
            .map_or("none".into(), |value| format!("`{}`", String::from_utf8_lossy(value.as_bytes())));
        discard(head, body).await;
        let message = format!("expected content-type `application/json`, got {said}");
        return Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    bytes(head, body, limit).await
}

/// Whether the content type is `application/json` or `application/…+json`, with any parameters.
fn says_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let subtype = essence.strip_prefix("application/");
    subtype.is_some_and(|subtype| subtype == "json" || subtype.ends_with("+json"))
}

/// Most bytes allocated in advance for a declared length; beyond that, the buffer grows as bytes arrive.
const BELIEVED: usize = 4 << 20;

/// Reads a body of at most `limit` bytes.
pub(super) async fn bytes(head: &Parts, mut body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let headers = &head.headers;
    if let Some(encoding) = encoding(headers) {
        discard(head, body).await;
        let message = format!(
            "content-encoding is `{encoding}`, expected `gzip`, `deflate` or none: send the body uncompressed"
        );
        return Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let began = Instant::now();
    let too_large = || {
        let message = format!("body is larger than the limit of {limit} bytes");
        ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let announced: usize = announced.unwrap_or(0);
    if announced > limit {
        discard(head, body).await;
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(announced.min(BELIEVED));
    loop {
        let (until, drips_for) = patience(began, bytes.len());
        let frame = match timeout_at(until, next_frame(&mut body)).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => {
                let refused = NoRoom::behind(&error).cloned().map_or_else(
                    || {
                        let message = format!("body cannot be read to its end: {error}");
                        ApiError::refused(StatusCode::BAD_REQUEST, message)
                    },
                    ApiError::from,
                );
                drop(bytes);
                drain(head, body).await;
                return Err(refused);
            }
            Ok(None) => return Ok(bytes),
            Err(_) => {
                let message = format!("body is incomplete: {}", too_slow(bytes.len(), drips_for));
                return Err(ApiError::refused(StatusCode::REQUEST_TIMEOUT, message));
            }
        };
        let Ok(data) = frame.into_data() else { continue }; // trailers
        if bytes.len() + data.len() > limit {
            drop((bytes, data));
            drain(head, body).await;
            return Err(too_large());
        }
        bytes.extend_from_slice(&data);
    }
}

/// The deadline for the next bytes of a transfer that began at `began` and has `got` bytes so far. If the average rate
/// sets this deadline, also the total time that the transfer will have taken by then.
pub(crate) fn patience(began: Instant, got: usize) -> (Instant, Option<Duration>) {
    patience_at(began, got, SLOWEST)
}

/// Like `patience`, with a minimum rate of `slowest` bytes per second.
pub(crate) fn patience_at(began: Instant, got: usize, slowest: usize) -> (Instant, Option<Duration>) {
    let patience = STALL + Duration::from_secs((got / slowest) as u64);
    let (stall, end) = (Instant::now() + STALL, began + patience);
    (stall.min(end), (end < stall).then_some(patience))
}

/// Why reading stopped after `got` bytes: they arrived too slowly, or no more arrived.
pub(crate) fn too_slow(got: usize, drips_for: Option<Duration>) -> String {
    let stall = STALL.as_secs();
    match drips_for {
        Some(time) => format!(
            "{got} bytes came in {} s, expected at least {SLOWEST} a second after the first {stall} s",
            time.as_secs()
        ),
        None => format!("nothing came for {stall} s"),
    }
}

/// The content encoding of a body, if the router could not unpack it.
fn encoding(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    let encoding = String::from_utf8_lossy(headers.get(header::CONTENT_ENCODING)?.as_bytes());
    (encoding != "identity").then_some(encoding)
}

/// The next frame. It spends the task's cooperative budget, because unpacking may produce pieces for a long time
/// without ever waiting.
async fn next_frame(body: &mut Body) -> Option<Result<Frame<Bytes>, axum::Error>> {
    consume_budget().await;
    poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
}

/// Middleware for routes that use only a request's head: discards the body first.
pub(super) async fn unasked(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    discard(&head, body).await;
    next.run(Request::from_parts(head, Body::empty())).await
}

/// Reads a refused or unused body to its end, within bounds, without keeping it.
pub(super) async fn discard(head: &Parts, body: Body) {
    // A client that sends `Expect: 100-continue` does not send the body after a refusal; polling the body would tell it
    // to.
    if !head.headers.contains_key(header::EXPECT) {
        drain(head, body).await;
    }
}

/// Reads the rest of a body whose reading has begun, in the same way.
async fn drain(head: &Parts, mut body: Body) {
    if let Some(arrived) = head.extensions.get::<Arrived>() {
        arrived.discard();
    }
    let reading = async {
        let (mut left, mut may_fail) = (DISCARDED_BYTES, true);
        while let Some(frame) = next_frame(&mut body).await {
            let bytes = match frame {
                Ok(frame) => frame.data_ref().map_or(0, Bytes::len),
                // after an error of unpacking the rest arrives packed
                Err(_) if std::mem::take(&mut may_fail) => 0,
                Err(_) => break,
            };
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    };
    // either way the answer is sent: a client that is still sending may not see it
    let _ = tokio::time::timeout(DISCARDING, reading).await;
}

/// Parses a body. Text that is not JSON is 400, JSON with wrong content is 422.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let not_json = |error: serde_json::Error| {
        let message = match other_encoding(bytes) {
            Some(what) => format!("body {what}, expected JSON in UTF-8 without a byte order mark"),
            None => format!("body is not JSON: {error}"),
        };
        ApiError::refused(StatusCode::BAD_REQUEST, message)
    };
    // serde also reads a struct from a list: `["a text", true]` would be taken for `inputs` and `truncate`
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

/// What is wrong with a body that looks like JSON in another encoding.
fn other_encoding(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0xef, 0xbb, 0xbf, ..] => Some("begins with a byte order mark"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [b'{', 0, ..] | [0, b'{', ..] => Some("is UTF-16"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use futures_util::stream;

    use super::*;

    /// A body of `pieces` pieces of `bytes` bytes, one every `pause`; then it ends, or stays silent.
    fn drips(pieces: usize, bytes: usize, pause: Duration, ends: bool) -> Body {
        Body::from_stream(stream::unfold(0, move |sent| async move {
            let is_last = sent == pieces;
            if is_last && ends {
                return None;
            }
            tokio::time::sleep(if is_last { Duration::MAX } else { pause }).await;
            Some((Ok::<_, std::convert::Infallible>(vec![b' '; bytes]), sent + 1))
        }))
    }

    #[tokio::test]
    async fn a_head_alone_takes_no_room() {
        let announced = Request::post("/").header(header::CONTENT_LENGTH, "9223372036854775808");
        let (head, body) = announced.body(Body::empty()).unwrap().into_parts();
        assert_eq!(bytes(&head, body, usize::MAX).await.unwrap(), b"");
    }

    #[test]
    fn a_body_may_be_slow_and_has_an_end() {
        let second = Duration::from_secs(1);
        let drip = "31 bytes came in 30 s, expected at least 1000 a second after the first 30 s";
        for (what, body, expected) in [
            ("slow", drips(100, 1000, second, true), Ok(100_000)),
            ("slow to begin", drips(1, 1, 29 * second, true), Ok(1)),
            ("for ever", drips(usize::MAX, 1, second * 19 / 20, true), Err(drip)),
            ("not at all", drips(0, 1, second, false), Err("nothing came for 30 s")),
            ("no more", drips(3, 1000, second / 10, false), Err("nothing came for 30 s")),
        ] {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            let (head, body) = Request::new(body).into_parts();
            let read = runtime.unwrap().block_on(bytes(&head, body, 1_000_000));
            let read = read.map(|bytes| bytes.len()).map_err(|error| error.message().to_owned());
            assert_eq!(read, expected.map_err(|why| format!("body is incomplete: {why}")), "{what}");
        }
    }
}
