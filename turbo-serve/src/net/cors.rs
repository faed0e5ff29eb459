//! Which web pages may ask: a browser keeps the answers of another origin from a page unless the server allows it. It
//! sends what the page asks for all the same, so the server refuses what would be done.

use std::{str::FromStr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderValue, Method, Uri, header},
    middleware::{self, Next},
    response::Response,
};
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use crate::http::{ApiError, turn_away};

/// For how long a browser need not ask again; more than two hours no browser keeps.
const MAX_AGE: Duration = Duration::from_secs(2 * 60 * 60);

/// Where web pages come from: `https://example.org`, or `*` for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(HeaderValue);

/// What is not an origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected `*`, or scheme, host and port as in `https://example.org` or `http://localhost:8080`, and no path"
)]
pub struct OriginError;

impl Origin {
    /// All of them.
    pub const ANY: Self = Self(HeaderValue::from_static("*"));
}

impl FromStr for Origin {
    type Err = OriginError;

    fn from_str(text: &str) -> Result<Self, OriginError> {
        // What a page from a file or in a sandbox says.
        let is_origin = ["*", "null"].contains(&text) || is_scheme_and_authority(text);
        let value = HeaderValue::from_str(text).ok().filter(|_| is_origin);
        value.map(Self).ok_or(OriginError)
    }
}

fn is_scheme_and_authority(text: &str) -> bool {
    text.parse::<Uri>().is_ok_and(|uri| match (uri.scheme_str(), uri.authority()) {
        (Some(scheme), Some(authority)) => format!("{scheme}://{authority}") == text,
        _ => false,
    })
}

/// Lets pages of these origins ask, with any header: a key, too. Orders of pages that come from elsewhere, and not from this
/// server itself, are refused with 403; who is no browser names no origin.
pub fn allow_origins(router: Router, origins: &[Origin]) -> Router {
    let (router, allowed) = if origins.contains(&Origin::ANY) {
        (router, AllowOrigin::any())
    } else {
        let list = AllowOrigin::list(origins.iter().map(|Origin(value)| value.clone()));
        (router.layer(middleware::from_fn_with_state(Arc::from(origins), refuse_others)), list)
    };
    let cors = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        // `*` would not be all of them: browsers leave `authorization` out
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(Any)
        .max_age(MAX_AGE);
    router.layer(cors)
}

/// Refuses what a page of another origin orders. What it only reads, its browser keeps from it.
async fn refuse_others(State(origins): State<Arc<[Origin]>>, request: Request, next: Next) -> Response {
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    let Some(origin) = request.headers().get(header::ORIGIN).filter(|_| !reads) else {
        return next.run(request).await;
    };
    if origins.iter().any(|Origin(allowed)| allowed == origin) || is_own(origin, &request) {
        return next.run(request).await;
    }
    let message = format!(
        "web pages of `{}` may not ask; the origins that may are those of `--cors-allow-origin`",
        origin.to_str().unwrap_or("…")
    );
    turn_away(request, ApiError::forbidden(message)).await
}

/// Whether a page came from where it asks: this server's own.
fn is_own(origin: &HeaderValue, request: &Request) -> bool {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().authority().map(|authority| authority.as_str()).or(host);
    let from = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    from.is_some_and(|(_, authority)| host == Some(authority))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_no_path() {
        for good in ["*", "null", "https://example.org", "http://localhost:8080", "http://[::1]:3000"] {
            assert!(good.parse::<Origin>().is_ok(), "{good}");
        }
        for bad in
            ["", "example.org", "https://example.org/", "https://example.org/app", "https://", "a b", "**"]
        {
            assert_eq!(bad.parse::<Origin>(), Err(OriginError), "{bad}");
        }
    }
}
