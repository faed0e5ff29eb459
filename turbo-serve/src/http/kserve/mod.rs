//! KServe's Open Inference Protocol v2 over REST: `/v2/…`. The meaning of tensors is in [`kserve`](crate::kserve); this
//! module reads and writes them, as JSON or in the protocol's binary form, which follows the JSON.
//!
//! Only the path names a model, so these routes exist once, and not below `/models/{name}`. A name may contain a `/`,
//! so one route of the router covers all requests about a model ([`path`]).

mod about;
mod infer;
mod path;
mod read;
mod repository;
mod write;

use axum::routing::post;

use self::path::{Change, Verb};
use super::{
    openapi::{Operation, kserve as told},
    router::{Routes, get_alone},
};

/// The routes, from the root.
pub(super) fn routes() -> Routes {
    let of_models =
        Verb::ALL.into_iter().flat_map(|verb| [None, Some("/versions/{version}")].map(|it| of(verb, it)));
    let changes = Change::ALL.map(|change| {
        let operation = match change {
            Change::Load => told::load(),
            Change::Unload => told::unload(),
        };
        ("post", format!("/v2/repository/models/{{name}}{}", change.end()), operation)
    });
    Routes::default()
        .get("/v2", about::server, told::server())
        .get("/v2/health/live", about::live, told::live())
        .get("/v2/health/ready", about::ready, told::ready())
        .get("/v2/models/stats", about::all_statistics, told::all_statistics())
        .several("/v2/models/{*path}", get_alone(about::model).post(infer::infer), of_models)
        .post("/v2/repository/index", repository::index, told::index())
        .several("/v2/repository/models/{*path}", post(repository::change), changes)
}

/// The OpenAPI entry of a verb, for the default version of a model or for one that the path names.
fn of(verb: Verb, version: Option<&str>) -> (&'static str, String, Operation) {
    let (method, operation) = match verb {
        Verb::Metadata => ("get", told::metadata()),
        Verb::Config => ("get", told::config()),
        Verb::Ready => ("get", told::model_ready()),
        Verb::Statistics => ("get", told::statistics()),
        Verb::Infer => ("post", told::infer()),
    };
    let path = format!("/v2/models/{{name}}{}{}", version.unwrap_or_default(), verb.end());
    (method, path, if version.is_some() { operation.of_version() } else { operation })
}
