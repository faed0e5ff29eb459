//! The model that a request is for: checked when the head has arrived, and leased from the end of the body until the
//! answer is made.
//!
//! | said by | example |
//! |---|---|
//! | the path | `/models/minilm/embed`, `/models/minilm/versions/2/embed` |
//! | the body, where its protocol has a field for it and the path says nothing | `{"model": "minilm/2", …}` |
//! | neither | the default model |

use axum::{
    extract::{FromRequestParts, RawPathParams, rejection::RawPathParamsRejection},
    http::{HeaderValue, StatusCode, Uri, request::Parts},
};

use super::{
    Metrics,
    error::{ApiError, TeiError},
    headers,
    router::Server,
    urgency::urgency,
};
use crate::{
    engine::{AnswerRoom, Infer, Urgency},
    models::{Composition, NotServed, Served, Wanted},
    net::{Arrived, Planned},
};

/// Path parameter that names the model.
pub(super) const NAME: &str = "model";
/// Path parameter that names the version.
pub(super) const VERSION: &str = "version";

/// A model, and where its requests are counted. Cheap to clone.
#[derive(Clone)]
pub(super) struct Target {
    served: Served,
    metrics: Metrics,
    /// The room for the answer; `None` if the router is nested in another server, which does not count bytes.
    planned: Option<Planned>,
    /// The requested URI, without the model's prefix.
    asked: Uri,
}

impl Target {
    /// Refuses a request whose path names a model that is not served, before its body is read. The lease is taken after
    /// the body, so that a client that sends slowly does not keep a model from being unloaded.
    pub(super) async fn check(parts: &mut Parts, server: &Server) -> Result<(), ApiError> {
        if parts.extensions.get::<Self>().is_some() {
            return Ok(());
        }
        let path = InPath::of(parts).await?;
        Ok(path.wanted().map_or(Ok(()), |wanted| server.models().check(wanted))?)
    }

    /// The model that a request is for: the one that its path names, else the one called `name`, else the default one.
    /// A target that an earlier handler of the request has handed on takes precedence.
    pub(super) async fn of(
        parts: &mut Parts,
        server: &Server,
        name: Option<&str>,
        urgency: Urgency,
    ) -> Result<Self, ApiError> {
        if let Some(found) = parts.extensions.remove::<Self>() {
            return Ok(Self { served: found.served.urgent(urgency), ..found });
        }
        let path = InPath::of(parts).await?;
        let wanted = path.wanted().unwrap_or(Wanted { name, version: None });
        Ok(Self::lease(parts, server, wanted, urgency).await?)
    }

    /// Leases the model with this urgency, waiting for it until the deadline at most.
    pub(super) async fn lease(
        parts: &Parts,
        server: &Server,
        wanted: Wanted<'_>,
        urgency: Urgency,
    ) -> Result<Self, NotServed> {
        let planned = parts.extensions.get().map(Arrived::planned);
        let served = server.models().lease_by(wanted, urgency.deadline).await?.urgent(urgency);
        let metrics = server.metrics().of(served.label());
        let room = room_of(planned.as_ref());
        Ok(Self { served: served.held_in(room), metrics, planned, asked: parts.uri.clone() })
    }

    /// From now on reserves room for writing this many bytes for each value of the answer.
    pub(super) fn writing(self, bytes_per_value: usize) -> Self {
        if let Some(planned) = &self.planned {
            planned.written_in(bytes_per_value);
        }
        self
    }

    /// Refuses an answer of this many values if it could never be held. Called before its first part is computed.
    pub(super) fn check_values(&self, values: usize) -> Result<(), ApiError> {
        self.planned.as_ref().map_or(Ok(()), |planned| Ok(planned.check(values)?))
    }

    /// The handle through which room is reserved for the answer, and for what is kept for it meanwhile.
    pub(super) fn room(&self) -> AnswerRoom {
        room_of(self.planned.as_ref())
    }

    /// The room for the answer until it is written.
    pub(super) fn planned(&self) -> Option<Planned> {
        self.planned.clone()
    }

    /// Passes this target to the next handler of this request.
    pub(super) fn hand_on(self, parts: &mut Parts) {
        parts.extensions.insert(self);
    }

    pub(super) fn engine(&self) -> &dyn Infer {
        self.served.engine()
    }

    /// The requested path, without the model's prefix.
    pub(super) fn route(&self) -> &str {
        self.asked.path()
    }

    /// The model's own name.
    pub(super) fn name(&self) -> &str {
        self.served.name()
    }

    /// Its version.
    pub(super) fn version(&self) -> &str {
        self.served.version()
    }

    /// Whether it needs all texts of a request at once.
    pub(super) fn retrieves(&self) -> bool {
        self.served.retrieves()
    }

    /// Whether other models of the server compute its answers.
    pub(super) fn is_ensemble(&self) -> bool {
        self.served.composition() != Composition::Model
    }

    /// Begins a request that makes several engine requests: see [`Served::begun`].
    pub(super) fn begun(self) -> Result<Self, ApiError> {
        Ok(Self { served: self.served.begun()?, ..self })
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Value of `x-compute-type`.
    pub(super) fn compute_type(&self) -> HeaderValue {
        headers::compute_type(&self.engine().info().model.device)
    }
}

fn room_of(planned: Option<&Planned>) -> AnswerRoom {
    planned.map(Planned::room).unwrap_or_default()
}

/// For routes without a body.
impl FromRequestParts<Server> for Target {
    type Rejection = TeiError;

    async fn from_request_parts(parts: &mut Parts, server: &Server) -> Result<Self, TeiError> {
        let urgency = urgency(&parts.headers)?;
        Ok(Self::of(parts, server, None, urgency).await?)
    }
}

/// The model that a path names.
#[derive(Default)]
pub(super) struct InPath {
    name: Option<String>,
    version: Option<String>,
}

impl InPath {
    async fn of(parts: &mut Parts) -> Result<Self, ApiError> {
        let mut said = Self::default();
        let params = match RawPathParams::from_request_parts(parts, &()).await {
            Ok(params) => params,
            // A name that is not UTF-8 names no model, and does not fall back to the default one.
            Err(RawPathParamsRejection::InvalidUtf8InPathParam(error)) => {
                let message = format!("the path names no model: {error}");
                return Err(ApiError::refused(StatusCode::NOT_FOUND, message));
            }
            Err(_) => return Ok(said), // the path has no parameters
        };
        for (key, value) in &params {
            match key {
                NAME => said.name = Some(value.to_owned()),
                VERSION => said.version = Some(value.to_owned()),
                _ => {}
            }
        }
        Ok(said)
    }

    /// `None` if the path names no model.
    pub(super) fn wanted(&self) -> Option<Wanted<'_>> {
        let name = self.name.as_deref()?;
        Some(Wanted { name: Some(name), version: self.version.as_deref() })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for InPath {
    type Rejection = TeiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, TeiError> {
        Ok(Self::of(parts).await?)
    }
}
