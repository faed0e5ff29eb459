//! Metrics and log lines of gRPC calls.

use std::{sync::Arc, time::Duration};

use axum::Router;
use futures_util::{StreamExt, stream};
use metrics_exporter_prometheus::PrometheusBuilder;
use tonic::{Code, Request, codec::CompressionEncoding};
use turbo_serve::{
    engine::Health,
    grpc::proto::tei::{self, EmbedRequest, EmbedResponse, embed_client::EmbedClient},
    http::Metrics,
};

use crate::{
    fake::{Fake, PAYLOAD_LIMIT, counter, logged, routes, routes_with},
    grpc::{assert_status, embed},
};

/// The metrics of these calls alone: they are made on this thread, with a recorder of its own.
fn metrics_of(calls: impl AsyncFnOnce(Router)) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        let services = routes_with(Arc::new(Fake::new(Health::Ready)), Metrics::from(recorder.handle()));
        runtime.block_on(calls(services));
    });
    recorder.handle().render()
}

#[test]
fn calls_are_counted() {
    let metrics = metrics_of(async |services| {
        let mut client = EmbedClient::new(services);
        client.embed(embed("a")).await.unwrap();
        let answers = client.embed_stream(stream::iter(["a", "b"].map(embed))).await.unwrap().into_inner();
        assert_eq!(answers.count().await, 2);
        client.embed(embed("backend")).await.unwrap_err();
    });
    for (metric, expected) in [
        (r#"te_request_count{method="single"}"#, 4),
        (r#"te_request_success{method="single"}"#, 3),
        (r#"te_request_failure{err="inference"}"#, 1),
    ] {
        assert_eq!(counter(&metrics, metric), expected, "{metric}");
    }
}

#[test]
fn what_comes_to_no_method_is_counted_once() {
    let call = async |services: Router, path: &str, message: tei::DecodeRequest| {
        let mut client = tonic::client::Grpc::new(services);
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<tei::DecodeRequest, EmbedResponse>::default();
        client.unary(Request::new(message), path.parse().unwrap(), codec).await.unwrap_err().code()
    };
    let metrics = metrics_of(async |services| {
        let large = embed(&"a".repeat(PAYLOAD_LIMIT));
        let mut client = EmbedClient::new(services.clone());
        let refused = client.embed(large.clone()).await;
        assert_status("large", refused, Code::OutOfRange, "10000");
        let answers = client.embed_stream(stream::iter([embed("a"), large])).await.unwrap().into_inner();
        let answers: Vec<_> = answers.collect().await;
        assert_status("large in a stream", answers[1].clone(), Code::OutOfRange, "10000");
        let mut packing = EmbedClient::new(services.clone()).send_compressed(CompressionEncoding::Gzip);
        let unpacked = packing.embed(embed(&"a".repeat(PAYLOAD_LIMIT))).await;
        assert_status("large when it is unpacked", unpacked, Code::ResourceExhausted, "10000");
        // Read as a text, its bytes are not UTF-8.
        let ids = || tei::DecodeRequest { ids: vec![200], skip_special_tokens: false };
        for (path, code) in [
            ("/tei.v1.Embed/Embed", Code::Internal),
            ("/tei.v1.Embed/Nothing", Code::Unimplemented),
            ("/tei.v1.Nothing/Embed", Code::Unimplemented),
            // Health checks are not counted.
            ("/grpc.health.v1.Health/Nothing", Code::Unimplemented),
        ] {
            assert_eq!(call(services.clone(), path, ids()).await, code, "{path}");
        }
    });
    assert_eq!(counter(&metrics, r#"te_request_failure{err="validation"}"#), 6, "{metrics}");
}

#[test]
fn the_time_of_who_takes_answers_late_is_not_that_of_his_questions() {
    const PAUSE: Duration = Duration::from_secs(2);
    let metrics = metrics_of(async |services| {
        let asked = EmbedClient::new(services).embed_stream(stream::iter(["a", "slow"].map(embed))).await;
        let mut answers = asked.unwrap().into_inner();
        answers.message().await.unwrap().unwrap();
        tokio::time::sleep(PAUSE).await;
        answers.message().await.unwrap().unwrap();
    });
    let took = metrics.lines().find_map(|line| line.strip_prefix("te_request_duration_sum ")).unwrap();
    assert!(took.parse::<f64>().unwrap() < PAUSE.as_secs_f64(), "{took} s");
}

#[test]
fn a_call_has_a_line_in_the_log_and_a_span_until_its_answer_has_ended() {
    logged(async |said| {
        let mut client = EmbedClient::new(routes(Arc::new(Fake::new(Health::Ready))));
        let mut request = Request::new(embed("a"));
        request.metadata_mut().insert("x-request-id", "mine".parse().unwrap());
        client.embed(request).await.unwrap();
        assert!(said(&["answered", r#"path="/tei.v1.Embed/Embed" id="mine" code=Ok"#]));

        let (questions, asked) = tokio::sync::mpsc::channel(1);
        let asked = stream::unfold(asked, |mut asked| async { Some((asked.recv().await?, asked)) });
        let mut answers = client.embed_stream(asked).await.unwrap().into_inner();
        let stream = "otel.name=tei.v1.Embed/EmbedStream";
        for text in ["a", "backend"] {
            assert!(!said(&[stream, "close"]), "{text} is still to be answered");
            questions.send(embed(text)).await.unwrap();
            match answers.message().await {
                Ok(_) => assert_eq!(text, "a"),
                Err(status) => {
                    assert_eq!(text, "backend");
                    assert!(status.metadata().get("x-turbo-reason").is_none(), "{status:?}");
                }
            }
        }
        drop(answers);
        assert!(said(&[stream, "close", r#"otel.status_code="ERROR""#]));
        assert!(said(&["WARN", "not answered", r#"path="/tei.v1.Embed/EmbedStream" id="#, "on fire"]));
        assert!(said(&["not answered", r#"code=FailedPrecondition reason="inference""#]));

        // The reason of a failure is for the log, and not for the client.
        let refused = client.embed(embed("overloaded")).await.unwrap_err();
        assert!(said(&["refused", r#"code=ResourceExhausted reason="overloaded""#]));
        let told = format!("{:?}", refused.metadata());
        assert!(told.contains("grpc-retry-pushback-ms") && !told.contains("overloaded"), "{told}");

        let mut gone = client.clone();
        let call = tokio::time::timeout(Duration::from_millis(50), gone.embed(embed("wait")));
        assert!(call.await.is_err());
        assert!(said(&["given up", r#"path="/tei.v1.Embed/Embed""#]));

        drop(client.embed_stream(stream::pending::<EmbedRequest>()).await.unwrap());
        assert!(said(&["given up", r#"path="/tei.v1.Embed/EmbedStream""#]));
    });
}
