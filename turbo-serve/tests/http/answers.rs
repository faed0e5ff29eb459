//! What comes back when all is well: shapes, values, encodings, headers, metrics; each client gets its own rows.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use turbo_serve::engine::{InferRequest, Input, OutputKind, Truncation};

use crate::fake::{HIDDEN, Server, counter, row, tokens};

fn text(text: &str) -> Input {
    Input::Text(text.to_owned())
}

fn floats(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn embed_answers_one_row_per_input() {
    let server = Server::start();
    for (inputs, expected) in [
        (json!("hello"), vec![text("hello")]),
        (json!(""), vec![text("")]),
        (json!([101, 7, 102]), vec![Input::Ids(vec![101, 7, 102])]),
        (json!(["a"]), vec![text("a")]),
        (
            json!([[1, 2], "b", [3], "ü\n\"😀"]),
            vec![Input::Ids(vec![1, 2]), text("b"), Input::Ids(vec![3]), text("ü\n\"😀")],
        ),
    ] {
        let reply = server.post("/embed", json!({ "inputs": inputs }).to_string());
        assert_eq!(reply.status, 200, "{inputs}: {}", reply.text());
        let rows: Vec<Vec<f32>> = serde_json::from_slice(&reply.body).unwrap();
        let same: Vec<Vec<f32>> = expected.iter().map(|input| row(input, 0).to_vec()).collect();
        assert_eq!(rows, same, "{inputs}");
    }
}

#[test]
fn embed_all_answers_one_row_per_token() {
    let server = Server::start();
    let reply = server.post("/embed_all", r#"{"inputs":["ab",[5,6,7,8]],"normalize":"ignored here"}"#);
    let answer: Vec<Vec<Vec<f32>>> = serde_json::from_slice(&reply.body).unwrap();
    let same: Vec<Vec<Vec<f32>>> = [text("ab"), Input::Ids(vec![5, 6, 7, 8])]
        .iter()
        .map(|input| (0..tokens(input)).map(|token| row(input, token).to_vec()).collect())
        .collect();
    assert_eq!(answer, same);
    let one = server.post("/embed_all", r#"{"inputs":"a"}"#).json();
    assert_eq!((one.as_array().unwrap().len(), one[0].as_array().unwrap().len()), (1, 2));
}

#[test]
fn large_answers_are_written_whole() {
    let server = Server::start();
    // 4000 tokens of 4 values, eight times over: beyond what is written on the connection's own thread
    let ids: Vec<u32> = (0..4000).map(|i| i % 10).collect();
    let inputs = Input::Ids(ids.clone());
    let reply = server.post("/embed_all", json!({ "inputs": [ids] }).to_string());
    let answer: Vec<Vec<Vec<f32>>> = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((answer[0].len(), &answer[0][3999][..]), (4000, &row(&inputs, 3999)[..]));
    let texts = vec!["x".repeat(1200); 8];
    let reply = server.post("/embed_all", json!({ "inputs": texts }).to_string());
    let answer: Vec<Vec<Vec<f32>>> = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((answer.len(), answer[7].len()), (8, 1201));
    // written elsewhere, so it has to be a large one
    const { assert!(8 * 1201 * HIDDEN > 1 << 15) };
}

#[test]
fn options_reach_the_engine() {
    let server = Server::start();
    let pooled = |normalize, dimensions| OutputKind::Pooled { normalize, dimensions };
    let default = (pooled(true, None), None);
    for (path, options, (output, truncation)) in [
        ("/embed", json!({}), default),
        ("/embed", json!({"normalize": false}), (pooled(false, None), default.1)),
        ("/embed", json!({"dimensions": 2}), (pooled(true, Some(2)), default.1)),
        ("/embed", json!({"dimensions": null, "truncate": null, "prompt_name": null}), default),
        ("/embed", json!({"normalize": null, "truncation_direction": null}), default),
        (
            "/v1/embeddings",
            json!({"encoding_format": null, "dimensions": null, "user": null}),
            (default.0, None),
        ),
        ("/", json!({"dimensions": 3}), (pooled(true, Some(3)), default.1)),
        (
            "/embed",
            json!({"truncate": false, "truncation_direction": "left"}),
            (default.0, Some(Truncation::Off)),
        ),
        ("/embed", json!({"truncation_direction": "left"}), (default.0, Some(Truncation::Left))),
        (
            "/embed",
            json!({"truncate": true, "truncation_direction": "Left"}),
            (default.0, Some(Truncation::Left)),
        ),
        (
            "/embed",
            json!({"truncate": true, "truncation_direction": "right"}),
            (default.0, Some(Truncation::Right)),
        ),
        ("/embed", json!({"truncation_direction": "Right"}), default),
        ("/embed", json!({"parameters": {"x": [1, {}]}, "unknown": 1e3}), default),
        ("/embed_all", json!({"truncation_direction": "left"}), (OutputKind::Tokens, Some(Truncation::Left))),
        ("/v1/embeddings", json!({"dimensions": 3}), (pooled(true, Some(3)), None)),
        (
            "/v1/embeddings",
            json!({"model": "any", "user": "me", "encoding_format": "base64"}),
            (default.0, None),
        ),
        ("/v1/embeddings", json!({"model": null, "user": 7}), (default.0, None)),
    ] {
        let mut body = options.clone();
        body["inputs"] = json!("hi");
        body["input"] = json!("hi");
        let reply = server.post(path, body.to_string());
        assert_eq!(reply.status, 200, "{path} {options}: {}", reply.text());
        let seen = server.engine.seen.lock().unwrap().take();
        let inputs = vec![text("hi")];
        let continues = path == "/v1/embeddings"; // which is asked in parts
        let expected = InferRequest { truncation, continues, ..InferRequest::new(inputs, output) };
        assert_eq!(seen, Some(expected), "{path} {options}");
    }
}

#[test]
fn openai_answers_a_list_with_usage() {
    let server = Server::start();
    for path in ["/v1/embeddings", "/embeddings"] {
        let reply = server.post(path, r#"{"input":["abc",[1,2]],"model":"text-embedding-3-small"}"#);
        let answer = reply.json();
        let data: Vec<Value> = [text("abc"), Input::Ids(vec![1, 2])]
            .iter()
            .enumerate()
            .map(|(index, input)| json!({"object": "embedding", "embedding": row(input, 0), "index": index}))
            .collect();
        let usage = json!({"prompt_tokens": 6, "total_tokens": 6});
        assert_eq!(answer["data"].as_array().unwrap().len(), 2);
        for (got, expected) in answer["data"].as_array().unwrap().iter().zip(&data) {
            assert_eq!(floats(&got["embedding"]), floats(&expected["embedding"]));
            assert_eq!((&got["index"], &got["object"]), (&expected["index"], &expected["object"]));
        }
        assert_eq!(
            (&answer["object"], &answer["model"], &answer["usage"]),
            (&json!("list"), &json!("fake"), &usage)
        );
    }
}

#[test]
fn openai_answers_more_inputs_than_the_engine_takes_at_once() {
    let server = Server::start();
    // The fake takes eight at a time.
    for count in [8, 9, 33, 100] {
        let texts: Vec<String> = (0..count).map(|number| number.to_string()).collect();
        let reply = server.post("/v1/embeddings", json!({ "input": texts }).to_string());
        assert_eq!(reply.status, 200, "{}", reply.text());
        let letters: usize = texts.iter().map(String::len).sum();
        assert_eq!(reply.header("x-compute-characters").parse(), Ok(letters));
        let answer = reply.json();
        let data = answer["data"].as_array().unwrap();
        assert_eq!(data.len(), count);
        for (index, (got, input)) in data.iter().zip(&texts).enumerate() {
            assert_eq!(got["index"], index);
            assert_eq!(floats(&got["embedding"]), row(&text(input), 0), "{input}");
        }
        // the fake's tokens of a text: a byte each, and one
        let tokens = letters + count;
        assert_eq!(answer["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
    }
    let most = json!({ "input": vec!["a"; 2048] }).to_string();
    let data = server.post("/embeddings", most).json()["data"].as_array().map(Vec::len);
    assert_eq!(data, Some(2048), "as many as OpenAI takes");
}

#[test]
fn base64_holds_the_same_floats() {
    let server = Server::start();
    let ask = |format: &str| {
        let body = json!({"input": ["abc", "d", [9]], "encoding_format": format});
        server.post("/v1/embeddings", body.to_string()).json()
    };
    let (float, base64) = (ask("float"), ask("base64"));
    for index in 0..3 {
        let bytes = STANDARD.decode(base64["data"][index]["embedding"].as_str().unwrap()).unwrap();
        let values: Vec<f32> =
            bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert_eq!(values, floats(&float["data"][index]["embedding"]));
        assert_eq!(values.len(), HIDDEN);
    }
}

#[test]
fn info_has_the_fields_of_text_embeddings_inference() {
    let reply = Server::start().get("/info");
    assert_eq!(reply.header("content-type"), "application/json");
    assert_eq!(
        reply.json(),
        json!({
            "model_id": "models/fake",
            "model_sha": null,
            "model_dtype": "float32",
            "served_model_name": "fake",
            "model_type": {"embedding": {"pooling": "mean"}},
            "max_concurrent_requests": 512,
            "max_input_length": 16,
            "max_batch_tokens": 64,
            "max_batch_requests": null,
            "max_client_batch_size": 8,
            "auto_truncate": true,
            "cache_bytes": 0,
            "tokenization_workers": 1,
            "version": "1.2.3",
            "sha": null,
            "docker_label": null,
        })
    );
}

#[test]
fn headers_tell_where_the_time_went() {
    let server = Server::start();
    for (path, body) in [
        ("/embed", r#"{"inputs":["ab","ü"]}"#),
        ("/embed_all", r#"{"inputs":["ab","ü"]}"#),
        ("/v1/embeddings", r#"{"input":["ab","ü"]}"#),
    ] {
        let reply = server.post(path, body);
        assert_eq!(reply.header("content-type"), "application/json");
        assert_eq!(reply.header("x-compute-type"), "cpu");
        for (name, value) in [
            ("x-compute-characters", 3),
            ("x-compute-tokens", 6),
            ("x-tokenization-time", 1),
            ("x-queue-time", 2),
            ("x-inference-time", 3),
        ] {
            assert_eq!(reply.header(name).parse(), Ok(value), "{path} {name}");
        }
        for name in ["x-compute-time", "x-total-time"] {
            reply.header(name).parse::<u64>().unwrap();
        }
    }
    let reply = server.send(
        "POST",
        "/embed",
        &[("content-type", "application/json"), ("x-request-id", "abc-1")],
        r#"{"inputs":"a"}"#,
    );
    assert_eq!(reply.header("x-request-id"), "abc-1");
}

#[test]
fn metrics_count_requests_and_failures() {
    let server = Server::start();
    let before = server.get("/metrics");
    assert!(before.header("content-type").starts_with("text/plain; version=0.0.4"));
    for _ in 0..2 {
        server.post("/embed", r#"{"inputs":"a"}"#);
    }
    server.post("/embed", r#"{"inputs":["a","b"]}"#);
    for failing in ["overloaded", "tokenizer", "backend", "stopping"] {
        server.post("/embed", json!({ "inputs": failing }).to_string());
    }
    server.post("/embed", r#"{"inputs":[1,2,3,"#);
    server.post("/embed", json!({ "inputs": vec!["a"; 9] }).to_string());
    let after = server.get("/metrics");
    // other tests of this process count here, too: at least as many
    let grown = |name: &str| counter(after.text(), name) - counter(before.text(), name);
    for (name, least) in [
        (r#"te_request_count{method="single"}"#, 6),
        (r#"te_request_count{method="batch"}"#, 2),
        (r#"te_request_success{method="single"}"#, 2),
        (r#"te_request_success{method="batch"}"#, 1),
        (r#"te_request_failure{err="overloaded"}"#, 1),
        (r#"te_request_failure{err="tokenization"}"#, 1),
        (r#"te_request_failure{err="inference"}"#, 1),
        (r#"te_request_failure{err="unhealthy"}"#, 1),
        (r#"te_request_failure{err="validation"}"#, 1),
        (r#"te_request_failure{err="batch_size"}"#, 1),
        ("te_request_duration_count", 3),
        ("te_request_tokenization_duration_count", 3),
        ("te_request_queue_duration_count", 3),
        ("te_request_inference_duration_count", 3),
    ] {
        assert!(grown(name) >= least, "{name} grew by {}", grown(name));
    }
    let text = after.text();
    assert!(text.contains("# TYPE te_request_duration histogram"), "{text}");
    let bounds: Vec<f64> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix(r#"te_request_duration_bucket{le=""#)?.split('"').next()?.parse().ok()
        })
        .filter(|bound: &f64| bound.is_finite())
        .collect();
    assert_eq!(bounds.len(), 35);
    assert!((bounds[0] - 1.5e-5).abs() < 1e-12, "{bounds:?}");
    for pair in bounds.windows(2) {
        assert!((pair[1] / pair[0] - 1.5).abs() < 1e-9, "{pair:?}");
    }
}

#[test]
fn a_hundred_clients_get_their_own_rows() {
    let server = Server::start();
    std::thread::scope(|scope| {
        for client in 0..100 {
            let server = &server;
            scope.spawn(move || {
                let inputs = [format!("client {client}"), format!("again {client}")];
                let reply = server.post("/embed", json!({ "inputs": inputs }).to_string());
                let rows: Vec<Vec<f32>> = serde_json::from_slice(&reply.body).unwrap();
                assert_eq!(rows, inputs.map(|input| row(&Input::Text(input), 0).to_vec()));
            });
        }
    });
}
