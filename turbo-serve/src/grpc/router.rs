//! Which path leads to which service.

use std::convert::Infallible;

use axum::{Router, body::Body, extract::Request, middleware, response::IntoResponse};
use tonic::{codegen::Service, server::NamedService};
use tonic_health::pb::{self as health, health_server::HealthServer};
use tonic_reflection::server::Builder;

use super::{
    calls::Calls,
    proto::{
        DESCRIPTORS,
        open_inference::grpc_inference_service_server::GrpcInferenceServiceServer,
        tei::{
            embed_server::EmbedServer, info_server::InfoServer, predict_server::PredictServer,
            rerank_server::RerankServer, tokenize_server::TokenizeServer,
        },
    },
};
use crate::{http::Metrics, models::Models, request_span};

/// Most bytes of a message that asks how the server is, or what there is: anybody may send one.
const PUBLIC_LIMIT: usize = 64 << 10;

/// All services, to be merged with [`http::router`](crate::http::router()). A message has `payload_limit` bytes at most.
pub fn router(models: impl Into<Models>, metrics: Metrics, payload_limit: usize) -> Router {
    let (calls, limit) = (Calls { models: models.into(), metrics }, payload_limit);
    let routes = [
        service(InfoServer::new(calls.clone()).max_decoding_message_size(limit)),
        service(EmbedServer::new(calls.clone()).max_decoding_message_size(limit)),
        service(PredictServer::new(calls.clone()).max_decoding_message_size(limit)),
        service(RerankServer::new(calls.clone()).max_decoding_message_size(limit)),
        service(TokenizeServer::new(calls.clone()).max_decoding_message_size(limit)),
        service(GrpcInferenceServiceServer::new(calls.clone()).max_decoding_message_size(limit)),
        service(HealthServer::new(calls).max_decoding_message_size(PUBLIC_LIMIT)),
        service(
            reflection()
                .build_v1()
                .expect("the descriptors are those that build.rs has written")
                .max_decoding_message_size(PUBLIC_LIMIT),
        ),
        service(
            reflection()
                .build_v1alpha()
                .expect("the descriptors are those that build.rs has written")
                .max_decoding_message_size(PUBLIC_LIMIT),
        ),
    ];
    let routes = routes.into_iter().fold(Router::new(), Router::merge);
    routes.layer(middleware::from_fn(request_span::span))
}

fn reflection() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(health::FILE_DESCRIPTOR_SET)
}

/// All methods of a service; those that it does not have it refuses itself.
fn service<S>(service: S) -> Router
where
    S: Service<Request<Body>, Error = Infallible> + NamedService + Clone + Send + Sync + 'static,
    S::Response: IntoResponse,
    S::Future: Send + 'static,
{
    Router::new().route_service(&format!("/{}/{{method}}", S::NAME), service)
}
