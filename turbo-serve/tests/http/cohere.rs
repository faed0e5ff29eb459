//! Vectors in Cohere's words.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use turbo_serve::engine::{Input, ModelInfo, OutputKind, PromptName, Prompts, Truncation};

use crate::{
    fake::{HIDDEN, Reply, Server, assert_tei, classifier, embedding, empty, invalid, row},
    statuses::assert_openai,
};

fn with_prompts<const N: usize>(names: [&str; N]) -> ModelInfo {
    let named = names.map(|name| (name.to_owned(), format!("{name}: "))).into();
    ModelInfo { prompts: Prompts { named, default: None }, ..embedding() }
}

/// The fake's row of a text, as it is read back from JSON.
fn vector(text: &str) -> Vec<f32> {
    row(&Input::Text(text.to_owned()), 0).to_vec()
}

#[track_caller]
fn ok(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn floats(value: &Value) -> Vec<Vec<f32>> {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

#[test]
fn texts_become_vectors_of_each_type() {
    let server = Server::start();
    let texts = ["ab", "c \"quoted\"", "\u{0}"];
    let expected: Vec<Vec<f32>> = texts.iter().map(|text| vector(text)).collect();
    for path in ["/v2/embed", "/models/fake/v2/embed", "/models/fake/versions/1/v2/embed"] {
        for (types, keys) in [
            (json!(null), vec!["float"]),
            (json!([]), vec!["float"]),
            (json!(["float"]), vec!["float"]),
            (json!(["base64"]), vec!["base64"]),
            (json!(["base64", "float", "base64"]), vec!["base64", "float"]),
        ] {
            let body = json!({ "model": "any", "texts": texts, "embedding_types": types, "priority": 3 });
            let answer = ok(&server.post(path, body.to_string()));
            let by_type = answer["embeddings"].as_object().unwrap();
            assert_eq!(by_type.len(), keys.len(), "{answer}");
            for key in keys {
                match key {
                    "float" => assert_eq!(floats(&by_type[key]), expected),
                    _ => {
                        assert_eq!(by_type[key].as_array().unwrap().len(), texts.len(), "{answer}");
                        for (text, row) in by_type[key].as_array().unwrap().iter().zip(&expected) {
                            let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
                            assert_eq!(STANDARD.decode(text.as_str().unwrap()).unwrap(), bytes);
                        }
                    }
                }
            }
            // the fake's tokens of a text: a byte each, and one
            let tokens: usize = texts.iter().map(|text| text.len() + 1).sum();
            assert_eq!(answer["meta"]["billed_units"], json!({ "input_tokens": tokens }));
            assert_eq!(answer["meta"]["tokens"], json!({ "input_tokens": tokens }));
            assert_eq!(answer["meta"]["api_version"], json!({ "version": "2" }));
            assert_eq!(answer["texts"], json!(texts), "{answer}");
            assert_eq!(answer["response_type"], "embeddings_by_type");
            assert!(answer["id"].as_str().is_some_and(|id| id.starts_with("embd-")), "{answer}");
            assert_eq!(answer.as_object().unwrap().len(), 5, "{answer}");
        }
    }
    assert_eq!(
        floats(&ok(&server.post("/v2/embed", r#"{"texts":"ab"}"#))["embeddings"]["float"]),
        [vector("ab")]
    );
}

#[test]
fn more_texts_than_a_request_may_have_are_asked_for_in_parts() {
    let server = Server::start();
    let texts: Vec<String> = (0..96).map(|number| number.to_string()).collect();
    let answer = ok(&server.post("/v2/embed", json!({ "texts": texts }).to_string()));
    let expected: Vec<Vec<f32>> = texts.iter().map(|text| vector(text)).collect();
    assert_eq!(floats(&answer["embeddings"]["float"]), expected);
    let body = json!({ "texts": vec![""; 2049] });
    let said = "batch size 2049 > maximum allowed batch size 2048";
    assert_openai("2049", &server.post("/v2/embed", body.to_string()), 422, "Validation", said);
}

#[test]
fn texts_are_cut_and_vectors_shortened_as_the_request_says() {
    let server = Server::start();
    let whole = OutputKind::Pooled { normalize: true, dimensions: None };
    for (options, truncation, limit, output) in [
        (json!({}), Truncation::Right, None, whole),
        (
            json!({ "truncate": null, "max_tokens": null, "output_dimension": null }),
            Truncation::Right,
            None,
            whole,
        ),
        (json!({ "truncate": "END" }), Truncation::Right, None, whole),
        (json!({ "truncate": "START", "max_tokens": 3 }), Truncation::Left, Some(3), whole),
        (json!({ "truncate": "NONE", "max_tokens": 9000 }), Truncation::Off, Some(9000), whole),
        (
            json!({ "output_dimension": 2 }),
            Truncation::Right,
            None,
            OutputKind::Pooled { normalize: true, dimensions: Some(2) },
        ),
    ] {
        let mut body = options.clone();
        body["texts"] = json!(["ab"]);
        ok(&server.post("/v2/embed", body.to_string()));
        let seen = server.engine.seen.lock().unwrap().take().unwrap();
        let got = (seen.truncation, seen.max_input_length, seen.output);
        assert_eq!(got, (Some(truncation), limit, output), "{options}");
    }
    let long = json!({ "texts": ["a", "b".repeat(20)], "truncate": "NONE" });
    let said = "input 1 has at least 21 tokens, at most 16 are possible";
    assert_openai("long", &server.post("/v2/embed", long.to_string()), 422, "Validation", said);
}

#[test]
fn a_prompt_may_be_named_in_openai_s_words() {
    let server = Server::with_model(with_prompts(["query", "passage"]));
    let ask = |body: Value| server.post("/v1/embeddings", body.to_string());
    ok(&ask(json!({ "input": ["a"], "prompt_name": "query" })));
    let asked = server.engine.seen.lock().unwrap().take().unwrap().prompt_name;
    assert_eq!(asked, PromptName::Named("query".to_owned()));
    let unknown = ask(json!({ "input": "a", "prompt_name": "x" }));
    assert_openai("x", &unknown, 422, "Validation", "`prompt_name` is `x`, this model's prompts are");
}

#[test]
fn the_type_of_texts_chooses_their_prompt() {
    let prompt = |server: &Server, input_type: Value| {
        let body = json!({ "texts": ["ab"], "input_type": input_type });
        ok(&server.post("/v2/embed", body.to_string()));
        server.engine.seen.lock().unwrap().take().unwrap().prompt_name
    };
    let named = |name: &str| PromptName::Named(name.to_owned());
    let server = Server::with_model(with_prompts(["query", "passage"]));
    assert_eq!(prompt(&server, json!(null)), PromptName::Default);
    assert_eq!(prompt(&server, json!("query")), named("query"));
    assert_eq!(prompt(&server, json!("search_query")), named("query"));
    assert_eq!(prompt(&server, json!("search_document")), named("passage"));
    let server = Server::with_model(with_prompts(["query"]));
    assert_eq!(prompt(&server, json!("search_document")), PromptName::None);
    for input_type in ["search_query", "search_document", "classification", "clustering"] {
        assert_eq!(prompt(&Server::start(), json!(input_type)), PromptName::None, "{input_type}");
    }
}

#[test]
fn what_is_wrong_is_told_by_its_name() {
    let server = Server::with_model(with_prompts(["query"]));
    for (body, (status, error_type, said)) in [
        ("{", (400, "Validation", "body is not JSON")),
        ("[]", invalid("expected a JSON object")),
        ("{}", invalid("missing field `texts`")),
        (r#"{"texts":[]}"#, empty("`texts` cannot be empty")),
        (r#"{"texts":[7]}"#, invalid("integer `7`, expected a text at [0]")),
        (
            r#"{"images":["data:image/png;base64,AA=="]}"#,
            invalid("`images` is not possible here: no model reads"),
        ),
        (
            r#"{"inputs":[{"content":[{"type":"text","text":"a"}]}]}"#,
            invalid("`inputs` is not possible here: no model reads images beside texts; send `texts`"),
        ),
        (r#"{"texts":["overloaded"]}"#, (429, "Overloaded", "overloaded")),
        (r#"{"texts":["nan"]}"#, (424, "Backend", "has the value NaN")),
    ] {
        assert_openai(body, &server.post("/v2/embed", body), status, error_type, said);
    }
    for (field, value, said) in [
        (
            "embedding_types",
            json!(["float", "int8"]),
            r#"`embedding_types` has "int8" at [1], expected "float", "base64", "binary" or "ubinary"; how values become"#,
        ),
        ("embedding_types", json!(["FLOAT"]), r#"`embedding_types` has "FLOAT" at [0], expected "float""#),
        ("embedding_types", json!("float"), "expected a sequence"),
        (
            "embedding_types",
            json!(["ubinary"]),
            r#"`embedding_types` has "ubinary", expected vectors of a multiple of 8 values, but these have 4"#,
        ),
        ("truncate", json!("MIDDLE"), r#"`truncate` is "MIDDLE", expected "END", "START" or "NONE""#),
        ("truncate", json!(true), "boolean `true`, expected a string"),
        ("max_tokens", json!(0), "`max_tokens` is 0, expected at least 1"),
        ("max_tokens", json!(-1), "integer `-1`, expected a whole number, 0 or above"),
        ("output_dimension", json!(0), "`output_dimension` is 0, expected 1 to 4"),
        ("output_dimension", json!(HIDDEN + 1), "`output_dimension` is 5, expected 1 to 4"),
        (
            "input_type",
            json!("clustering"),
            r#"`input_type` is "clustering", expected "search_query", "search_document" or one of this"#,
        ),
        ("input_type", json!(7), "integer `7`, expected a string"),
    ] {
        let mut body = json!({ "texts": ["a"] });
        body[field] = value;
        assert_openai(
            &body.to_string(),
            &server.post("/v2/embed", body.to_string()),
            422,
            "Validation",
            said,
        );
    }
    for path in ["/v2/embed", "/models/fake/v2/embed"] {
        assert_openai(path, &server.get(path), 405, "Validation", "does not take GET");
    }
    for path in ["/models/v2/embed", "/models/v1/embed", "/models/v1/versions/1/embed"] {
        assert_tei(path, &server.get(path), 405, "Validation", "does not take GET");
    }
    let of_labels = Server::with_model(classifier(["x", "y"]));
    let said = "`/v2/embed` needs an embedding model, and this model is for";
    assert_openai("labels", &of_labels.post("/v2/embed", r#"{"texts":["a"]}"#), 424, "Backend", said);
}
