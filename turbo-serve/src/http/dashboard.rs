//! The dashboard's page and data.

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};

use super::{
    error::{ApiError, TeiError},
    router::Server,
    target::InPath,
};
use crate::{dashboard, models::Wanted};

/// `GET /dashboard`.
pub(super) async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, dashboard::POLICY.as_str()),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, dashboard::PAGE).into_response()
}

/// `GET /dashboard/data`: the data of the model that the path names, or of the default one. It never loads a model.
pub(super) async fn data(State(server): State<Server>, path: InPath) -> Result<Response, TeiError> {
    let default = Wanted { name: None, version: None };
    let wanted = path.wanted().unwrap_or(default);
    let data = dashboard::data(server.models(), wanted).map_err(ApiError::from)?;
    Ok(([(header::CACHE_CONTROL, "no-store")], axum::Json(data)).into_response())
}
