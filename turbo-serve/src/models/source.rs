//! What a registry is made from: names, and where their versions come from.

use std::sync::Arc;

use super::{Models, served::Stop};
use crate::engine::{Engine, Infer};

/// Why a version cannot be had.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// Where the versions of a model come from. Both verbs block, and are called on threads where that is allowed.
pub trait Source: Send + Sync + 'static {
    /// The versions that there are now; asked again by every [`Models::load`](super::Models::load), so that what was
    /// added since is found.
    ///
    /// # Errors
    /// Whatever keeps it from looking.
    fn versions(&self) -> Result<Vec<String>, SourceError>;

    /// Opens a version and makes it ready.
    ///
    /// # Errors
    /// Whatever keeps it from being served.
    fn load(&self, load: Load<'_>) -> Result<Loaded, SourceError>;
}

/// What is to be loaded.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    /// One of [`Source::versions`].
    pub version: &'a str,
    /// What its metrics are told apart by, where there are several models
    /// ([`EngineConfig::label`](crate::engine::EngineConfig::label)).
    pub label: Option<&'a str>,
    /// What it will be served beside.
    pub models: &'a Models,
}

/// A version that is ready.
pub struct Loaded {
    /// Who answers.
    pub engine: Arc<dyn Infer>,
    /// What is ended when it is unloaded, after the last answer; `None`: it needs no more than to be dropped.
    pub stop: Option<Arc<dyn Stop>>,
    /// Who computes the answers.
    pub composition: Composition,
}

/// Who computes the answers of a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Composition {
    /// It does itself.
    #[default]
    Model,
    /// Other models of the server do.
    Ensemble {
        /// Whether the answer to a text depends on the others of its request, so that they cannot be asked for in parts.
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
    /// What clients call it. No `/`: what follows one is a version.
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
    /// What clients may write.
    pub name: String,
    /// The version that it stands for; `None` is whatever the model's own name stands for.
    pub version: Option<String>,
}

/// When a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadWhen {
    /// All its versions, before the server listens.
    #[default]
    Start,
    /// The version that a request asks for, when the first one does; it waits so long.
    Request,
}
