//! Errors of the Hub, each in one line that says what to do.

use std::{io, path::PathBuf};

/// Why a model could not be fetched from the Hub; each says in one line what to do.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// There is no such model, or this account cannot see it: the Hub does not tell these apart.
    #[error(
        "{model}: {endpoint} has no such model, or it is private: check the name; a private one needs --hf-token or \
         HF_TOKEN"
    )]
    Missing {
        /// The model.
        model: String,
        /// The Hub.
        endpoint: String,
    },
    /// The model has no such branch, tag or commit.
    #[error("{model}: it has no revision {revision:?}: {endpoint}/{model}/tree/main lists those it has")]
    Revision {
        /// The model.
        model: String,
        /// What was asked for.
        revision: String,
        /// The Hub.
        endpoint: String,
    },
    /// Its owner has set conditions for access.
    #[error(
        "{model}: its owner has set conditions: accept them at {endpoint}/{model}, then pass --hf-token or HF_TOKEN of \
         the account that did"
    )]
    Gated {
        /// The model.
        model: String,
        /// The Hub.
        endpoint: String,
    },
    /// The token is wrong.
    #[error(
        "{model}: {endpoint} does not know the token it was given: check --hf-token or HF_TOKEN, or log in again"
    )]
    Token {
        /// The model.
        model: String,
        /// The Hub.
        endpoint: String,
    },
    /// The token cannot be sent in a header.
    #[error("the token for the Hub has characters that no token has: check --hf-token, HF_TOKEN or its file")]
    TokenForm,
    /// The Hub limits the rate of requests.
    #[error(
        "{model}: {endpoint} asks to wait (429): try again in a few minutes, or pass --hf-token or HF_TOKEN"
    )]
    Busy {
        /// The model.
        model: String,
        /// The Hub.
        endpoint: String,
    },
    /// The Hub does not answer.
    #[error(
        "{model}: {endpoint} is out of reach ({why}): check the network, HF_ENDPOINT and proxies, or pass the path of a \
         folder with its files"
    )]
    Unreachable {
        /// The model.
        model: String,
        /// The Hub.
        endpoint: String,
        /// What the network said.
        why: String,
    },
    /// The Hub must not be contacted, and the cache does not have the model.
    #[error(
        "{model}: {variable} is set, and {cache} does not have all its files: fetch it once without the variable, or pass \
         the path of a folder with its files"
    )]
    Offline {
        /// The model.
        model: String,
        /// The variable that forbids contacting the Hub.
        variable: &'static str,
        /// The cache.
        cache: PathBuf,
    },
    /// It has no weights in a format that can be read.
    #[error(
        "{model}: it has no safetensors weights{}: look for a revision or a copy that has them",
        other(others)
    )]
    NoWeights {
        /// The model, with its module where that has none.
        model: String,
        /// Weights in other formats that it has.
        others: Vec<String>,
    },
    /// It is not a model of the kind that is served here.
    #[error("{model}: it has no {file}: it is not a model that the transformers library could load")]
    NoModel {
        /// The model.
        model: String,
        /// What is missing.
        file: String,
    },
    /// It has no such module.
    #[error("{model}: it has no {file}: check --dense-path, which names a folder of the model")]
    NoModule {
        /// The model.
        model: String,
        /// What is missing.
        file: String,
    },
    /// The Hub's answer or files are invalid.
    #[error("{model}: {why}")]
    Broken {
        /// The model, with the file where there is one.
        model: String,
        /// What is wrong.
        why: String,
    },
    /// The cache cannot be read or written.
    #[error("{path}: {why}")]
    Io {
        /// The place.
        path: String,
        /// What the system said.
        why: io::Error,
    },
}

fn other(others: &[String]) -> String {
    if others.is_empty() { String::new() } else { format!(" (but {})", others.join(", ")) }
}

impl HubError {
    /// Whether the cached snapshot can be used in spite of it: the Hub is unreachable, answers 429, or does not show
    /// the model to this account. An expired token must not keep a server from restarting.
    pub(super) fn spares_the_cache(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Busy { .. }
                | Self::Token { .. }
                | Self::Gated { .. }
                | Self::Missing { .. }
        )
    }
}
