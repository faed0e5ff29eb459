//! Models that are loaded and unloaded while their clients ask on.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::stream;
use serde_json::{Value, json};
use tonic::{Code, Request};
use turbo_serve::{
    grpc::proto::{
        open_inference::{
            ModelConfigRequest, ModelMetadataRequest,
            grpc_inference_service_client::GrpcInferenceServiceClient,
        },
        tei::{
            InfoRequest, PredictRequest, RerankStreamRequest, info_client::InfoClient,
            predict_client::PredictClient, rerank_client::RerankClient,
        },
    },
    models::{Declared, Load, LoadWhen, Loaded, Source, SourceError, Wanted},
};

use super::{Several, UNLOADED, call, declared};
use crate::{
    fake::{assert_tei, embedding},
    grpc::channel,
};

/// Takes a while to load, and fails.
struct Broken;

impl Source for Broken {
    fn versions(&self) -> Result<Vec<String>, SourceError> {
        Ok(vec!["1".to_owned()])
    }

    fn load(&self, _: Load<'_>) -> Result<Loaded, SourceError> {
        std::thread::sleep(Duration::from_secs(2));
        Err("the file is too short".into())
    }
}

/// A call whose client does not wait for long.
fn hurried<R>(mut request: Request<R>) -> Request<R> {
    request.metadata_mut().insert("x-request-deadline-ms", "50".parse().unwrap());
    request
}

#[test]
fn a_model_that_cannot_be_loaded_says_when_to_come_back_and_nobody_waits_for_it_too_long() {
    let server = Several::with([Declared {
        load: LoadWhen::Request,
        source: Arc::new(Broken),
        ..declared("broken", embedding(), &[], &[])
    }]);
    let (path, body) = ("/models/broken/embed", r#"{"inputs":"a"}"#);
    let json = ("content-type", "application/json");
    let reply = server.running.send("POST", path, &[json, ("x-request-deadline-ms", "50")], body);
    assert_tei("late", &reply, 504, "Expired", "model `broken/1` was still being loaded at the deadline");
    for path in ["/models/broken/info", "/v2/models/broken", "/v2/models/broken/config"] {
        let reply = server.running.send("GET", path, &[("x-request-deadline-ms", "50")], "");
        assert_eq!(reply.status, 504, "{path}: {}", reply.text());
        let reply = server.running.send("GET", path, &[("x-request-deadline-ms", "soon")], "");
        assert_eq!(reply.status, 400, "{path}: {}", reply.text());
    }
    server.runtime.block_on(async {
        let channel = channel(&server.running).await;
        let (mut info, mut kserve) =
            (InfoClient::new(channel.clone()), GrpcInferenceServiceClient::new(channel));
        let name = || "broken".to_owned();
        let metadata = ModelMetadataRequest { name: name(), ..Default::default() };
        let config = ModelConfigRequest { name: name(), ..Default::default() };
        let told = [
            info.info(hurried(call("broken", InfoRequest {}))).await.err(),
            kserve.model_metadata(hurried(Request::new(metadata))).await.err(),
            kserve.model_config(hurried(Request::new(config))).await.err(),
        ];
        assert!(
            told.iter().all(|error| error.as_ref().is_some_and(|it| it.code() == Code::DeadlineExceeded)),
            "{told:?}"
        );
    });
    let reply = server.running.post(path, body);
    let said =
        "model `broken/1` could not be loaded: the file is too short; when that is fixed, ask again in 5 s";
    assert_tei("broken", &reply, 503, "Unhealthy", said);
    assert_eq!(reply.header("retry-after"), "5");
    // It is no longer waited for.
    let reply = server.running.send("POST", path, &[json, ("x-request-deadline-ms", "50")], body);
    assert_tei("broken", &reply, 503, "Unhealthy", "could not be loaded");
    assert_eq!(server.running.get("/health").status, 200);
}

#[test]
fn a_body_that_comes_slowly_keeps_no_model_from_being_unloaded() {
    let server = Several::start();
    let begin = |(path, body): (&str, &'static str)| {
        let mut client = TcpStream::connect(server.running.address).unwrap();
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        client.write_all(head.as_bytes()).unwrap();
        client.write_all(&body.as_bytes()[..5]).unwrap();
        (client, &body[5..])
    };
    let (texts, documents) = (r#"{"query":"a","texts":["b"]}"#, r#"{"query":"a","documents":["b"]}"#);
    let tensor = r#"{"inputs":[{"name":"text","shape":[1,2],"datatype":"BYTES","data":["a","b"]}]}"#;
    let clients = [
        ("/models/ranker/rerank", texts),
        ("/models/ranker", texts),
        ("/models/ranker/predict", r#"{"inputs":"a"}"#),
        ("/models/ranker/v1/rerank", documents),
        ("/v2/models/ranker/infer", tensor),
    ]
    .map(begin);
    std::thread::sleep(Duration::from_millis(100)); // so that most heads have been read
    let unloaded = server.runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(10), server.models.unload("ranker")).await
    });
    assert_eq!(unloaded, Ok(Ok(())), "somebody has not sent all yet");
    for (mut client, rest) in clients {
        client.write_all(rest.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains(UNLOADED), "{answer}");
    }
}

#[test]
fn models_come_and_go_without_a_failed_request() {
    let server = Several::start();
    let end = AtomicBool::new(false);
    // Statuses that clients of a path have seen.
    let client = |path: &'static str, body: Value| {
        let (server, end) = (&server, &end);
        move || {
            let mut statuses = Vec::new();
            while !end.load(SeqCst) {
                statuses.push(server.post(path, body.clone()).status);
            }
            statuses
        }
    };
    let embed = json!({ "inputs": ["a", "b"] });
    std::thread::scope(|scope| {
        let whole = scope.spawn(client("/embed", embed.clone()));
        let named = scope.spawn(client("/v1/embeddings", json!({ "input": "a", "model": "embedder" })));
        let slow = scope.spawn(client("/models/ranker", json!({ "query": "slow", "texts": ["a"] })));
        for _ in 0..10 {
            server.unload("embedder/2");
            server.unload("ranker");
            std::thread::sleep(Duration::from_millis(20));
            server.load("embedder");
            server.load("ranker");
            std::thread::sleep(Duration::from_millis(20));
        }
        end.store(true, SeqCst);
        for statuses in [whole, named].map(|client| client.join().unwrap()) {
            assert!(statuses.iter().all(|&status| status == 200), "{statuses:?}");
        }
        let statuses = slow.join().unwrap();
        assert!(
            statuses.contains(&200) && statuses.iter().all(|status| [200, 404].contains(status)),
            "{statuses:?}"
        );
    });
}

#[test]
fn a_stream_does_not_keep_its_model_from_being_unloaded() {
    let server = Several::start();
    server.runtime.block_on(async {
        let mut client = PredictClient::new(channel(&server.running).await);
        let (questions, asked) = tokio::sync::mpsc::channel(1);
        let asked = stream::unfold(asked, |mut asked| async { Some((asked.recv().await?, asked)) });
        let mut answers = client.predict_stream(call("ranker", asked)).await.unwrap().into_inner();
        questions.send(PredictRequest { inputs: "a".to_owned(), ..PredictRequest::default() }).await.unwrap();
        assert_eq!(answers.message().await.unwrap().unwrap().predictions.len(), 1);
        server.models.unload("ranker").await.unwrap();
        // it ends, even if its client says nothing more
        let status = answers.message().await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::NotFound, UNLOADED));
    });
}

#[test]
fn scores_of_a_stream_outlast_their_model() {
    let server = Several::start();
    let scored = || {
        let ranker = server.models.find(Wanted::named("ranker")).unwrap();
        ranker.statistics().inputs
    };
    server.runtime.block_on(async {
        let client = RerankClient::new(channel(&server.running).await);
        // A stream may be checked while it is still open, and then ends: its client could send more.
        for _ in 0..20 {
            let (texts, asked) = tokio::sync::mpsc::channel(2);
            let asked = stream::unfold(asked, |mut asked| async { Some((asked.recv().await?, asked)) });
            let mut client = client.clone();
            let ranked = tokio::spawn(async move { client.rerank_stream(call("ranker", asked)).await });
            for text in ["b", "c"] {
                let (query, text) = ("a".to_owned(), text.to_owned());
                texts.send(RerankStreamRequest { query, text, ..Default::default() }).await.unwrap();
            }
            while scored() < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            server.models.unload("ranker").await.unwrap();
            drop(texts); // that was all
            match ranked.await.unwrap() {
                Ok(answer) => return assert_eq!(answer.into_inner().ranks.len(), 2),
                Err(status) => assert_eq!((status.code(), status.message()), (Code::NotFound, UNLOADED)),
            }
            server.models.load("ranker").await.unwrap();
        }
        panic!("what was scored is thrown away with the model");
    });
}

#[test]
fn the_repository_of_kserves_protocol_is_all_that_is_served() {
    let server = Several::start();
    let index = |body: Value| {
        let index = server.post("/v2/repository/index", body).json();
        let entry = |it: &Value| {
            let text = |field: &str| it[field].as_str().unwrap().to_owned();
            (format!("{}/{}", text("name"), text("version")), text("state"))
        };
        index.as_array().unwrap().iter().map(entry).collect::<Vec<_>>()
    };
    let states = |states: &[(&str, &str)]| -> Vec<(String, String)> {
        states.iter().map(|&(name, state)| (name.to_owned(), state.to_owned())).collect()
    };
    let all = states(&[("embedder/1", "READY"), ("embedder/2", "READY"), ("ranker/1", "READY")]);
    assert_eq!(index(json!({})), all);
    assert_eq!(server.running.post("/v2/repository/models/embedder/2/unload", "").status, 200);
    assert_eq!(server.running.post("/v2/repository/models/ranker/unload", "{}").status, 200);
    assert_eq!(index(json!({ "ready": true })), states(&[("embedder/1", "READY")]));
    assert_eq!(index(json!({}))[2], ("ranker/1".to_owned(), "UNAVAILABLE".to_owned()));
    let infer = |path: &str| {
        let text = json!({ "name": "text", "datatype": "BYTES", "shape": [1, 2], "data": ["a", "b"] });
        server.post(path, json!({ "inputs": [text] }))
    };
    let reply = infer("/v2/models/ranker/infer");
    assert_eq!((reply.status, &reply.json()), (404, &json!({ "error": UNLOADED })));
    let reply = server.running.get("/v2/models/ranker/ready");
    assert_eq!((reply.status, &reply.json()), (404, &json!({ "error": UNLOADED })));
    assert_eq!(server.running.post("/v2/repository/models/ranker/load", "{}").status, 200);
    assert_eq!(infer("/v2/models/ranker/infer").json()["outputs"][0]["name"], "logits");
    let reply = infer("/v2/models/org/embedder/versions/1/infer").json();
    assert_eq!((&reply["model_name"], &reply["model_version"]), (&json!("embedder"), &json!("1")));
    let reply = server.running.post("/v2/repository/models/other/load", "{}");
    assert_eq!(
        (reply.status, &reply.json()),
        (404, &json!({ "error": "no model `other` is served: expected `embedder`, `ranker`" }))
    );
    let stats = server.running.get("/v2/models/ranker/stats").json();
    assert_eq!(stats["model_stats"].as_array().unwrap().len(), 1);
}
