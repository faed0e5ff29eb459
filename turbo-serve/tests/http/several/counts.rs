//! What is counted of each model: its metrics, and its statistics.

use serde_json::{Value, json};
use tonic::Code;
use turbo_serve::{
    grpc::proto::{
        open_inference::{ModelStatisticsRequest, grpc_inference_service_client::GrpcInferenceServiceClient},
        tei::{EmbedAllRequest, embed_client::EmbedClient, rerank_client::RerankClient},
    },
    models::{Alias, Declared},
    net::{InFlightLimits, bounded},
};

use super::{Several, call, declared, rerank, to_rank};
use crate::{
    fake::{assert_tei, classifier, embedding},
    grpc::channel,
};

#[test]
fn requests_are_counted_by_model() {
    let server = Several::start();
    assert_eq!(server.post("/models/ranker", rerank()).status, 200);
    let metrics = server.running.get("/metrics");
    let line = "te_request_success{method=\"batch\",model=\"ranker/1\"}";
    assert!(metrics.text().lines().any(|it| it.starts_with(line)), "{}", metrics.text());
}

#[test]
fn a_stream_of_texts_to_rank_is_counted_by_model() {
    let server = Several::with([declared("streamed", classifier(["score"]), &["1"], &[])]);
    server.runtime.block_on(async {
        let mut client = RerankClient::new(channel(&server.running).await);
        client.rerank_stream(call("streamed", to_rank())).await.unwrap();
    });
    let metrics = server.running.get("/metrics");
    for counted in ["te_request_count", "te_request_success"] {
        let line = format!("{counted}{{method=\"batch\",model=\"streamed/1\"}} 1");
        assert!(metrics.text().lines().any(|it| it == line), "{line}: {}", metrics.text());
    }
}

#[test]
fn an_answer_that_is_given_up_is_no_success() {
    let limits = InFlightLimits { bodies: usize::MAX, answers: 200_000 };
    let others = [declared("bounded", embedding(), &["1"], &[])];
    let server = Several::guarded(others, |router| bounded(router, limits));
    let (short, long) = ("a".repeat(10), "a".repeat(20_000));
    let over_http = |text: &str| server.post("/models/bounded/embed_all", json!({ "inputs": text }));
    assert_eq!(over_http(&short).status, 200);
    assert_tei("a vector for each letter", &over_http(&long), 422, "Validation", "200000 bytes");
    server.runtime.block_on(async {
        let mut client = EmbedClient::new(channel(&server.running).await);
        let mut codes = Vec::new();
        for text in [&short, &long] {
            let message = EmbedAllRequest { inputs: text.clone(), truncate: true, ..Default::default() };
            let answer = client.embed_all(call("bounded", message)).await;
            codes.push(answer.map_or_else(|status| status.code(), |_| Code::Ok));
        }
        assert_eq!(codes, [Code::Ok, Code::InvalidArgument]);
    });
    let metrics = server.running.get("/metrics");
    for (counted, count) in [("te_request_count", 4), ("te_request_success", 2)] {
        let line = format!("{counted}{{method=\"single\",model=\"bounded/1\"}} {count}");
        assert!(metrics.text().lines().any(|it| it == line), "{line}: {}", metrics.text());
    }
}

#[test]
fn statistics_are_those_of_the_versions_that_a_name_stands_for() {
    let stable = Alias { name: "labels-stable".to_owned(), version: Some("1".to_owned()) };
    let labels = Declared {
        aliases: vec![stable],
        version: Some("2".to_owned()),
        ..declared("labels", embedding(), &["1", "2"], &[])
    };
    let server = Several::with([labels]);
    let over_http = |name: &str| -> Option<Vec<String>> {
        let reply = server.running.get(&format!("/v2/models/{name}/stats"));
        let version = |it: &Value| it["version"].as_str().unwrap().to_owned();
        let versions = || reply.json()["model_stats"].as_array().unwrap().iter().map(version).collect();
        (reply.status == 200).then(versions)
    };
    let over_grpc = |name: &str| -> Option<Vec<String>> {
        server.runtime.block_on(async {
            let channel = channel(&server.running).await;
            let request = ModelStatisticsRequest { name: name.to_owned(), ..Default::default() };
            let answer = GrpcInferenceServiceClient::new(channel).model_statistics(request).await.ok()?;
            Some(answer.into_inner().model_stats.into_iter().map(|it| it.version).collect())
        })
    };
    let are = |name: &str, versions: Option<&[&str]>| {
        let versions = versions.map(|versions| versions.iter().map(|&it| it.to_owned()).collect::<Vec<_>>());
        assert_eq!((over_http(name), over_grpc(name)), (versions.clone(), versions), "{name}");
    };
    are("labels", Some(&["1", "2"]));
    are("labels/2", Some(&["2"]));
    are("labels/latest", Some(&["2"]));
    are("labels-stable", Some(&["1"]));
    server.unload("labels/2");
    are("labels", Some(&["1"])); // the one that it is pinned to is not there
    are("labels/2", None);
    server.unload("labels");
    are("labels", None);
}
