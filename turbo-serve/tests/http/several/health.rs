//! Health of a server of several models, and of one of them.

use std::time::Duration;

use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use turbo_serve::{
    grpc,
    http::Metrics,
    models::{Declared, LoadWhen, Models},
};

use super::{Several, UNLOADED, declared, search};
use crate::{
    fake::{Running, assert_tei, embedding},
    grpc::channel,
};

#[test]
fn health_is_that_of_all_models_or_of_the_one_that_is_named() {
    let server = Several::start();
    for path in ["/health", "/models/ranker/health", "/models/ranker/versions/1/ping", "/models/ranker"] {
        assert_eq!(server.running.get(path).status, 200, "{path}");
    }
    server.unload("ranker");
    assert_eq!(server.running.get("/health").status, 200, "what was unloaded is not ill");
    let reply = server.running.get("/models/ranker/health");
    assert_tei("unloaded", &reply, 404, "Validation", UNLOADED);
}

#[test]
fn a_server_whose_models_are_not_loaded_tells_who_watches_that_it_stops() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let on_demand = Declared { load: LoadWhen::Request, ..declared("embedder", embedding(), &["1"], &[]) };
    let models = Models::new(vec![on_demand], None).unwrap();
    let services = grpc::router(models.clone(), Metrics::install().unwrap(), 1_000_000);
    let server = Running::start(services);
    runtime.block_on(async {
        let mut client = HealthClient::new(channel(&server).await);
        let mut watch = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
        assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
        models.stop().await;
        let ends = async { while watch.message().await.unwrap().is_some() {} };
        tokio::time::timeout(Duration::from_secs(5), ends).await.expect("it goes on");
    });
}

#[test]
fn a_server_without_any_model_lives_and_is_not_ready() {
    let server = Several::with([search(["embedder", "ranker"], 3)]);
    let serving = || {
        server.runtime.block_on(async {
            let mut client = HealthClient::new(channel(&server.running).await);
            client.check(HealthCheckRequest::default()).await.unwrap().into_inner().status()
        })
    };
    server.unload("embedder");
    assert_eq!(serving(), ServingStatus::Serving);
    for path in ["/health", "/v2/health/ready"] {
        assert_eq!(server.running.get(path).status, 200, "an ensemble without its models is not the server");
    }
    assert_eq!(server.running.get("/models/search/health").status, 503);
    server.unload("ranker");
    assert_tei("health", &server.running.get("/health"), 503, "Unhealthy", "unhealthy: no model is loaded");
    assert_eq!(server.running.get("/v2/health/ready").status, 503);
    assert_eq!(serving(), ServingStatus::NotServing);
    assert_eq!(server.running.get("/v2/health/live").status, 200);
    server.load("ranker");
    assert_eq!(server.running.get("/health").status, 200);
}
