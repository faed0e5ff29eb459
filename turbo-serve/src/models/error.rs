//! Why a model is not served, and why models cannot be declared, loaded or unloaded.

use std::time::Duration;

/// Why a request has no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotServed {
    /// No model has this name.
    #[error("no model `{name}` is served: expected {}", any_of(.known))]
    UnknownModel {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The model does not have this version.
    #[error("model `{name}` has no version `{version}`: expected {}", any_of(.known))]
    UnknownVersion {
        /// The model.
        name: String,
        /// What was asked for.
        version: String,
        /// What there is.
        known: Vec<String>,
    },
    /// It was unloaded or not loaded yet.
    #[error("model `{name}` is not loaded: load it with {}", order(.name))]
    Unloaded {
        /// The model, with its version where that was asked for.
        name: String,
    },
    /// It is being loaded.
    #[error("model `{name}` is not ready yet: retry later")]
    NotReady {
        /// The model and its version.
        name: String,
    },
    /// It could not be loaded.
    #[error("model `{name}` could not be loaded: {reason}; {}", when_mended(.name, *.retry_after))]
    Unavailable {
        /// The model and its version.
        name: String,
        /// What went wrong.
        reason: String,
        /// Time until a request loads it again; `None`: only an explicit load does.
        retry_after: Option<Duration>,
    },
    /// It was still being loaded at the request's deadline.
    #[error("model `{name}` was still being loaded at the deadline: retry later")]
    Expired {
        /// The model and its version.
        name: String,
    },
    /// It would have to be loaded, but the server is stopping.
    #[error("server is stopping")]
    Stopping,
}

/// Why models were not loaded or unloaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The server has one model, from its command line.
    #[error("models are loaded and unloaded only by a server that was started with `--config`")]
    Fixed,
    /// There is no such model, or it was unloaded again.
    #[error(transparent)]
    NotServed(#[from] NotServed),
    /// It could not be loaded.
    #[error("model `{name}` could not be loaded: {reason}")]
    Failed {
        /// The model and its version.
        name: String,
        /// What went wrong.
        reason: String,
    },
    /// Its versions cannot be listed.
    #[error("the versions of model `{name}` cannot be listed: {reason}")]
    Versions {
        /// The model.
        name: String,
        /// What went wrong.
        reason: String,
    },
    /// The server takes no new work.
    #[error("server is stopping")]
    Stopping,
}

/// Why models cannot be served together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeclareError {
    /// No model at all.
    #[error("no model is declared: expected at least one")]
    Nothing,
    /// A name or alias is given twice.
    #[error("`{0}` names two models: every name and alias may be given only once")]
    Twice(String),
    /// A name that is empty or reads as a model and its version.
    #[error("model name `{0}` is empty or has a `/`, which begins a version: only aliases may have one")]
    Name(String),
    /// The default is no declared model.
    #[error("default model `{name}` is not declared: expected {}", any_of(.known))]
    Default {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A model has no versions, or not the pinned one, or its versions cannot be listed.
    #[error("model `{name}`: {why}")]
    Versions {
        /// The model.
        name: String,
        /// What is wrong with them.
        why: String,
    },
}

/// The request that loads a model.
fn order(name: &str) -> String {
    format!("`POST /v2/repository/models/{name}/load`")
}

fn when_mended(name: &str, retry_after: Option<Duration>) -> String {
    let again = retry_after.map(|wait| format!("ask again in {} s, or ", wait.as_secs_f64().ceil()));
    format!("when that is fixed, {}load it with {}", again.unwrap_or_default(), order(name))
}

fn any_of(known: &[String]) -> String {
    match known {
        [] => "nothing, as there is none".to_owned(),
        known => format!("`{}`", known.join("`, `")),
    }
}
