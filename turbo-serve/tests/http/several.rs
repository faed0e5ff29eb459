//! Several models behind one port: which one answers, and how unknown names are refused.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::Router;
use futures_util::stream;
use serde_json::{Value, json};
use tonic::{Code, IntoRequest, Request, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use turbo_serve::{
    engine::{Health, ModelInfo, Truncation},
    grpc::{
        self,
        proto::{
            open_inference::{
                ModelConfigRequest, ModelMetadataRequest, ModelStatisticsRequest,
                grpc_inference_service_client::GrpcInferenceServiceClient,
            },
            tei::{
                EmbedAllRequest, InfoRequest, PredictRequest, RerankStreamRequest, embed_client::EmbedClient,
                info_client::InfoClient, predict_client::PredictClient, rerank_client::RerankClient,
            },
        },
    },
    http::{HttpOptions, Metrics, router},
    models::{
        Alias, Declared, Load, LoadWhen, Loaded, Models, Source, SourceError, Wanted,
        ensemble::{Does, Ensemble, QUERY, Step, TEXTS},
    },
    net::{InFlightLimits, bounded},
};

use crate::{
    fake::{Fake, HIDDEN, Reply, Running, Server, assert_tei, classifier, embedding, wait_until},
    statuses::assert_openai,
};

const UNLOADED: &str =
    "model `ranker/1` is not loaded: load it with `POST /v2/repository/models/ranker/1/load`";

/// Versions of a model, each of which reports its own name.
struct Versions {
    model: ModelInfo,
    versions: Vec<&'static str>,
}

impl Source for Versions {
    fn versions(&self) -> Result<Vec<String>, SourceError> {
        Ok(self.versions.iter().map(|&version| version.to_owned()).collect())
    }

    fn load(&self, Load { version, .. }: Load<'_>) -> Result<Loaded, SourceError> {
        let model_id = format!("{}/{version}", self.model.name);
        Ok(Arc::new(Fake::of(ModelInfo { model_id, ..self.model.clone() }, Health::Ready)).into())
    }
}

fn declared(name: &str, model: ModelInfo, versions: &[&'static str], aliases: &[&str]) -> Declared {
    let alias = |alias: &&str| Alias { name: (*alias).to_owned(), version: None };
    let model = ModelInfo { name: name.to_owned(), ..model };
    Declared {
        name: name.to_owned(),
        aliases: aliases.iter().map(alias).collect(),
        version: None,
        load: LoadWhen::Start,
        source: Arc::new(Versions { model, versions: versions.to_vec() }),
    }
}

/// A model whose requests a test inspects.
struct Known(Arc<Fake>);

impl Source for Known {
    fn versions(&self) -> Result<Vec<String>, SourceError> {
        Ok(vec!["1".to_owned()])
    }

    fn load(&self, _: Load<'_>) -> Result<Loaded, SourceError> {
        Ok(Arc::clone(&self.0).into())
    }
}

fn known(name: &str, engine: &Arc<Fake>) -> Declared {
    Declared { source: Arc::new(Known(Arc::clone(engine))), ..declared(name, embedding(), &[], &[]) }
}

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

/// An embedder of two versions, which is the default model, and a ranker, with the runtime that may change them; tests
/// may add other models.
struct Several {
    running: Running,
    models: Models,
    runtime: tokio::runtime::Runtime,
}

impl Several {
    fn start() -> Self {
        Self::with([])
    }

    fn with(others: impl IntoIterator<Item = Declared>) -> Self {
        Self::guarded(others, |router| router)
    }

    /// The same, with its routes behind `guard`.
    fn guarded(others: impl IntoIterator<Item = Declared>, guard: impl FnOnce(Router) -> Router) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut models = vec![
            declared("embedder", embedding(), &["1", "2"], &["org/embedder"]),
            declared("ranker", classifier(["score"]), &["1"], &[]),
        ];
        models.extend(others);
        let models = Models::new(models, None).unwrap();
        runtime.block_on(models.start()).unwrap();
        let metrics = Metrics::install().unwrap();
        let options = HttpOptions::default();
        let services = grpc::router(models.clone(), metrics.clone(), 1_000_000);
        let running = Running::start(guard(router(models.clone(), metrics, options).merge(services)));
        Self { running, models, runtime }
    }

    fn post(&self, path: &str, body: Value) -> Reply {
        self.running.post(path, body.to_string())
    }

    fn unload(&self, name: &str) {
        self.runtime.block_on(self.models.unload(name)).unwrap();
    }

    fn load(&self, name: &str) {
        self.runtime.block_on(self.models.load(name)).unwrap();
    }
}

fn rerank() -> Value {
    json!({ "query": "a", "texts": ["b", "c"] })
}

fn assert_openai_404(reply: &Reply, said: &str) {
    let body = reply.json();
    assert_eq!((reply.status, &body["code"]), (404, &json!("model_not_found")), "{body}");
    assert_eq!(
        (&body["error"]["code"], &body["error"]["message"]),
        (&body["code"], &body["message"]),
        "{body}"
    );
    assert!(body["message"].as_str().unwrap().contains(said), "{body}");
}

#[test]
fn a_path_leads_to_its_model_and_none_to_the_default() {
    let server = Several::start();
    for (path, model_id) in [
        ("/info", "embedder/2"),
        ("/models/embedder/info", "embedder/2"),
        ("/models/org%2Fembedder/info", "embedder/2"),
        ("/models/embedder/versions/1/info", "embedder/1"),
        ("/models/embedder/versions/latest/info", "embedder/2"),
        ("/models/embedder%2F1/info", "embedder/1"),
        ("/models/org/embedder/info", "embedder/2"),
        ("/models/org/embedder/1/info", "embedder/1"),
        ("/models/org/embedder/versions/1/info", "embedder/1"),
        ("/models/ranker/info", "ranker/1"),
    ] {
        let reply = server.running.get(path);
        assert_eq!((reply.status, &reply.json()["model_id"]), (200, &json!(model_id)), "{path}");
    }
    for path in ["/models/ranker/rerank", "/models/ranker", "/models/ranker/versions/1/invocations"] {
        let reply = server.post(path, rerank());
        assert_eq!((reply.status, reply.json().as_array().unwrap().len()), (200, 2), "{path}");
    }
    for path in ["/pipeline/feature-extraction", "/versions/1/embed", "/versions/1"] {
        let reply = server.post(&format!("/models/org/embedder{path}"), json!({ "inputs": "a" }));
        assert_eq!((reply.status, reply.json().as_array().unwrap().len()), (200, 1), "{path}");
    }
    let reply = server.post("/rerank", rerank());
    assert_tei("/rerank", &reply, 424, "Backend", "`/rerank` needs a sequence classifier with one label");
}

#[test]
fn a_body_names_its_model_unless_the_path_does() {
    let server = Several::start();
    let embeddings = |path: &str, model: Value| server.post(path, json!({ "input": "a", "model": model }));
    for (path, model) in [
        ("/v1/embeddings", json!(null)),
        ("/v1/embeddings", json!("embedder")),
        ("/v1/embeddings", json!("org/embedder/1")),
        ("/models/embedder/v1/embeddings", json!("text-embedding-3-small")),
    ] {
        let reply = embeddings(path, model.clone());
        assert_eq!((reply.status, &reply.json()["model"]), (200, &json!("embedder")), "{path} {model}");
    }
    let reply = embeddings("/v1/embeddings", json!("ranker"));
    assert_eq!((reply.status, &reply.json()["code"]), (424, &json!(424)), "{}", reply.text());
}

#[test]
fn names_that_there_are_not_are_404_in_the_protocols_words() {
    let server = Several::start();
    let said = "no model `other` is served: expected `embedder`, `ranker`";
    assert_openai_404(&server.post("/v1/embeddings", json!({ "input": "a", "model": "other" })), said);
    assert_openai_404(&server.post("/models/other/v1/embeddings", json!({ "input": "a" })), said);
    assert_openai_404(&server.running.get("/v1/models/other"), said);
    // The body is too large as well, and is read to its end, so that the answer arrives.
    let large = json!({ "inputs": "a".repeat(5_000_000) });
    for path in ["/models/other/embed", "/models/other", "/models/other/predict"] {
        assert_tei(path, &server.post(path, large.clone()), 404, "Validation", said);
    }
    assert_tei("info", &server.running.get("/models/other/info"), 404, "Validation", said);
    assert_tei("health", &server.running.get("/models/other/health"), 404, "Validation", said);
    let said = "model `embedder` has no version `3`: expected `1`, `2`";
    let path = "/models/embedder/versions/3/embed";
    assert_tei(path, &server.post(path, json!({ "inputs": "a" })), 404, "Validation", said);
    let reply = server.running.get("/models/embedder/nowhere");
    assert_tei("route", &reply, 404, "Validation", "no route `/models/embedder/nowhere`");
    let reply = server.running.get("/models/embedder/embed");
    assert_tei("method", &reply, 405, "Validation", "`/models/embedder/embed` does not take GET");
    let reply = server.post("/models/org/other/embed", json!({ "inputs": "a" }));
    assert_tei("name", &reply, 404, "Validation", "no model `org/other` is served");
    let reply = server.running.get("/models/org/embedder/nowhere");
    assert_tei("route", &reply, 404, "Validation", "no route `/models/org/embedder/nowhere`");
    let reply = server.running.get("/models/org/embedder/embed");
    assert_tei("method", &reply, 405, "Validation", "`/models/org/embedder/embed` does not take GET");
}

#[test]
fn a_name_that_is_no_text_is_404_in_the_protocols_words() {
    let server = Several::start();
    for path in ["/models/%FF/embed", "/models/%FF", "/models/ranker/versions/%FF/predict"] {
        let reply = server.post(path, json!({ "inputs": "a" }));
        assert_tei(path, &reply, 404, "Validation", "the path names no model: Invalid UTF-8");
    }
    for path in ["/models/%FF/info", "/models/%FF/health"] {
        assert_tei(path, &server.running.get(path), 404, "Validation", "the path names no model");
    }
    let replies = [
        server.post("/models/%FF/v1/embeddings", json!({ "input": "a" })),
        server.running.get("/v1/models/%FF"),
    ];
    for reply in replies {
        assert_openai("OpenAI", &reply, 404, "Validation", "the path names no model: Invalid UTF-8");
    }
}

#[test]
fn the_list_of_models_has_every_name_that_works() {
    let server = Several::start();
    let listed = |server: &Several| {
        let list = server.running.get("/v1/models").json();
        assert_eq!(list["object"], "list");
        let names: Vec<(String, String)> = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|model| {
                assert_eq!((&model["object"], &model["owned_by"]), (&json!("model"), &json!("turbo")));
                assert!(model["created"].as_u64().unwrap() > 1_700_000_000, "{model}");
                let id = model["id"].as_str().unwrap();
                let alone = server.running.get(&format!("/v1/models/{id}"));
                assert_eq!((alone.status, alone.json()), (200, model.clone()), "{id}");
                (id.to_owned(), model["root"].as_str().unwrap().to_owned())
            })
            .collect();
        names
    };
    let pairs = |names: &[(&str, &str)]| -> Vec<(String, String)> {
        names.iter().map(|&(name, root)| (name.to_owned(), root.to_owned())).collect()
    };
    let all = pairs(&[
        ("embedder", "embedder/2"),
        ("org/embedder", "embedder/2"),
        ("embedder/1", "embedder/1"),
        ("embedder/2", "embedder/2"),
        ("ranker", "ranker/1"),
        ("ranker/1", "ranker/1"),
    ]);
    assert_eq!(listed(&server), all);
    server.unload("embedder/2");
    server.unload("ranker");
    let left = [("embedder", "embedder/1"), ("org/embedder", "embedder/1"), ("embedder/1", "embedder/1")];
    assert_eq!(listed(&server), pairs(&left));
    assert_openai_404(&server.running.get("/v1/models/ranker"), UNLOADED);
    server.load("ranker");
    server.load("embedder");
    assert_eq!(listed(&server), all);
}

#[test]
fn one_model_answers_to_any_name() {
    let server = Server::start();
    let body = json!({ "input": "a", "model": "org/text-embedding" }).to_string();
    let reply = server.post("/v1/embeddings", body);
    assert_eq!((reply.status, &reply.json()["model"]), (200, &json!("fake")));
    assert_eq!(server.post("/models/whatever/embed", r#"{"inputs":"a"}"#).status, 200);
    assert_eq!(server.get("/v1/models/org/whatever").json()["root"], "fake/1");
    let ids: Vec<Value> = server.get("/v1/models").json()["data"].as_array().unwrap().clone();
    assert_eq!(ids.iter().map(|model| model["id"].as_str().unwrap()).collect::<Vec<_>>(), ["fake", "fake/1"]);
}

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
        let url = format!("http://{}", server.address);
        let mut client = HealthClient::new(Channel::from_shared(url).unwrap().connect().await.unwrap());
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
            let url = format!("http://{}", server.running.address);
            let mut client = HealthClient::new(Channel::from_shared(url).unwrap().connect().await.unwrap());
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
        let url = format!("http://{}", server.running.address);
        let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
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

/// The ensemble `search`, of at most this many documents: one model finds the nearest, and the other ranks those.
fn search([embedder, ranker]: [&str; 2], max_client_batch_size: usize) -> Declared {
    let (query, texts) = (|| QUERY.to_owned(), || TEXTS.to_owned());
    let near = Does::Retrieve {
        model: embedder.to_owned(),
        query: query(),
        texts: texts(),
        keep: 1,
        query_prompt: None,
        texts_prompt: None,
    };
    let ranked = Does::Rerank { model: ranker.to_owned(), query: query(), texts: "near".to_owned() };
    let steps = [("near", near), ("ranked", ranked)].map(|(name, does)| Step { name: name.to_owned(), does });
    let source = Ensemble::new("search", &steps, "ranked", max_client_batch_size).unwrap();
    Declared { source: Arc::new(source), ..declared("search", classifier(["score"]), &[], &[]) }
}

#[test]
fn what_an_ensemble_chooses_from_is_one_request() {
    let server = Several::with([search(["embedder", "ranker"], 3)]);
    let rank = |count| {
        let documents: Vec<String> = (0..count).map(|number: usize| number.to_string()).collect();
        server.post("/models/search/v1/rerank", json!({ "query": "a", "documents": documents }))
    };
    let reply = rank(3).json();
    let scores =
        reply["results"].as_array().unwrap().iter().map(|it| it["relevance_score"].as_f64().unwrap());
    assert_eq!(scores.filter(|&score| score > 0.0).count(), 1, "{reply}");
    let reply = rank(4);
    let message = reply.json()["message"].as_str().unwrap().to_owned();
    assert_eq!(reply.status, 422, "{message}");
    assert_eq!(
        message,
        "there are 4 `documents`, expected at most 3 (`max_client_batch_size`): the ensemble `search` retrieves from \
         all of them at once"
    );
    server.runtime.block_on(async {
        let url = format!("http://{}", server.running.address);
        let mut client = RerankClient::new(Channel::from_shared(url).unwrap().connect().await.unwrap());
        let texts = stream::iter(["b", "c"].map(|text| RerankStreamRequest {
            query: "a".to_owned(),
            text: text.to_owned(),
            ..RerankStreamRequest::default()
        }));
        let status = client.rerank_stream(call("search", texts)).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("use `Rerank`"), "{status}");
    });
}

#[test]
fn documents_of_an_ensemble_are_not_cut() {
    let server = Several::with([search(["embedder", "ranker"], 3)]);
    for path in ["/models/search/v1/rerank", "/models/search/v2/rerank", "/models/search/rerank"] {
        // The second is no longer than the limit.
        for document in ["abcdef", "a"] {
            let ask = |limit: Value| {
                let body = json!({ "query": "a", "documents": [document], "max_tokens_per_doc": limit });
                server.post(path, body)
            };
            let (reply, whole) = (ask(json!(3)), ask(json!(null)));
            let body = reply.json();
            assert_eq!(
                (reply.status, &body["type"]),
                (422, &json!("Validation")),
                "{path} {document}: {body}"
            );
            assert_eq!(
                body["message"],
                "`max_tokens_per_doc` is not possible here: each model of the ensemble `search` counts its own tokens; leave \
                 it out, and send texts that are short enough"
            );
            assert_eq!(whole.status, 200, "{path} {document}: {}", whole.text());
        }
    }
}

#[test]
fn an_ensemble_scores_pairs_in_their_order_and_cuts_none() {
    let server = Several::with([search(["embedder", "ranker"], 3)]);
    let (queries, documents) = (json!("a"), json!(["b", "c", "d"]));
    let ask = |options: Value| {
        let mut body = options;
        (body["queries"], body["documents"]) = (queries.clone(), documents.clone());
        server.post("/models/search/score", body)
    };
    let scores = ask(json!({})).json();
    let ranked = server.post("/models/search/v1/rerank", json!({ "query": queries, "documents": documents }));
    let ranked = ranked.json();
    let results = ranked["results"].as_array().unwrap();
    assert_eq!((results.len(), scores["data"].as_array().unwrap().len()), (3, 3));
    for result in results {
        let index = result["index"].as_u64().unwrap() as usize;
        assert_eq!(scores["data"][index]["score"], result["relevance_score"], "{scores}");
    }
    for field in ["truncate_prompt_tokens", "max_tokens_per_query", "max_tokens_per_doc"] {
        let reply = ask(json!({ field: 3 }));
        let said =
            format!("`{field}` is not possible here: each model of the ensemble `search` counts its own");
        assert_openai(field, &reply, 422, "Validation", &said);
    }
    assert_eq!(ask(json!({ "truncate_prompt_tokens": -1 })).status, 200);
}

#[test]
fn rows_are_those_of_the_model_that_the_body_names() {
    let server = Several::with([search(["embedder", "ranker"], 3)]);
    for path in ["/v2/embed", "/pooling"] {
        let ask = |model: &str| server.post(path, json!({ "model": model, "texts": ["a"], "input": ["a"] }));
        assert_eq!(ask("embedder").status, 200, "{path}");
        let unknown = ask("none");
        assert!(
            unknown.status == 404 && unknown.json()["error"]["message"].is_string(),
            "{}",
            unknown.text()
        );
    }
    let width = |model: &str| {
        let answer = server.post("/pooling", json!({ "model": model, "input": ["a"] })).json();
        answer["data"][0]["data"].as_array().map(Vec::len)
    };
    assert_eq!((width("embedder"), width("ranker")), (Some(HIDDEN), Some(1)));
    let reply = server.post("/models/search/v2/embed", json!({ "texts": ["a"] }));
    assert_openai("vectors", &reply, 424, "Backend", "`/v2/embed` needs an embedding model");
    let reply = server.post("/models/search/pooling", json!({ "input": ["a"] }));
    assert_openai("scores", &reply, 422, "Validation", "reads a query and a text");
}

#[test]
fn each_model_of_an_ensemble_cuts_by_its_own_default() {
    let [cutting, mut strict] =
        [embedding(), classifier(["score"])].map(|model| Fake::of(model, Health::Ready));
    strict.info.auto_truncate = false;
    let engines = [cutting, strict].map(Arc::new);
    let server = Several::with([
        known("cutting", &engines[0]),
        known("strict", &engines[1]),
        search(["cutting", "strict"], 3),
    ]);
    let truncations =
        || engines.each_ref().map(|engine| engine.seen.lock().unwrap().take().unwrap().truncation);
    for (options, expected) in [
        (json!({}), None),
        (json!({ "truncate": true }), Some(Truncation::Right)),
        (json!({ "truncate": false }), Some(Truncation::Off)),
    ] {
        let mut body = rerank();
        body["truncate"] = options["truncate"].clone();
        let reply = server.post("/models/search/rerank", body);
        assert_eq!((reply.status, truncations()), (200, [expected; 2]), "{options}: {}", reply.text());
        let text = json!({ "name": "text", "datatype": "BYTES", "shape": [1, 2], "data": ["a", "b"] });
        let reply =
            server.post("/v2/models/search/infer", json!({ "inputs": [text], "parameters": options }));
        assert_eq!((reply.status, truncations()), (200, [expected; 2]), "{options}: {}", reply.text());
    }
}

#[test]
fn a_server_that_stops_answers_all_parts_of_a_request_to_an_ensemble() {
    let engine = Arc::new(Fake::of(classifier(["score"]), Health::Ready));
    let does = Does::Rerank { model: "known".to_owned(), query: QUERY.to_owned(), texts: TEXTS.to_owned() };
    let steps = [Step { name: "ranked".to_owned(), does }];
    let source = Arc::new(Ensemble::new("ranking", &steps, "ranked", 2).unwrap());
    let ensemble = Declared { source, ..declared("ranking", classifier(["score"]), &[], &[]) };
    let server = Several::with([known("known", &engine), ensemble]);
    let reply = std::thread::scope(|scope| {
        let body = json!({ "query": "slow", "documents": ["a", "b", "c", "d", "e"] });
        let asked = scope.spawn(|| server.post("/models/ranking/v1/rerank", body));
        // Of three parts two are asked at a time.
        wait_until("the first part", || engine.seen.lock().unwrap().is_some());
        server.runtime.block_on(server.models.stop());
        asked.join().unwrap()
    });
    let results = reply.json()["results"].as_array().map(Vec::len);
    assert_eq!((reply.status, results), (200, Some(5)), "{}", reply.text());
}

#[test]
fn a_request_made_from_what_is_told_of_a_model_is_answered() {
    let labelled = Does::Classify { model: "labels".to_owned(), texts: TEXTS.to_owned() };
    let labelled = [Step { name: "labelled".to_owned(), does: labelled }];
    let topics = Declared {
        source: Arc::new(Ensemble::new("topics", &labelled, "labelled", 3).unwrap()),
        ..declared("topics", classifier(["x", "y"]), &[], &[])
    };
    let labels = declared("labels", classifier(["x", "y"]), &["1"], &[]);
    let server = Several::with([labels, search(["embedder", "ranker"], 3), topics]);
    let sizes = |told: &Value| -> Vec<i64> {
        told.as_array().unwrap().iter().map(|size| size.as_i64().unwrap()).collect()
    };
    for model in ["embedder", "ranker", "labels", "search", "topics"] {
        let path = format!("/v2/models/{model}");
        let tensor = server.running.get(&path).json()["inputs"][0].clone();
        let config = server.running.get(&format!("{path}/config")).json();
        let dims = sizes(&config["input"][0]["dims"]);
        for shape in [sizes(&tensor["shape"]), [vec![-1], dims].concat()] {
            let shape: Vec<i64> = shape.into_iter().map(|size| if size < 0 { 2 } else { size }).collect();
            let mut tensor = tensor.clone();
            tensor["data"] = json!(vec!["a"; shape.iter().product::<i64>() as usize]);
            tensor["shape"] = json!(shape);
            let reply = server.post(&format!("{path}/infer"), json!({ "inputs": [tensor] }));
            assert_eq!(reply.status, 200, "{model} {shape:?}: {}", reply.text());
        }
    }
    let told = |path: &str| server.running.get(&format!("/v2/models/search{path}")).json();
    let input = json!([{ "name": "text", "datatype": "BYTES", "shape": [-1, 2] }]);
    assert_eq!(told("")["inputs"], input);
    let input = json!([{ "name": "text", "data_type": "TYPE_STRING", "dims": [2] }]);
    assert_eq!(told("/config")["input"], input);
}

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
        let url = format!("http://{}", server.running.address);
        let mut client = RerankClient::new(Channel::from_shared(url).unwrap().connect().await.unwrap());
        let texts = stream::iter(["b", "c"].map(|text| RerankStreamRequest {
            query: "a".to_owned(),
            text: text.to_owned(),
            ..RerankStreamRequest::default()
        }));
        client.rerank_stream(call("streamed", texts)).await.unwrap();
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
        let url = format!("http://{}", server.running.address);
        let mut client = EmbedClient::new(Channel::from_shared(url).unwrap().connect().await.unwrap());
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

/// A call of this model.
fn call<R>(model: &str, message: impl IntoRequest<R>) -> Request<R> {
    let mut request = message.into_request();
    request.metadata_mut().insert("x-model", model.parse().unwrap());
    request
}

#[test]
fn a_call_names_its_model_in_its_metadata() {
    let server = Several::start();
    server.runtime.block_on(async {
        let url = format!("http://{}", server.running.address);
        let mut client = InfoClient::new(Channel::from_shared(url).unwrap().connect().await.unwrap());
        let default = client.info(InfoRequest {}).await.unwrap().into_inner();
        assert_eq!(default.model_id, "embedder/2");
        for (name, model_id) in
            [("ranker", "ranker/1"), ("embedder/1", "embedder/1"), ("org/embedder", "embedder/2")]
        {
            let info = client.info(call(name, InfoRequest {})).await.unwrap().into_inner();
            assert_eq!(info.model_id, model_id, "{name}");
        }
        let status = client.info(call("other", InfoRequest {})).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
        assert!(status.message().starts_with("no model `other` is served: expected `embedder`"), "{status}");
    });
}

#[test]
fn a_stream_does_not_keep_its_model_from_being_unloaded() {
    let server = Several::start();
    server.runtime.block_on(async {
        let url = format!("http://{}", server.running.address);
        let mut client = PredictClient::new(Channel::from_shared(url).unwrap().connect().await.unwrap());
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
        let url = format!("http://{}", server.running.address);
        let client = RerankClient::new(Channel::from_shared(url).unwrap().connect().await.unwrap());
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
            let url = format!("http://{}", server.running.address);
            let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
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
