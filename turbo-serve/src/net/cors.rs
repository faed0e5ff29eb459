//! Which web pages may send requests: a browser hides the answers of another origin from a page unless the server
//! allows that origin. It sends the page's requests all the same, so the server refuses those that would have an
//! effect.

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

/// For how long a browser may cache a preflight answer.
const MAX_AGE: Duration = Duration::from_secs(2 * 60 * 60);

/// An origin of web pages: `https://example.org`, or `*` for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(HeaderValue);

/// Why a text is not an origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OriginError {
    /// It has parts that an origin does not have, or lacks some.
    #[error(
        "expected `*`, or scheme, host and port as in `https://example.org` or `http://localhost:8080`, and no path"
    )]
    NoOrigin,
    /// It has a `*` among other characters.
    #[error(
        "`*` stands for all origins, not for part of one: expected `*` alone, or each origin by its full name, as in \
         `https://a.example.org,https://b.example.org`"
    )]
    Pattern,
}

impl Origin {
    /// All of them.
    pub const ANY: Self = Self(HeaderValue::from_static("*"));
}

/// The origins that browsers send for sandboxed pages and pages from files.
const WITHOUT_HOST: [&str; 2] = ["null", "file://"];

impl FromStr for Origin {
    type Err = OriginError;

    /// Writes the origin as browsers do: in lower case, and without the scheme's default port.
    fn from_str(text: &str) -> Result<Self, OriginError> {
        let value = match text {
            "*" => return Ok(Self::ANY),
            _ if text.contains('*') => return Err(OriginError::Pattern),
            _ if WITHOUT_HOST.contains(&text) => text.to_owned(),
            _ => plain(text).ok_or(OriginError::NoOrigin)?,
        };
        HeaderValue::from_str(&value).map(Self).map_err(|_| OriginError::NoOrigin)
    }
}

/// Scheme, host and port as browsers write them; `None` if there is more or less than these.
fn plain(text: &str) -> Option<String> {
    let uri = text.parse::<Uri>().ok()?;
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?.as_str());
    let is_all = format!("{scheme}://{authority}").eq_ignore_ascii_case(text);
    (is_all && !authority.contains('@')).then(|| format!("{scheme}://{}", without_port(scheme, authority)))
}

/// Host and port in lower case, without a port that `scheme` implies.
fn without_port(scheme: &str, authority: &str) -> String {
    let port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => "",
    };
    let authority = authority.to_ascii_lowercase();
    authority.strip_suffix(port).map(str::to_owned).unwrap_or(authority)
}

/// Lets pages of these origins send requests with any header, including a key. Requests of other pages, except this
/// server's own, are refused with 403 unless they are GET, HEAD or OPTIONS. Clients that are not browsers usually name
/// no origin.
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
        // `*` would not cover all headers: browsers leave `authorization` out
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(Any)
        .max_age(MAX_AGE);
    router.layer(cors)
}

/// Refuses requests that would have an effect from pages of other origins. A browser hides answers that such a page
/// could only read.
async fn refuse_others(State(origins): State<Arc<[Origin]>>, request: Request, next: Next) -> Response {
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    let Some(origin) = request.headers().get(header::ORIGIN).filter(|_| !reads) else {
        return next.run(request).await;
    };
    if origins.iter().any(|Origin(allowed)| allowed == origin) || is_own(origin, &request) {
        return next.run(request).await;
    }
    let message = format!(
        "web pages of `{}` may not send requests: `--cors-allow-origin` does not name this origin",
        origin.to_str().unwrap_or("…")
    );
    turn_away(request, ApiError::forbidden(message)).await
}

/// Whether a page is this server's own: its origin is the request's host. The scheme may differ behind a proxy that
/// ends TLS.
fn is_own(origin: &HeaderValue, request: &Request) -> bool {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().authority().map(|authority| authority.as_str()).or(host);
    let from = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let (Some(host), Some((scheme, authority))) = (host, from) else { return false };
    without_port(scheme, host) == without_port(scheme, authority)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_no_path() {
        for good in [
            "*",
            "null",
            "file://",
            "https://example.org",
            "http://localhost:8080",
            "http://[::1]:3000",
            "tauri://localhost",
        ] {
            assert_eq!(good.parse::<Origin>().unwrap().0, good);
        }
        for (given, as_browsers_say) in [
            ("https://Example.org:443", "https://example.org"),
            ("http://example.org:80", "http://example.org"),
            ("http://example.org:443", "http://example.org:443"),
        ] {
            assert_eq!(given.parse::<Origin>().unwrap().0, as_browsers_say);
        }
        for bad in ["", "example.org", "https://example.org/", "https://me@example.org", "https://", "a b"] {
            assert_eq!(bad.parse::<Origin>(), Err(OriginError::NoOrigin), "{bad}");
        }
        for pattern in ["https://*.example.org", "https://*", "http://localhost:*", "**"] {
            assert_eq!(pattern.parse::<Origin>(), Err(OriginError::Pattern), "{pattern}");
        }
    }
}
