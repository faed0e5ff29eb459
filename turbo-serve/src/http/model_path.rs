//! Splits a path into a model's name and its route: `/models/{name}/embed`, `/models/{name}/versions/{version}/embed`.
//! Names may contain a `/`, as the Hub's names do, and clients do not encode it.
//!
//! A name ends at the first `/` that a route follows. So a path that the router knows keeps its meaning. Another path
//! that can be split this way has a name with a `/`, which is encoded into one segment for the router. Paths are parsed
//! before a key is checked, so a name is looked for only up to the first [`MOST_SLASHES`].

use std::sync::LazyLock;

use axum::{extract::Request, http::Uri};

use super::{
    router::routes,
    target::{NAME, VERSION},
};

const MODELS: &str = "/models/";

/// Most `/` in a path up to the end of a model's name. Names on the Hub have one, and longer ones are rare.
const MOST_SLASHES: usize = 16;

/// The prefix of a model's route patterns.
pub(super) static MODEL: LazyLock<String> = LazyLock::new(|| format!("{MODELS}{{{NAME}}}"));

/// The routes of a model, except the root, for which nothing follows the name.
static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
    let paths = routes().operations.into_iter().map(|(_, path, _)| path);
    paths.filter(|path| path != "/").map(Route::new).collect()
});

/// A route, as the router writes it.
struct Route {
    pattern: String,
    /// Where the free part begins, if the pattern ends with `{*name}`, which matches any rest of a path.
    start: Option<usize>,
}

impl Route {
    fn new(pattern: String) -> Self {
        Self { start: pattern.find("{*"), pattern }
    }

    fn has(&self, path: &str) -> bool {
        match self.start {
            Some(start) => path.len() > start && path.starts_with(&self.pattern[..start]),
            None => path == self.pattern,
        }
    }
}

/// The route after a model's name (`/` if nothing follows), or the whole path if it names no model.
pub(crate) fn behind_model(path: &str) -> &str {
    let is_name = |named: &str| !named.is_empty() && !named.contains('/');
    match cut(path).map(|(_, rest)| behind_version(rest)) {
        Some("") => "/",
        Some(asked) => asked,
        None if path.strip_prefix(MODELS).is_some_and(is_name) => "/",
        None => path,
    }
}

/// Whether a route pattern belongs to a model.
pub(crate) fn is_of_a_model(pattern: &str) -> bool {
    pattern.contains(&*MODEL)
}

/// The route pattern of a path whose model name has a `/`, for which the router itself has no route.
pub(crate) fn route_behind_long_name(path: &str) -> Option<String> {
    let (_, rest) = cut(path).filter(|(name, _)| name.contains('/'))?;
    let asked = behind_version(rest);
    let version = if asked == rest { String::new() } else { format!("/versions/{{{VERSION}}}") };
    let route = ROUTES.iter().find(|route| route.has(asked)).map_or("", |route| &route.pattern);
    Some(format!("{MODELS}{{{NAME}}}{version}{route}"))
}

/// Encodes each `/` in a model's name, so that the name is one segment of the path.
pub(super) fn in_one_segment(mut request: Request) -> Request {
    let uri = request.uri();
    if let Some((name, rest)) = cut(uri.path())
        && name.contains('/')
    {
        let (name, query) = (name.replace('/', "%2F"), uri.query().map(|query| format!("?{query}")));
        // A URI that becomes too long this way names no served model.
        if let Ok(uri) = Uri::try_from(format!("{MODELS}{name}{rest}{}", query.unwrap_or_default())) {
            *request.uri_mut() = uri;
        }
    }
    request
}

/// Splits a path into a model's name and what follows it.
fn cut(path: &str) -> Option<(&str, &str)> {
    let named = path.strip_prefix(MODELS)?;
    let ends = named.match_indices('/').take(MOST_SLASHES);
    let mut cuts = ends.map(|(end, _)| named.split_at(end));
    cuts.find(|(_, rest)| is_route(behind_version(rest)))
}

/// What follows the version that the path begins with; the whole path if it begins with none.
fn behind_version(path: &str) -> &str {
    let Some(version) = path.strip_prefix("/versions/") else { return path };
    version.find('/').map_or("", |end| &version[end..])
}

/// Whether a path is a route of a model or of a version, or empty.
fn is_route(path: &str) -> bool {
    path.is_empty() || ROUTES.iter().any(|route| route.has(path))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn a_name_ends_where_there_is_a_route() {
        for (path, one_segment, asked) in [
            ("/models/a/embed", "/models/a/embed", "/embed"),
            ("/models/a/versions/2/embed", "/models/a/versions/2/embed", "/embed"),
            ("/models/a/versions/health", "/models/a/versions/health", "/"),
            ("/models/a/v1/models/b/health", "/models/a/v1/models/b/health", "/v1/models/b/health"),
            ("/models/org/a/embed?x=/", "/models/org%2Fa/embed?x=/", "/embed"),
            ("/models/org/a/versions/2/embed", "/models/org%2Fa/versions/2/embed", "/embed"),
            ("/models/org/a/versions/2", "/models/org%2Fa/versions/2", "/"),
            ("/models/o%20rg/a/v1/rerank", "/models/o%20rg%2Fa/v1/rerank", "/v1/rerank"),
            ("/models/org/a/v1/models/org/a", "/models/org%2Fa/v1/models/org/a", "/v1/models/org/a"),
            ("/models/org/a", "/models/org/a", "/models/org/a"),
            ("/models/a", "/models/a", "/"),
            ("/models/", "/models/", "/models/"),
            ("/models/a/", "/models/a/", "/models/a/"),
            ("/models/a/nowhere", "/models/a/nowhere", "/models/a/nowhere"),
            ("/models/health", "/models/health", "/"),
            ("/versions/1/health", "/versions/1/health", "/versions/1/health"),
        ] {
            let request = Request::get(path).body(Body::empty()).unwrap();
            assert_eq!(behind_model(request.uri().path()), asked, "{path}");
            assert_eq!(in_one_segment(request).uri(), one_segment, "{path}");
        }
        for (path, route) in [
            ("/models/org/a/embed", Some("/models/{model}/embed")),
            ("/models/org/a/versions/2/v1/rerank", Some("/models/{model}/versions/{version}/v1/rerank")),
            ("/models/org/a/versions/2", Some("/models/{model}/versions/{version}")),
            ("/models/a/embed", None),
            ("/models/org/a/nowhere", None),
            ("/nowhere", None),
        ] {
            assert_eq!(route_behind_long_name(path).as_deref(), route, "{path}");
        }
    }

    #[test]
    fn a_name_has_only_so_many_slashes() {
        let path = |slashes: usize| format!("/models/{}embed", "a/".repeat(slashes));
        let longest = path(MOST_SLASHES);
        assert_eq!(behind_model(&longest), "/embed");
        for unknown in [path(MOST_SLASHES + 1), format!("/models/{}embed", "/".repeat(60_000))] {
            assert_eq!(behind_model(&unknown), unknown);
            assert_eq!(route_behind_long_name(&unknown), None);
            let request = Request::get(&unknown).body(Body::empty()).unwrap();
            assert_eq!(in_one_segment(request).uri(), &*unknown);
        }
    }
}
