//! What a registry is built from: the names of models, and the sources of their versions.

use std::sync::Arc;

use super::{Models, served::Stop};
use crate::engine::{Engine, Infer};

/// Why versions cannot be listed or loaded.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// Where the versions of a model come from. Both methods may block; they are called on threads where that is allowed.
pub trait Source: Send + Sync + 'static {
    /// The versions that exist now. Listed again by every [`Models::load`](super::Models::load), so that new ones are
    /// found.
    ///
    /// # Errors
    /// If the versions cannot be listed.
    fn versions(&self) -> Result<Vec<String>, SourceError>;

    /// Opens a version and makes it ready.
    ///
    /// # Errors
    /// If the version cannot be loaded.
    fn load(&self, load: Load<'_>) -> Result<Loaded, SourceError>;
}

/// The version to load.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    /// One of [`Source::versions`].
    pub version: &'a str,
    /// The label of its metrics, if there are several models or versions
    /// ([`EngineConfig::label`](crate::engine::EngineConfig::label)).
    pub label: Option<&'a str>,
    /// The registry that will serve it.
    pub models: &'a Models,
}

/// A version that is ready.
pub struct Loaded {
    /// The engine that answers.
    pub engine: Arc<dyn Infer>,
    /// What is stopped when it is unloaded, after the last answer; `None`: dropping the engine is enough.
    pub stop: Option<Arc<dyn Stop>>,
    /// What computes the answers.
    pub composition: Composition,
}

/// What computes the answers of a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Composition {
    /// Its own model.
    #[default]
    Model,
    /// Other models of the server.
    Ensemble {
        /// Whether the answer to a text depends on the other texts of its request, which then cannot be split.
        retrieves: bool,
    },
}

impl From<Engine> for Loaded {
    fn from(engine: Engine) -> Self {
        let stop: Option<Arc<dyn Stop>> = Some(Arc::new(engine.clone()));
        Self { stop, ..Self::from(Arc::new(engine)) }
    }
}

impl<E: Infer> From<Arc<E>> for Loaded {
    fn from(engine: Arc<E>) -> Self {
        Self::from(engine as Arc<dyn Infer>)
    }
}

impl From<Arc<dyn Infer>> for Loaded {
    fn from(engine: Arc<dyn Infer>) -> Self {
        Self { engine, stop: None, composition: Composition::Model }
    }
}

/// A model that can be served.
pub struct Declared {
    /// Its name in requests. No `/`, which would begin a version.
    pub name: String,
    /// Other names; these may have a `/`, as names on the Hub do.
    pub aliases: Vec<Alias>,
    /// The version that a request without one gets; `None` is the latest that is ready.
    pub version: Option<String>,
    /// When it is loaded.
    pub load: LoadWhen,
    /// Where its versions come from.
    pub source: Arc<dyn Source>,
}

/// Another name for a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The name in requests.
    pub name: String,
    /// The version that it stands for; `None` for the one that the model's own name stands for.
    pub version: Option<String>,
}

/// When a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadWhen {
    /// All its versions, before the server listens.
    #[default]
    Start,
    /// Each version when a request first needs it; the request waits for it.
    Request,
}
