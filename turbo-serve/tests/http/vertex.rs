//! `POST /vertex`: each instance gets the answer of its route.

use std::sync::{Arc, Mutex, atomic::Ordering::SeqCst};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::Request,
};
use futures_util::FutureExt;
use serde_json::{Value, json};
use tower::ServiceExt;
use turbo_serve::{
    engine::{
        DecodeRequest, EngineConfig, EngineInfo, Health, Infer, InferRequest, InferResponse, ModelInfo,
        OpenOptions, Pending, TokenizeRequest, Tokenized,
    },
    http::{HttpOptions, Metrics, RootTask, VertexPaths, router},
    models::Models,
};

use crate::{
    fake::{Fake, Running, Server, assert_tei, classifier, embedding, sparse, wait_until},
    models,
};

#[test]
fn every_instance_is_answered_as_by_its_route() {
    let rank = json!({ "query": "q", "texts": ["a", "b"] });
    for (model, asked) in [
        (embedding(), vec![("/embed", json!({"inputs": ["a", [1, 2]]})), ("/embed", json!({"inputs": "b"}))]),
        (sparse(), vec![("/embed_sparse", json!({"inputs": "a"}))]),
        (
            classifier(["x", "y"]),
            vec![("/predict", json!({"inputs": [["a"], ["b", "c"]], "raw_scores": true}))],
        ),
        (classifier(["x"]), vec![("/rerank", rank), ("/predict", json!({"inputs": ["q", "a"]}))]),
        (embedding(), vec![]),
    ] {
        let server = Server::with_model(model);
        let (paths, instances): (Vec<&str>, Vec<Value>) = asked.into_iter().unzip();
        let answers = paths.iter().zip(&instances);
        let answers: Vec<Value> =
            answers.map(|(path, body)| server.post(path, body.to_string()).json()).collect();
        let reply = server.post("/vertex", json!({ "instances": instances }).to_string());
        assert_eq!((reply.status, reply.json()), (200, json!({ "predictions": answers })), "{paths:?}");
        assert_eq!(reply.header("content-type"), "application/json");
    }
}

#[test]
fn the_first_refusal_says_which_instance_it_is_about() {
    let server = Server::start();
    for (instance, status, error_type, said) in [
        (json!({ "inputs": [] }), 400, "Empty", "instances[1]: `inputs` cannot be empty"),
        (json!({ "inputs": 7 }), 422, "Validation", "instances[1]: invalid type: integer `7`"),
        (json!([1]), 422, "Validation", "instances[1]: expected a JSON object"),
        (json!({ "inputs": "overloaded" }), 429, "Overloaded", "instances[1]: model is overloaded"),
        (json!({ "inputs": "panic" }), 424, "Backend", "instances[1]: inference failed"),
    ] {
        let body = json!({ "instances": [{ "inputs": "a" }, instance] });
        let reply = server.post("/vertex", body.to_string());
        assert_tei(&body.to_string(), &reply, status, error_type, said);
        if status == 429 {
            assert_eq!(reply.header("retry-after"), "2");
        }
    }
    let many = |instances| json!({ "instances": vec![json!({ "inputs": "a" }); instances] }).to_string();
    let reply = server.post("/vertex", many(64));
    assert_eq!((reply.status, reply.json()["predictions"].as_array().map(Vec::len)), (200, Some(64)));
    let reply = server.post("/vertex", many(513));
    assert_tei("many", &reply, 422, "Validation", "batch size 513 > maximum allowed batch size 512");
    let metrics = server.get("/metrics");
    assert!(metrics.text().contains(r#"te_request_failure{err="overloaded"}"#), "{}", metrics.text());
}

#[test]
fn a_refusal_withdraws_the_other_instances() {
    let server = Server::start();
    let body = json!({ "instances": [{ "inputs": "wait" }, { "inputs": [] }] }).to_string();
    wait_until("an instance that waits", || {
        assert_eq!(server.post("/vertex", &body).status, 400);
        server.engine.waiting.load(SeqCst) > 0
    });
    wait_until("its end", || server.engine.waiting.load(SeqCst) == server.engine.withdrawn.load(SeqCst));
}

/// Stops its server on its first request.
struct StopsAtOnce {
    engine: Arc<dyn Infer>,
    models: Mutex<Option<Models>>,
}

impl StopsAtOnce {
    fn asked(&self) -> &dyn Infer {
        let first = self.models.lock().unwrap().take();
        if let Some(models) = first {
            let mut stopping = Box::pin(async move { models.stop().await });
            let ended = (&mut stopping).now_or_never();
            assert!(ended.is_none(), "there are instances that were not answered");
            tokio::spawn(stopping);
        }
        &*self.engine
    }
}

impl Infer for StopsAtOnce {
    fn info(&self) -> &EngineInfo {
        self.engine.info()
    }

    fn infer(&self, request: InferRequest) -> Pending<'_, InferResponse> {
        self.asked().infer(request)
    }

    fn tokenize(&self, request: TokenizeRequest) -> Pending<'_, Vec<Tokenized>> {
        self.asked().tokenize(request)
    }

    fn decode(&self, request: DecodeRequest) -> Pending<'_, Vec<String>> {
        self.asked().decode(request)
    }

    fn health(&self) -> Health {
        self.engine.health()
    }
}

#[test]
fn a_server_stops_when_the_last_instance_is_answered() {
    // Each instance makes several engine requests, and so begins a request.
    let entities =
        models::engine("pipeline-entities-wordpiece", OpenOptions::default(), EngineConfig::default());
    let engines: [Arc<dyn Infer>; 2] = [Arc::new(Fake::new(Health::Ready)), Arc::new(entities)];
    for engine in engines {
        let engine = Arc::new(StopsAtOnce { engine, models: Mutex::default() });
        let models = Models::single(Arc::clone(&engine));
        *engine.models.lock().unwrap() = Some(models.clone());
        let routes = router(models.clone(), Metrics::install().unwrap(), HttpOptions::default());
        let body = json!({ "instances": vec![json!({ "inputs": "a" }); 4] }).to_string();
        let request = Request::post("/vertex").header("content-type", "application/json");
        let request = request.body(Body::from(body)).unwrap();
        // On one thread the first instance runs before the others have begun.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let response = routes.oneshot(request).await.unwrap();
            let status = response.status().as_u16();
            let answer = to_bytes(response.into_body(), usize::MAX).await.unwrap();
            assert_eq!(status, 200, "{answer:?}");
            models.stop().await;
        });
    }
}

/// Routes over that model with these options.
fn routes(model: ModelInfo, options: HttpOptions) -> Router {
    router(Arc::new(Fake::of(model, Health::Ready)), Metrics::install().unwrap(), options)
}

#[test]
fn the_platforms_paths_go_before_the_usual_ones() {
    let paths = VertexPaths { predict: Some("/embed".into()), health: Some("/up/now".into()) };
    let server = Running::start(paths.before(routes(embedding(), HttpOptions::default())));
    let instances = json!({ "instances": [{ "inputs": "a" }] }).to_string();
    for path in ["/embed", "/vertex"] {
        assert!(server.post(path, &instances).json()["predictions"].is_array(), "{path}");
    }
    for path in ["/up/now", "/health"] {
        assert_eq!((server.get(path).status, server.get(path).text()), (200, ""), "{path}");
    }
    assert_tei("method", &server.get("/embed"), 405, "Validation", "`/embed` does not take GET");
    assert_tei("path", &server.post("/up/now", "{}"), 404, "Validation", "no route `/up/now`");
    assert_eq!(server.post("/embed_all", r#"{"inputs":"a"}"#).status, 200);
}

#[test]
fn the_root_compares_where_it_is_asked_to() {
    let options = HttpOptions { root_task: RootTask::Similarity, ..HttpOptions::default() };
    let start = |model| Running::start(routes(model, options));
    let sentences = json!({ "inputs": { "source_sentence": "a", "sentences": ["a", "b"] } }).to_string();
    for server in [embedding(), sparse()].map(start) {
        for path in ["/", "/invocations"] {
            assert_eq!(server.post(path, &sentences).json().as_array().map(Vec::len), Some(2), "{path}");
        }
    }
    assert_eq!(start(classifier(["x", "y"])).post("/", r#"{"inputs":"a"}"#).status, 200);
}
