//! The key that clients must send.

use std::{fmt, str::FromStr, sync::Arc};

use axum::{
    Router,
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, Method, header},
    middleware::{self, Next},
    response::Response,
};
use subtle::ConstantTimeEq;

use crate::{
    grpc,
    http::{ApiError, behind_model, is_of_a_model, turn_away},
};

/// Routes for monitoring and API documentation, which need no key. The same paths below a model are public, too.
const PUBLIC: [&str; 10] = [
    "/",
    "/health",
    "/ping",
    "/v2/health/live",
    "/v2/health/ready",
    "/metrics",
    "/docs",
    "/dashboard",
    "/openapi.json",
    "/api-doc/openapi.json",
];

/// The key that clients send as `Authorization: Bearer KEY`.
#[derive(Clone)]
pub struct ApiKey(Arc<str>);

/// An empty key, which would protect nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is empty: give a key, or leave it out to answer without one")]
pub struct EmptyKey;

impl FromStr for ApiKey {
    type Err = EmptyKey;

    /// The key without white space around it: files and secrets end with a line end, which no header can contain.
    fn from_str(key: &str) -> Result<Self, EmptyKey> {
        let key = key.trim();
        if key.is_empty() { Err(EmptyKey) } else { Ok(Self(key.into())) }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

impl ApiKey {
    /// Whether these headers have the key. The time of the comparison reveals the key's length and nothing else.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).and_then(bearer);
        shown.is_some_and(|shown| shown.ct_eq(self.0.as_bytes()).into())
    }
}

/// What follows the word `Bearer`, in upper or lower case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
}

/// Requires the key on all routes but the public ones, for health, metrics and documentation: `GET` and `HEAD` of `/`,
/// `/health`, `/ping`, `/v2/health/live`, `/v2/health/ready`, `/metrics`, `/docs`, `/dashboard`, `/openapi.json` and
/// `/api-doc/openapi.json`, of the same paths of a model (`/models/NAME`, `/models/NAME/health`,
/// `/models/NAME/versions/VERSION/health`), and gRPC's health and reflection.
///
/// A route that you add needs the key, unless it has one of these paths, as `/` has in a server that nests
/// [`http::router`](crate::http::router()) elsewhere. The paths are those that `router` sees: protect it before you
/// nest it.
pub fn protect(router: Router, key: ApiKey) -> Router {
    router.layer(middleware::from_fn_with_state(key, check))
}

async fn check(State(key): State<ApiKey>, request: Request, next: Next) -> Response {
    if is_public(&request) || key.is_in(request.headers()) {
        return next.run(request).await;
    }
    let message = match request.headers().contains_key(header::AUTHORIZATION) {
        true => "the key in `Authorization` is not this server's",
        false => "expected the header `Authorization: Bearer KEY` with this server's key, got none",
    };
    let mut response = turn_away(request, ApiError::unauthorized(message)).await;
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn is_public(request: &Request) -> bool {
    let path = request.uri().path();
    let looks = [Method::GET, Method::HEAD].contains(request.method());
    let asked = behind_model(path);
    (looks && PUBLIC.contains(&asked) && (asked == path || is_a_models(request))) || grpc::is_public(path)
}

/// Whether the router matches this path below `/models/` as a model's, and not as another route.
fn is_a_models(request: &Request) -> bool {
    // Names with a `/` match no pattern.
    request.extensions().get::<MatchedPath>().is_none_or(|matched| is_of_a_model(matched.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_key_will_do() {
        let key: ApiKey = " se cret\n".parse().unwrap();
        let is_in = |value: &str| {
            let value = HeaderValue::from_str(value).unwrap();
            key.is_in(&HeaderMap::from_iter([(header::AUTHORIZATION, value)]))
        };
        for good in ["Bearer se cret", "bearer se cret"] {
            assert!(is_in(good), "{good}");
        }
        for bad in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer se",
            "Bearer se cret2",
            "Bearer Se cret",
            "Basic se cret",
            "se cret",
        ] {
            assert!(!is_in(bad), "{bad}");
        }
        assert!(!key.is_in(&HeaderMap::new()));
        for nothing in ["", "\n"] {
            assert_eq!(nothing.parse::<ApiKey>().unwrap_err(), EmptyKey);
        }
        assert_eq!(format!("{key:?}"), "ApiKey(..)");
    }
}
