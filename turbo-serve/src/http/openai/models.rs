//! `GET /v1/models` and `GET /v1/models/{name}`: the values that the field `model` of a body may have.

use std::time::UNIX_EPOCH;

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
    http::StatusCode,
};
use serde::{Deserialize, Serialize};

use crate::{
    http::{
        error::{ApiError, OpenAiError},
        router::Server,
    },
    models::{Models, NotServed, State as Is, Wanted},
};

/// `{"object": "list", "data": […]}`
#[derive(Serialize)]
pub(in crate::http) struct List {
    object: &'static str,
    data: Vec<Model>,
}

/// One name. `root` is the model and version that it stands for.
#[derive(Serialize)]
pub(in crate::http) struct Model {
    id: String,
    object: &'static str,
    /// When it was loaded, in seconds since 1970.
    created: u64,
    owned_by: &'static str,
    root: String,
}

impl Model {
    fn new(models: &Models, name: String) -> Result<Self, NotServed> {
        let entry = models.entry(Wanted::named(&name))?;
        let root = format!("{}/{}", entry.name, entry.version);
        if !matches!(entry.state, Is::Ready | Is::OnDemand) {
            return Err(NotServed::Unloaded { name: root });
        }
        let created = entry.since.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Ok(Self { id: name, object: "model", created, owned_by: "turbo", root })
    }
}

/// `GET /v1/models`: every name that a request may use, of models that are loaded or would be loaded on demand.
pub(in crate::http) async fn list(State(server): State<Server>) -> Json<List> {
    let models = server.models();
    let mut names: Vec<String> = Vec::new();
    for entry in models.list() {
        let full_name = format!("{}/{}", entry.name, entry.version);
        for name in std::iter::once(entry.name).chain(entry.aliases).chain([full_name]) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let data = names.into_iter().filter_map(|name| Model::new(models, name).ok()).collect();
    Json(List { object: "list", data })
}

/// `GET /v1/models/{name}`: the entry of one name.
pub(in crate::http) async fn retrieve(
    State(server): State<Server>,
    path: Result<Path<Named>, PathRejection>,
) -> Result<Json<Model>, OpenAiError> {
    let not_text = |error: PathRejection| {
        ApiError::refused(StatusCode::NOT_FOUND, format!("the path names no model: {error}"))
    };
    let Path(Named { name }) = path.map_err(not_text)?;
    let model = Model::new(server.models(), name).map_err(ApiError::from)?;
    Ok(Json(model))
}

/// The parameter of the path, which may span several segments.
#[derive(Deserialize)]
pub(in crate::http) struct Named {
    name: String,
}
