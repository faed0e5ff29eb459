//! Routes that describe the server and its models.

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::path::{ModelPath, Verb};
use crate::{
    engine::Spent,
    http::{
        ApiError,
        error::KserveError,
        router::{Server, refuse},
        tei::check_health,
        urgency::urgency,
    },
    kserve::{self, Metadata, Stats, TensorInfo},
    models::Wanted,
};

/// `GET /v2`.
pub(super) async fn server() -> Response {
    let version = env!("CARGO_PKG_VERSION");
    Json(json!({ "name": kserve::NAME, "version": version, "extensions": kserve::EXTENSIONS }))
        .into_response()
}

/// `GET /v2/health/live`.
pub(super) async fn live() -> Response {
    Json(json!({ "live": true })).into_response()
}

/// `GET /v2/health/ready`.
pub(super) async fn ready(State(server): State<Server>) -> Result<Response, KserveError> {
    check_health(server.models().health(), server.models())?;
    Ok(Json(json!({ "ready": true })).into_response())
}

/// `GET /v2/models/stats`.
pub(super) async fn all_statistics(State(server): State<Server>) -> Result<Response, KserveError> {
    statistics(&server, None)
}

/// `GET /v2/models/{name}`, `…/versions/{version}`, and `…/config`, `…/ready` and `…/stats` of either.
pub(super) async fn model(
    State(server): State<Server>,
    path: ModelPath,
    request: Request,
) -> Result<Response, KserveError> {
    let (wanted, verb) = path.asked();
    match verb {
        Verb::Metadata => metadata(&server, wanted, request.headers()).await,
        Verb::Config => config(&server, wanted, request.headers()).await,
        Verb::Ready => model_ready(&server, wanted),
        Verb::Statistics => statistics(&server, Some(wanted)),
        Verb::Infer => Ok(wrong_method(request, "POST").await),
    }
}

/// Refuses a wrong method, as the router does for other routes.
pub(super) async fn wrong_method(request: Request, allowed: &'static str) -> Response {
    let uri = request.uri().clone();
    let message = format!("`{}` does not take {}", uri.path(), request.method());
    let error = ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, message);
    let mut response = refuse(&uri, request, error).await;
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}

async fn metadata(server: &Server, wanted: Wanted<'_>, headers: &HeaderMap) -> Result<Response, KserveError> {
    let Metadata { name, versions, inputs, outputs, .. } = told(server, wanted, headers).await?;
    let told = |tensors: Vec<TensorInfo>| tensors.into_iter().map(tensor).collect::<Vec<_>>();
    let (inputs, outputs) = (told(inputs), told(outputs));
    let platform = kserve::PLATFORM;
    let body = json!({
        "name": name, "versions": versions, "platform": platform, "inputs": inputs, "outputs": outputs
    });
    Ok(Json(body).into_response())
}

async fn told(server: &Server, wanted: Wanted<'_>, headers: &HeaderMap) -> Result<Metadata, ApiError> {
    let served = server.models().lease_by(wanted, urgency(headers)?.deadline).await?;
    Ok(kserve::metadata(server.models(), &served))
}

/// The metadata in the form of Triton's configuration.
async fn config(server: &Server, wanted: Wanted<'_>, headers: &HeaderMap) -> Result<Response, KserveError> {
    let Metadata { name, max_batch_size, inputs, outputs, .. } = told(server, wanted, headers).await?;
    let tensor = |tensor: &TensorInfo| json!({ "name": tensor.name, "data_type": tensor.data_type(), "dims": tensor.dims() });
    let (input, output): (Vec<_>, Vec<_>) =
        (inputs.iter().map(tensor).collect(), outputs.iter().map(tensor).collect());
    let platform = kserve::PLATFORM;
    let body = json!({
        "name": name, "platform": platform, "backend": platform, "max_batch_size": max_batch_size,
        "input": input, "output": output,
    });
    Ok(Json(body).into_response())
}

fn tensor(tensor: TensorInfo) -> Value {
    json!({ "name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape })
}

fn model_ready(server: &Server, wanted: Wanted<'_>) -> Result<Response, KserveError> {
    let served = server.models().find(wanted).map_err(ApiError::from)?;
    match kserve::is_ready(server.models(), Some(wanted)) {
        true => Ok(Json(json!({ "name": served.name(), "ready": true })).into_response()),
        false => {
            Err(ApiError::unhealthy(format!("unhealthy: model `{}` is not ready", served.name())).into())
        }
    }
}

fn statistics(server: &Server, wanted: Option<Wanted<'_>>) -> Result<Response, KserveError> {
    let stats = kserve::statistics(server.models(), wanted).map_err(ApiError::from)?;
    let stats: Vec<Value> = stats.into_iter().map(statistic).collect();
    Ok(Json(json!({ "model_stats": stats })).into_response())
}

fn statistic(stats: Stats) -> Value {
    let Stats { name, version, done } = stats;
    let spent = |it: Spent| json!({ "count": it.count, "ns": kserve::nanos(it.time) });
    let none = || spent(Spent::default());
    let batch = |(size, took): (&usize, &Spent)| {
        let (input, output) = (none(), none());
        json!({
            "batch_size": size, "compute_input": input, "compute_infer": spent(*took), "compute_output": output,
        })
    };
    let batches: Vec<Value> = done.batches.iter().map(batch).collect();
    json!({
        "name": name,
        "version": version,
        "last_inference": done.last.map_or(0, kserve::millis),
        "inference_count": done.inputs,
        "execution_count": kserve::count(&done.batches),
        "inference_stats": {
            "success": spent(done.answered),
            "fail": spent(done.failed),
            "queue": spent(done.queue),
            "compute_input": spent(done.tokenization),
            "compute_infer": spent(done.inference),
            "compute_output": spent(done.finish),
            "cache_hit": spent(done.known),
            "cache_miss": spent(done.unknown),
        },
        "batch_stats": batches,
    })
}
