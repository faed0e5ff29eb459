//! The routes of all services.

use std::convert::Infallible;

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use futures_util::StreamExt;
use tonic::{codec::CompressionEncoding, codegen::Service, server::NamedService};
use tonic_health::pb::{self as health, health_server::HealthServer};
use tonic_reflection::{
    pb::{v1, v1alpha},
    server::Builder,
};
use tower::util::{MapRequest, MapRequestLayer};

use super::{
    calls::Calls,
    observe::observe,
    proto::{
        DESCRIPTORS,
        open_inference::grpc_inference_service_server::GrpcInferenceServiceServer,
        tei::{
            embed_server::EmbedServer, info_server::InfoServer, predict_server::PredictServer,
            rerank_server::RerankServer, tokenize_server::TokenizeServer,
        },
    },
    status::is_call,
};
use crate::{
    http::{ApiError, Metrics, turn_away},
    models::Models,
    net::Arrived,
    request_span,
};

/// Most bytes of a health or reflection message: clients may send these without a key.
const PUBLIC_LIMIT: usize = 64 << 10;

/// Why the reflection services can be built.
const DESCRIBED: &str = "the descriptors are those that build.rs has written";

/// The routes of a service whose messages have at most this many bytes, compressed or not. Answers are not compressed,
/// though most clients would accept that: numbers hardly shrink, and compression would delay each answer.
macro_rules! taking {
    ($service:expr, $limit:expr) => {
        service(
            $service
                .max_decoding_message_size($limit)
                .accept_compressed(CompressionEncoding::Gzip)
                .accept_compressed(CompressionEncoding::Deflate),
            $limit,
        )
    };
}

/// All services, to be merged with [`http::router`](crate::http::router()). A message has at most `payload_limit` bytes
/// after unpacking.
pub fn router(models: impl Into<Models>, metrics: Metrics, payload_limit: usize) -> Router {
    let (calls, limit) = (Calls { models: models.into(), metrics }, payload_limit);
    let stopping = calls.clone();
    let ends = MapRequestLayer::new(move |request| until_stopped(stopping.clone(), request));
    let routes = [
        taking!(InfoServer::new(calls.clone()), limit),
        taking!(EmbedServer::new(calls.clone()), limit),
        taking!(PredictServer::new(calls.clone()), limit),
        taking!(RerankServer::new(calls.clone()), limit),
        taking!(TokenizeServer::new(calls.clone()), limit),
        taking!(GrpcInferenceServiceServer::new(calls.clone()), limit),
        taking!(HealthServer::new(calls), PUBLIC_LIMIT),
        taking!(reflection().build_v1().expect(DESCRIBED), PUBLIC_LIMIT).route_layer(ends.clone()),
        taking!(reflection().build_v1alpha().expect(DESCRIBED), PUBLIC_LIMIT).route_layer(ends),
    ];
    let routes = routes.into_iter().fold(Router::new(), Router::merge);
    routes
        .route_layer(middleware::from_fn(observe))
        .layer(middleware::from_fn(request_span::span))
        .route_layer(middleware::from_fn(calls_alone))
}

/// Refuses requests that are not gRPC calls. The services would take any request for a call, but its body has been
/// counted and timed as its content type says.
async fn calls_alone(request: Request, next: Next) -> Response {
    let (method, headers) = (request.method(), request.headers());
    if method == Method::POST && is_call(headers) {
        return next.run(request).await;
    }
    let said = headers
        .get(header::CONTENT_TYPE)
        .map_or("none".into(), |value| format!("`{}`", String::from_utf8_lossy(value.as_bytes())));
    let message = format!("expected POST with content-type `application/grpc`, got {method} with {said}");
    turn_away(request, ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)).await
}

/// Makes the messages of a request end when the server stops: reflection waits for the next message, which may never
/// come.
fn until_stopped(calls: Calls, request: Request) -> Request {
    let stopped = async move { calls.end(None).await };
    request.map(|body| Body::from_stream(body.into_data_stream().take_until(stopped)))
}

fn reflection() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(health::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(v1alpha::FILE_DESCRIPTOR_SET)
}

/// The route of all methods of a service, which refuses unknown methods itself. A compressed message unpacks to at most
/// `limit` bytes.
fn service<S>(service: S, limit: usize) -> Router
where
    S: Service<Request<Body>, Error = Infallible> + NamedService + Clone + Send + Sync + 'static,
    S::Response: IntoResponse,
    S::Future: Send + 'static,
{
    let tell = move |request: Request| {
        if let Some(arrived) = request.extensions().get::<Arrived>() {
            arrived.unpacks_to(limit);
        }
        request
    };
    Router::new().route_service(&format!("/{}/{{method}}", S::NAME), MapRequest::new(service, tell))
}
