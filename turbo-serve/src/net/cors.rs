//! Which web pages may ask: a browser keeps the answers of another origin from a page unless the server allows it.

use std::{str::FromStr, time::Duration};

use axum::{
    Router,
    http::{HeaderValue, Method, Uri},
};
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

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

/// Lets pages of these origins ask, with any header: a key, too.
pub fn allow_origins(router: Router, origins: &[Origin]) -> Router {
    let allowed = if origins.contains(&Origin::ANY) {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().map(|Origin(value)| value.clone()))
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
