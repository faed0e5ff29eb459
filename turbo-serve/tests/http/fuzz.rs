//! Bytes that nobody would send on purpose: never a failure of ours, always JSON.

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode, header},
};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::Value;
use tower::ServiceExt;
use turbo_serve::engine::Health;

use crate::fake::{Fake, routes};

const PATHS: [&str; 3] = ["/embed", "/embed_all", "/v1/embeddings"];

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Sends bytes as JSON and checks the promise that holds for all bytes; returns the status.
fn send(runtime: &tokio::runtime::Runtime, router: &Router, path: &str, body: &[u8]) -> StatusCode {
    runtime.block_on(async {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        let request = request.body(Body::from(body.to_vec())).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        let answer = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer).expect("every answer is JSON");
        if status.is_success() {
            assert!(answer.is_array() || answer["object"] == "list", "{answer}");
        } else {
            assert!([400, 413, 422].contains(&status.as_u16()), "{status} {answer}");
            assert!(answer["error_type"].is_string() || answer["type"].is_string(), "{answer}");
        }
        status
    })
}

fn fake() -> Router {
    routes(Arc::new(Fake::new(Health::Ready)))
}

/// Any JSON, of the words that matter here; not the texts at which the fake engine fails on purpose.
fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..300u32).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[ab\u{0}é\"]{0,4}".prop_map(Value::from),
        select(vec!["left", "Right", "float", "base64"]).prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key = select(vec!["inputs", "input", "truncate", "x"]);
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
    ];
    let inputs = prop_oneof![
        "[a-c]{0,5}".prop_map(Value::from),
        vec(
            prop_oneof!["[a-c]{0,5}".prop_map(Value::from), vec(0..900u32, 1..4).prop_map(Value::from)],
            1..4
        )
        .prop_map(Value::from),
    ];
    (inputs, vec((select(names), json_value()), 0..3)).prop_map(|(inputs, fields)| {
        let mut body = serde_json::json!({ "inputs": inputs, "input": inputs });
        for (name, value) in fields {
            body[name] = value;
        }
        body
    })
}

#[test]
fn requests_of_the_right_form_are_answered() {
    // the strategy below must reach beyond errors, else it says nothing about answers
    let (runtime, router) = (runtime(), fake());
    for path in PATHS {
        assert_eq!(send(&runtime, &router, path, br#"{"inputs":["a",[1]],"input":"a"}"#), StatusCode::OK);
    }
}

#[test]
fn any_bytes() {
    let (runtime, router) = (runtime(), fake());
    proptest!(ProptestConfig::with_cases(400), |(path in select(&PATHS[..]), body in vec(any::<u8>(), 0..200))| {
        send(&runtime, &router, path, &body);
    });
}

#[test]
fn any_json() {
    let (runtime, router) = (runtime(), fake());
    proptest!(ProptestConfig::with_cases(400), |(path in select(&PATHS[..]), body in request_value())| {
        send(&runtime, &router, path, body.to_string().as_bytes());
    });
}

#[test]
fn json_with_a_few_bytes_changed() {
    let (runtime, router) = (runtime(), fake());
    let change =
        (any::<prop::sample::Index>(), select(b"{}[]\",:0123456789.-eEtfn\\ \x00\xff".to_vec()), 0..3u8);
    proptest!(ProptestConfig::with_cases(400), |(
        path in select(&PATHS[..]),
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
        send(&runtime, &router, path, &body);
    });
}
