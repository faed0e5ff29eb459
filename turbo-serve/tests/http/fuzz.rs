//! Random bytes: never an error of the server's own, and always JSON.

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode, header},
};
use proptest::{collection::vec, prelude::*, sample::select, strategy::ValueTree, test_runner::TestRunner};
use serde_json::Value;
use tower::ServiceExt;
use turbo_serve::engine::Health;

use crate::{
    fake::{Fake, classifier, embedding, routes, sparse},
    models,
};

/// Every route that reads a body, with the model that answers it.
const ROUTES: [(Model, &str); 26] = [
    (Model::Vectors, "/embed"),
    (Model::Vectors, "/embed_all"),
    (Model::Vectors, "/v1/embeddings"),
    (Model::Vectors, "/similarity"),
    (Model::Vectors, "/v1/score"),
    (Model::Ranks, "/score"),
    (Model::Scores, "/classify"),
    (Model::Scores, "/pooling"),
    (Model::Vectors, "/pooling"),
    (Model::Vectors, "/v2/embed"),
    (Model::Vectors, "/tokenize"),
    (Model::Vectors, "/decode"),
    (Model::Vectors, "/invocations"),
    (Model::Weights, "/embed_sparse"),
    (Model::Scores, "/predict"),
    (Model::Scores, "/pipeline/text-classification"),
    (Model::Ranks, "/rerank"),
    (Model::Ranks, "/"),
    (Model::Ranks, "/v1/rerank"),
    (Model::Ranks, "/vertex"),
    (Model::Vectors, "/vertex"),
    (Model::Vectors, "/pipeline/sentence-similarity"),
    (Model::Vectors, "/pipeline/feature-extraction"),
    (Model::Entities, "/pipeline/token-classification"),
    (Model::Answers, "/pipeline/question-answering"),
    (Model::Gaps, "/pipeline/fill-mask"),
];

#[derive(Clone, Copy, Debug)]
enum Model {
    Vectors,
    Weights,
    Scores,
    Ranks,
    Entities,
    Answers,
    Gaps,
}

/// A server of each model.
struct Servers {
    runtime: tokio::runtime::Runtime,
    routers: Vec<Router>,
}

impl Servers {
    fn new() -> Self {
        let models = [embedding(), sparse(), classifier(["x", "y"]), classifier(["x"])];
        let fakes = models.map(|model| routes(Arc::new(Fake::of(model, Health::Ready))));
        // Tasks of several steps have real models: there the parameters decide what the next step is asked.
        let folders =
            ["pipeline-entities-roberta", "pipeline-answers-roberta", "pipeline-fill-mask-wordpiece"];
        let routers = fakes.into_iter().chain(folders.map(models::routes)).collect();
        Self { runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(), routers }
    }

    /// Sends bytes as JSON and checks the promise that holds for all bytes; returns the status.
    fn send(&self, (model, path): (Model, &str), body: &[u8]) -> StatusCode {
        let router = self.routers[model as usize].clone();
        self.runtime.block_on(async {
            let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
            let request = request.body(Body::from(body.to_vec())).unwrap();
            let response = router.oneshot(request).await.unwrap();
            let status = response.status();
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
            let answer = to_bytes(response.into_body(), usize::MAX).await.unwrap();
            let answer: Value = serde_json::from_slice(&answer).expect("every answer is JSON");
            if status.is_success() {
                assert!(
                    answer.is_array()
                        || answer["object"] == "list"
                        || answer["embeddings"].is_object()
                        || answer["answer"].is_string()
                        || answer["predictions"].is_array(),
                    "{answer}"
                );
            } else {
                assert!([400, 413, 422].contains(&status.as_u16()), "{path}: {status} {answer}");
                assert!(answer["error_type"].is_string() || answer["type"].is_string(), "{answer}");
            }
            status
        })
    }
}

/// Any JSON, made of the words that matter here, without the texts at which the fake engine fails on purpose.
fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..300u32).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[ab\u{0}é\"]{0,4}".prop_map(Value::from),
        select(vec!["left", "Right", "float", "base64", "binary", "END", "search_query", "token_embed"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key = select(vec![
            "inputs",
            "input",
            "truncate",
            "source_sentence",
            "sentences",
            "question",
            "context",
            "top_k",
            "max_seq_len",
            "doc_stride",
            "max_answer_len",
            "targets",
            "ignore_labels",
            "x",
        ]);
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((key, inner), 0..4)
                .prop_map(|fields| fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

/// A request of the right form, with any values in it.
fn request_value() -> impl Strategy<Value = Value> {
    let names = vec![
        "inputs",
        "input",
        "truncate",
        "truncation_direction",
        "prompt_name",
        "normalize",
        "dimensions",
        "model",
        "user",
        "encoding_format",
        "ids",
        "skip_special_tokens",
        "add_special_tokens",
        "query",
        "texts",
        "documents",
        "top_n",
        "max_tokens_per_doc",
        "queries",
        "text_1",
        "text_2",
        "truncate_prompt_tokens",
        "task",
        "input_type",
        "embedding_types",
        "max_tokens",
        "output_dimension",
        "instances",
        "raw_scores",
        "return_text",
        "parameters",
    ];
    let text = || "[a-c]{0,5}".prop_map(Value::from);
    let texts = || vec("[a-c]{0,5}", 1..3).prop_map(Value::from);
    let ids = || vec(0..900u32, 1..4).prop_map(Value::from);
    let inputs = prop_oneof![
        text(),
        vec(prop_oneof![text(), ids()], 1..4).prop_map(Value::from),
        vec(texts(), 1..4).prop_map(Value::from),
        (text(), texts())
            .prop_map(|(one, all)| serde_json::json!({"source_sentence": one, "sentences": all})),
        (text(), text()).prop_map(|(one, two)| serde_json::json!({"question": one, "context": two})),
        "[a-c]{0,5}".prop_map(|text| Value::from(format!("a [MASK] {text}"))),
    ];
    let known = (inputs, ids(), text(), texts());
    (known, vec((select(names), json_value()), 0..3)).prop_map(|((inputs, ids, query, texts), fields)| {
        let mut body = serde_json::json!({
            "inputs": inputs, "input": inputs, "ids": ids, "query": query, "texts": texts,
            "documents": texts, "queries": query,
        });
        body["instances"] = serde_json::json!([body]);
        for (name, value) in fields {
            body[name] = value;
        }
        body
    })
}

/// The body without a field that its route would always refuse: `/v2/embed` takes no `inputs` beside texts.
fn fitting((_, path): (Model, &str), body: &Value) -> Value {
    let mut body = body.clone();
    if let (Some(fields), "/v2/embed") = (body.as_object_mut(), path) {
        fields.remove("inputs");
    }
    body
}

#[test]
fn requests_of_the_right_form_are_answered() {
    // the strategies below must reach beyond errors, else they say nothing about answers
    let (servers, mut runner) = (Servers::new(), TestRunner::deterministic());
    let bodies: Vec<Value> =
        (0..200).map(|_| request_value().new_tree(&mut runner).unwrap().current()).collect();
    for route in ROUTES {
        let answered = bodies
            .iter()
            .filter(|&body| {
                servers.send(route, fitting(route, body).to_string().as_bytes()) == StatusCode::OK
            })
            .count();
        assert!(answered > 10, "{route:?} answered {answered} of 200");
    }
}

#[test]
fn any_bytes() {
    let servers = Servers::new();
    proptest!(ProptestConfig::with_cases(400), |(route in select(&ROUTES[..]), body in vec(any::<u8>(), 0..200))| {
        servers.send(route, &body);
    });
}

#[test]
fn any_json() {
    let servers = Servers::new();
    proptest!(ProptestConfig::with_cases(1000), |(route in select(&ROUTES[..]), body in request_value())| {
        servers.send(route, fitting(route, &body).to_string().as_bytes());
    });
}

#[test]
fn json_with_a_few_bytes_changed() {
    let servers = Servers::new();
    let change =
        (any::<prop::sample::Index>(), select(b"{}[]\",:0123456789.-eEtfn\\ \x00\xff".to_vec()), 0..3u8);
    proptest!(ProptestConfig::with_cases(1000), |(
        route in select(&ROUTES[..]),
        body in request_value(),
        changes in vec(change, 1..4),
    )| {
        let mut body = body.to_string().into_bytes();
        for (index, byte, how) in changes {
            let at = index.index(body.len());
            match how {
                0 => body[at] = byte,
                1 => body.insert(at, byte),
                _ if body.len() > 1 => drop(body.remove(at)),
                _ => {}
            }
        }
        servers.send(route, &body);
    });
}
