//! Listing, loading and unloading models.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::json;

use super::path::{Change, ModelPath};
use crate::{
    http::{
        ApiError, body,
        error::KserveError,
        router::{Server, refuse},
    },
    kserve,
};

/// Body of `POST /v2/repository/index`; it may be left out.
#[derive(Default, Deserialize)]
struct IndexBody {
    ready: Option<bool>,
}

#[derive(Serialize)]
struct Indexed<'a> {
    name: &'a str,
    version: &'a str,
    state: &'static str,
    reason: &'a str,
}

/// `POST /v2/repository/index`.
pub(super) async fn index(State(server): State<Server>, request: Request) -> Result<Response, KserveError> {
    let IndexBody { ready } = read(&server, request).await?;
    let index = kserve::index(server.models(), ready.unwrap_or(false));
    let told = index.iter().map(|it| Indexed {
        name: &it.name,
        version: &it.version,
        state: it.state,
        reason: &it.reason,
    });
    Ok(Json(told.collect::<Vec<_>>()).into_response())
}

/// Body of `POST /v2/repository/models/{name}/load` and `…/unload`; it may be left out.
#[derive(Default, Deserialize)]
struct ChangeBody {
    parameters: Option<BTreeMap<String, IgnoredAny>>,
}

/// `POST /v2/repository/models/{name}/load` and `…/unload`.
pub(super) async fn change(
    State(server): State<Server>,
    path: ModelPath,
    request: Request,
) -> Result<Response, KserveError> {
    let Some((name, change)) = path.changed() else {
        let (uri, expected) = (request.uri().clone(), Change::ALL.map(Change::end).join("` or `"));
        let message = format!("no route `{}`: expected `{expected}` at its end", uri.path());
        return Ok(refuse(&uri, request, ApiError::refused(StatusCode::NOT_FOUND, message)).await);
    };
    let ChangeBody { parameters } = read(&server, request).await?;
    let models = server.models();
    match change {
        Change::Load => {
            kserve::check_load(parameters.unwrap_or_default().into_keys())?;
            models.load(name).await.map_err(ApiError::from)?;
        }
        Change::Unload => models.unload(name).await.map_err(ApiError::from)?,
    }
    Ok(Json(json!({})).into_response())
}

/// The body, or the default if there is none. Clients send it without a JSON content type.
async fn read<T: Default + DeserializeOwned>(server: &Server, request: Request) -> Result<T, ApiError> {
    let (head, body) = request.into_parts();
    let bytes = body::bytes(&head, body, server.payload_limit()).await?;
    match bytes.is_empty() {
        true => Ok(T::default()),
        false => body::parse(&bytes),
    }
}
