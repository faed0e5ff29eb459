//! Parses paths below `/v2/models/` and `/v2/repository/models/`. Names may contain a `/`, as the Hub's names do, and
//! clients do not encode it.

use axum::{
    extract::{FromRequestParts, Path, rejection::PathRejection},
    http::{StatusCode, request::Parts},
};

use crate::{
    http::error::{ApiError, KserveError},
    models::Wanted,
};

/// The requests about a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Metadata,
    Config,
    Ready,
    Statistics,
    Infer,
}

impl Verb {
    pub(super) const ALL: [Self; 5] =
        [Self::Metadata, Self::Config, Self::Ready, Self::Statistics, Self::Infer];

    /// The end of the path, after the model's name and version.
    pub(super) fn end(self) -> &'static str {
        match self {
            Self::Metadata => "",
            Self::Config => "/config",
            Self::Ready => "/ready",
            Self::Statistics => "/stats",
            Self::Infer => "/infer",
        }
    }
}

/// Loading and unloading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Load,
    Unload,
}

impl Change {
    pub(super) const ALL: [Self; 2] = [Self::Load, Self::Unload];

    /// The end of the path, after the model's name.
    pub(super) fn end(self) -> &'static str {
        match self {
            Self::Load => "/load",
            Self::Unload => "/unload",
        }
    }
}

/// The part of the path that names a model, and what follows.
pub(super) struct ModelPath(String);

impl<S: Send + Sync> FromRequestParts<S> for ModelPath {
    type Rejection = KserveError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, KserveError> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        let not_text = |error: PathRejection| {
            let message = format!("no route `{}`: {error}", parts.uri.path());
            ApiError::refused(StatusCode::NOT_FOUND, message)
        };
        Ok(Self(path.map_err(not_text)?.0))
    }
}

impl ModelPath {
    /// The model, a version if it is named, and the verb.
    pub(super) fn asked(&self) -> (Wanted<'_>, Verb) {
        let verbs = Verb::ALL.into_iter().filter(|&verb| verb != Verb::Metadata);
        let named = verbs.map(|verb| Some((self.0.strip_suffix(verb.end())?, verb)));
        let (path, verb) = named.flatten().next().unwrap_or((&self.0, Verb::Metadata));
        // Split at the last one: a name may contain the word.
        let wanted = match path.rsplit_once("/versions/") {
            Some((name, version)) if !version.contains('/') => {
                Wanted { name: Some(name), version: Some(version) }
            }
            _ => Wanted { name: Some(path), version: None },
        };
        (wanted, verb)
    }

    /// The model to load or unload.
    pub(super) fn changed(&self) -> Option<(&str, Change)> {
        let named = Change::ALL.map(|change| Some((self.0.strip_suffix(change.end())?, change)));
        named.into_iter().flatten().next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_models_versions_and_verbs() {
        for (path, name, version, verb) in [
            ("minilm", "minilm", None, Verb::Metadata),
            ("minilm/infer", "minilm", None, Verb::Infer),
            ("minilm/versions/2", "minilm", Some("2"), Verb::Metadata),
            ("minilm/versions/2/ready", "minilm", Some("2"), Verb::Ready),
            ("org/name/infer", "org/name", None, Verb::Infer),
            ("org/name/versions/latest/stats", "org/name", Some("latest"), Verb::Statistics),
            ("org/name", "org/name", None, Verb::Metadata),
            ("a/versions/b/c", "a/versions/b/c", None, Verb::Metadata),
        ] {
            let asked = (Wanted { name: Some(name), version }, verb);
            assert_eq!(ModelPath(path.to_owned()).asked(), asked, "{path}");
        }
        for (path, expected) in [
            ("minilm/load", Some(("minilm", Change::Load))),
            ("minilm/2/unload", Some(("minilm/2", Change::Unload))),
            ("load", None),
            ("minilm", None),
        ] {
            assert_eq!(ModelPath(path.to_owned()).changed(), expected, "{path}");
        }
    }
}
