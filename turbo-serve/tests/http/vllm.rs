//! Scores of pairs, labels and rows in vLLM's words.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use turbo_serve::engine::{Input, ModelInfo, OutputKind, RowLens, ScoreFunction, Task, Truncation};

use crate::{
    fake::{Reply, Server, classifier, embedding, row, sparse, tokens},
    statuses::assert_openai,
};

fn ranks() -> Server {
    Server::with_model(classifier(["LABEL_0"]))
}

fn text(text: &str) -> Input {
    Input::Text(text.to_owned())
}

fn pair(first: &str, second: &str) -> Input {
    Input::Pair(first.to_owned(), second.to_owned())
}

fn logit(first: &str, second: &str) -> f64 {
    row(&pair(first, second), 0)[0].into()
}

fn sigmoid(logit: f64) -> f64 {
    1.0 / (1.0 + (-logit).exp())
}

/// The cosine of the fake's rows for two texts, which count as unit vectors.
fn cosine(first: &str, second: &str) -> f64 {
    let [first, second] = [first, second].map(|it| row(&text(it), 0));
    let sum: f64 = first.iter().zip(second).map(|(&a, b)| f64::from(a) * f64::from(b)).sum();
    sum.clamp(-1.0, 1.0)
}

/// Checks a list of scores, and its number of tokens.
#[track_caller]
fn assert_scores(reply: &Reply, expected: &[f64], tokens: usize) {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let answer = reply.json();
    let data = answer["data"].as_array().unwrap();
    assert_eq!(data.len(), expected.len(), "{answer}");
    for (index, (item, expected)) in data.iter().zip(expected).enumerate() {
        assert_eq!((&item["index"], &item["object"]), (&json!(index), &json!("score")), "{answer}");
        let score = item["score"].as_f64().unwrap();
        assert!((score - expected).abs() < 1e-6, "{answer}: expected {expected} at {index}");
    }
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("fake")), "{answer}");
    assert_eq!(answer["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }), "{answer}");
    assert!(answer["created"].as_u64().is_some_and(|created| created > 1_700_000_000), "{answer}");
}

#[test]
fn pairs_are_scored_in_their_order_by_every_name() {
    let server = ranks();
    let one = [sigmoid(logit("q", "c"))];
    let many = ["c", "a", "b"].map(|it| sigmoid(logit("q", it)));
    let each = [sigmoid(logit("q", "c")), sigmoid(logit("r", "a"))];
    let several = (json!("q"), json!(["c", "a", "b"]));
    for path in ["/score", "/v1/score", "/models/fake/score"] {
        for (first, second) in
            [("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2")]
        {
            for ((of_first, of_second), expected) in [
                ((json!("q"), json!("c")), &one[..]),
                ((json!(["q"]), json!("c")), &one),
                (several.clone(), &many),
                ((json!(["q"]), several.1.clone()), &many),
                ((json!(["q", "r"]), json!(["c", "a"])), &each),
            ] {
                let body = json!({ first: of_first, second: of_second, "user": "u", "priority": 3 });
                // the fake's tokens of a pair: a byte each, and two
                assert_scores(&server.post(path, body.to_string()), expected, expected.len() * 4);
            }
        }
    }
}

#[test]
fn logits_become_scores_as_the_folder_or_the_request_says() {
    let asked = |server: &Server, options: Value| {
        let mut body = options;
        (body["queries"], body["documents"]) = (json!("q"), json!("c"));
        server.post("/score", body.to_string())
    };
    let (server, raw) = (ranks(), logit("q", "c"));
    for (options, expected) in [
        (json!({}), sigmoid(raw)),
        (json!({ "use_activation": true }), sigmoid(raw)),
        (json!({ "use_activation": null }), sigmoid(raw)),
        (json!({ "use_activation": false }), raw),
        (json!({ "activation": false }), raw),
        (json!({ "softmax": false }), raw),
        (json!({ "use_activation": true, "activation": false }), sigmoid(raw)),
    ] {
        assert_scores(&asked(&server, options), &[expected], 4);
    }
    let mut model = classifier(["LABEL_0"]);
    model.pair_score_function = ScoreFunction::Identity;
    let server = Server::with_model(model);
    assert_scores(&asked(&server, json!({})), &[raw], 4);
    // A model that is trained to give numbers gives them, whatever function its folder names.
    let mut model = classifier(["LABEL_0"]);
    model.score_function = ScoreFunction::Identity;
    assert_scores(&asked(&Server::with_model(model), json!({})), &[raw], 4);
    // `/rerank` differs: its scores are between 0 and 1.
    let ranked = server.post("/v1/rerank", r#"{"query":"q","documents":["c"]}"#).json();
    let score = ranked["results"][0]["relevance_score"].as_f64().unwrap();
    assert!((score - sigmoid(raw)).abs() < 1e-6, "{ranked}");
}

#[test]
fn models_that_make_vectors_compare_them() {
    for server in [Server::with_model(embedding()), Server::with_model(sparse())] {
        let many = json!({ "text_1": "q", "text_2": ["c", "q", "b"], "use_activation": false });
        // the fake's tokens of a text: a byte each, and one; those of the query are computed once
        let expected = ["c", "q", "b"].map(|it| cosine("q", it));
        assert_scores(&server.post("/score", many.to_string()), &expected, 8);
        let each = json!({ "queries": ["q", "r"], "documents": ["c", "a"] });
        let expected = [cosine("q", "c"), cosine("r", "a")];
        assert_scores(&server.post("/v1/score", each.to_string()), &expected, 8);
    }
    // More texts than the fake takes at a time, on both sides.
    let texts: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    let reversed: Vec<&String> = texts.iter().rev().collect();
    let expected: Vec<f64> = texts.iter().zip(&reversed).map(|(a, b)| cosine(a, b)).collect();
    let body = json!({ "queries": texts, "documents": reversed });
    let tokens = texts.iter().map(|text| 2 * (text.len() + 1)).sum();
    assert_scores(&Server::start().post("/score", body.to_string()), &expected, tokens);
}

#[test]
fn what_is_wrong_with_a_text_is_told_by_the_side_that_it_is_of() {
    let server = Server::start();
    let mut nine = vec!["a"; 9];
    nine[8] = "invalid id";
    for (body, said) in [
        (json!({ "text_1": "invalid id", "text_2": ["a"] }), "`text_1`: input 0 has token id 1000"),
        (json!({ "text_1": "q", "text_2": ["invalid id"] }), "`text_2`: input 0 has token id 1000"),
        (
            json!({ "queries": ["q", "invalid id"], "items": ["a", "b"] }),
            "`queries`: input 1 has token id 1000",
        ),
        (json!({ "queries": "q", "documents": nine }), "`documents`: input 8 has token id 1000"),
    ] {
        let reply = server.post("/score", body.to_string());
        assert_openai(&body.to_string(), &reply, 422, "Validation", said);
    }
}

#[test]
fn more_pairs_than_a_request_may_have_are_scored_in_parts() {
    let server = ranks();
    let documents: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    let expected: Vec<f64> = documents.iter().map(|it| sigmoid(logit("q", it))).collect();
    let tokens = documents.iter().map(|it| it.len() + 3).sum();
    let body = json!({ "queries": "q", "documents": documents });
    assert_scores(&server.post("/score", body.to_string()), &expected, tokens);
    let said = "batch size 1001 > maximum allowed batch size 1000: send fewer pairs at a time";
    let body = json!({ "queries": "q", "documents": vec!["a"; 1001] });
    assert_openai("1001", &server.post("/score", body.to_string()), 422, "Validation", said);
}

#[test]
fn answers_are_called_as_their_requests() {
    let server = ranks();
    let id = |body: &str| server.post("/score", body).json()["id"].as_str().unwrap().to_owned();
    let (first, second) = (id(r#"{"text_1":"q","text_2":"c"}"#), id(r#"{"text_1":"q","text_2":"c"}"#));
    assert!(first.starts_with("score-") && first != second, "{first} {second}");
    assert_eq!(id(r#"{"text_1":"q","text_2":"c","request_id":"mine"}"#), "score-mine");
}

#[test]
fn texts_are_cut_as_the_request_says() {
    let server = ranks();
    let seen = |options: Value| {
        let mut body = options;
        (body["queries"], body["documents"]) = (json!("abc"), json!(["defg"]));
        let reply = server.post("/score", body.to_string());
        assert_eq!(reply.status, 200, "{}", reply.text());
        server.engine.seen.lock().unwrap().take().unwrap()
    };
    for (options, truncation, limit) in [
        (json!({}), None, None),
        (json!({ "truncate_prompt_tokens": null }), None, None),
        (json!({ "truncate_prompt_tokens": -1 }), Some(Truncation::Right), None),
        (json!({ "truncate_prompt_tokens": 8 }), Some(Truncation::Right), Some(8)),
        (
            json!({ "truncate_prompt_tokens": 16, "truncation_side": "right" }),
            Some(Truncation::Right),
            Some(16),
        ),
        (json!({ "truncate_prompt_tokens": 1, "truncation_side": "left" }), Some(Truncation::Left), Some(1)),
        (json!({ "truncation_side": "left" }), Some(Truncation::Left), None),
    ] {
        let request = seen(options.clone());
        assert_eq!((request.truncation, request.max_input_length), (truncation, limit), "{options}");
    }
    for (options, expected) in [
        (json!({ "max_tokens_per_doc": 0, "max_tokens_per_query": 0 }), pair("abc", "defg")),
        (json!({ "max_tokens_per_doc": 2 }), pair("abc", "de")),
        (json!({ "max_tokens_per_query": 1, "max_tokens_per_doc": 9 }), pair("a", "defg")),
        (json!({ "max_tokens_per_query": 1, "max_tokens_per_doc": 3 }), pair("a", "def")),
    ] {
        assert_eq!(seen(options.clone()).inputs, [expected], "{options}");
    }
}

#[test]
fn what_is_wrong_with_pairs_is_told_by_its_name() {
    let server = ranks();
    let names =
        "expected `queries` and `documents`, or `text_1` and `text_2`, and no other names of texts; got";
    for (body, status, error_type, said) in [
        ("{", 400, "Validation", "body is not JSON"),
        ("[]", 422, "Validation", "expected a JSON object"),
        ("{}", 422, "Validation", &format!("{names} none of them") as &str),
        (r#"{"queries":"q"}"#, 422, "Validation", &format!("{names} `queries`")),
        (r#"{"items":["q"]}"#, 422, "Validation", &format!("{names} `items`")),
        (r#"{"query":"q","documents":["a"]}"#, 422, "Validation", &format!("{names} `query`, `documents`")),
        (r#"{"queries":"q","text_2":"a"}"#, 422, "Validation", &format!("{names} `queries`, `text_2`")),
        (
            r#"{"text_2":"a","queries":"q","documents":"a"}"#,
            422,
            "Validation",
            &format!("{names} `queries`, `documents`, `text_2`"),
        ),
        (r#"{"text_1":[],"text_2":"q"}"#, 400, "Empty", "`text_1` cannot be empty"),
        (r#"{"queries":"q","documents":[]}"#, 400, "Empty", "`documents` cannot be empty"),
        (
            r#"{"queries":["q","r"],"items":["a","b","c"]}"#,
            422,
            "Validation",
            "there are 2 `queries` and 3 `items`, expected one of `queries`, or as many as of `items`",
        ),
        (r#"{"text_1":["q","r"],"text_2":"a"}"#, 422, "Validation", "there are 2 `text_1` and 1 `text_2`"),
        (
            r#"{"text_1":7,"text_2":"a"}"#,
            422,
            "Validation",
            "integer `7`, expected a text or a list of texts",
        ),
        (r#"{"text_1":"q","text_2":[{"content":[]}]}"#, 422, "Validation", "map, expected a text at [0]"),
        (r#"{"queries":"q","documents":"a","text_2":null}"#, 422, "Validation", "null, expected a text"),
        (r#"{"text_1":"overloaded","text_2":"a"}"#, 429, "Overloaded", "overloaded"),
        (r#"{"text_1":"nan","text_2":"a"}"#, 424, "Backend", "has the value NaN"),
    ] {
        for path in ["/score", "/v1/score"] {
            assert_openai(&format!("{path} {body}"), &server.post(path, body), status, error_type, said);
        }
    }
    for (name, value, said) in [
        ("truncate_prompt_tokens", json!(0), "`truncate_prompt_tokens` is 0, expected 1 to 16, or -1 for"),
        ("truncate_prompt_tokens", json!(-2), "`truncate_prompt_tokens` is -2, expected 1 to 16"),
        ("truncate_prompt_tokens", json!(17), "`truncate_prompt_tokens` is 17, expected 1 to 16"),
        ("truncate_prompt_tokens", json!("8"), r#"string "8", expected a whole number"#),
        ("truncation_side", json!("middle"), "unknown variant `middle`, expected `left` or `right`"),
        ("padding", json!("max_length"), r#"`padding` is "max_length", expected "do_not_pad""#),
        ("instruction", json!(["be good"]), "invalid type: sequence, expected a string"),
        ("chat_template_kwargs", json!({}), "`chat_template_kwargs` is not possible here"),
        ("use_activation", json!("no"), "expected a boolean"),
    ] {
        let mut body = json!({ "queries": "q", "documents": ["a"] });
        body[name] = value;
        assert_openai(&body.to_string(), &server.post("/score", body.to_string()), 422, "Validation", said);
    }
    for path in ["/score", "/v1/score"] {
        assert_openai(path, &server.get(path), 405, "Validation", "does not take GET");
    }
}

#[test]
fn other_models_say_what_pairs_need() {
    let server = Server::with_model(classifier(["x", "y"]));
    let reply = server.post("/score", r#"{"text_1":"q","text_2":"c"}"#);
    let said = "`/score` needs a sequence classifier with one label or an embedding model";
    assert_openai("two labels", &reply, 424, "Backend", said);
}

/// Checks a list of labels with their probabilities, and its number of tokens.
#[track_caller]
fn assert_classes(reply: &Reply, expected: &[Vec<f64>], labels: &[&str], tokens: usize) {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let answer = reply.json();
    let data = answer["data"].as_array().unwrap();
    assert_eq!(data.len(), expected.len(), "{answer}");
    for (index, (item, expected)) in data.iter().zip(expected).enumerate() {
        let probs: Vec<f64> = serde_json::from_value(item["probs"].clone()).unwrap();
        let near = probs.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-6);
        assert!(near && probs.len() == expected.len(), "{answer}: expected {expected:?} at {index}");
        let best = (0..expected.len()).max_by(|&a, &b| expected[a].total_cmp(&expected[b])).unwrap();
        assert_eq!(item["label"], labels[best], "{answer}");
        assert_eq!((&item["index"], &item["num_classes"]), (&json!(index), &json!(labels.len())), "{answer}");
    }
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("fake")), "{answer}");
    assert_eq!(answer["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }), "{answer}");
    assert!(answer["created"].is_u64(), "{answer}");
}

/// The fake's logits of an input, for as many labels.
fn logits(input: &Input, labels: usize) -> Vec<f64> {
    row(input, 0)[..labels].iter().map(|&logit| logit.into()).collect()
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
    logits.iter().map(|logit| logit.exp() / sum).collect()
}

#[test]
fn every_label_has_its_probability_in_the_models_order() {
    let labels = ["x", "y", "z"];
    let server = Server::with_model(classifier(labels));
    let raw = |content: &str| logits(&text(content), 3);
    for (input, contents, tokens) in [
        (json!("ab"), vec!["ab"], 3),
        (json!(["ab"]), vec!["ab"], 3),
        (json!(["ab", "c", "d"]), vec!["ab", "c", "d"], 7),
    ] {
        let expected: Vec<Vec<f64>> = contents.iter().map(|it| softmax(&raw(it))).collect();
        let body = json!({ "input": input, "model": "fake", "user": "u" });
        assert_classes(&server.post("/classify", body.to_string()), &expected, &labels, tokens);
        let expected: Vec<Vec<f64>> = contents.iter().map(|it| raw(it)).collect();
        for field in ["use_activation", "activation", "softmax"] {
            let body = json!({ "input": input, field: false });
            assert_classes(
                &server.post("/models/fake/classify", body.to_string()),
                &expected,
                &labels,
                tokens,
            );
        }
    }
    let ids = softmax(&logits(&Input::Ids(vec![1, 2]), 3));
    assert_classes(&server.post("/classify", r#"{"input":[1,2]}"#), &[ids], &labels, 2);
    // A sigmoid for a single label, and for each of several independent ones.
    let one = logits(&text("ab"), 1).into_iter().map(sigmoid).collect();
    assert_classes(&ranks().post("/classify", r#"{"input":"ab"}"#), &[one], &["LABEL_0"], 3);
    let mut model = classifier(labels);
    model.score_function = ScoreFunction::Sigmoid;
    let several = raw("ab").into_iter().map(sigmoid).collect();
    let server = Server::with_model(model);
    assert_classes(&server.post("/classify", r#"{"input":"ab"}"#), &[several], &labels, 3);
}

#[test]
fn more_texts_than_a_request_may_have_are_classified_in_parts() {
    let server = Server::with_model(classifier(["x", "y"]));
    let texts: Vec<String> = (0..50).map(|number| number.to_string()).collect();
    let expected: Vec<Vec<f64>> = texts.iter().map(|it| softmax(&logits(&text(it), 2))).collect();
    let tokens = texts.iter().map(|it| it.len() + 1).sum();
    let body = json!({ "input": texts });
    assert_classes(&server.post("/classify", body.to_string()), &expected, &["x", "y"], tokens);
    let id = |body: &str| server.post("/classify", body).json()["id"].as_str().unwrap().to_owned();
    assert!(id(r#"{"input":"a"}"#).starts_with("classify-"));
    assert_eq!(id(r#"{"input":"a","request_id":"mine"}"#), "classify-mine");
    let body = json!({ "input": vec![""; 2049] });
    let said = "batch size 2049 > maximum allowed batch size 2048";
    assert_openai("2049", &server.post("/classify", body.to_string()), 422, "Validation", said);
}

#[test]
fn what_is_wrong_with_a_text_to_classify_is_told_by_its_name() {
    let server = Server::with_model(classifier(["x", "y"]));
    for (body, status, error_type, said) in [
        ("{", 400, "Validation", "body is not JSON"),
        ("{}", 422, "Validation", "missing field `input`"),
        (r#"{"input":null}"#, 422, "Validation", "null, expected a text"),
        (r#"{"input":[]}"#, 400, "Empty", "`input` cannot be empty"),
        (r#"{"input":7}"#, 422, "Validation", "integer `7`, expected a text"),
        (r#"{"input":["a",["b"]]}"#, 422, "Validation", r#"string "b", expected a token id"#),
        (
            r#"{"messages":[{"role":"user","content":"a"}]}"#,
            422,
            "Validation",
            "`messages` is not possible here: no chat template is applied",
        ),
        (
            r#"{"input":"a","add_special_tokens":false}"#,
            422,
            "Validation",
            "`add_special_tokens` is false, expected true",
        ),
        (
            r#"{"input":"a","padding":"max_length"}"#,
            422,
            "Validation",
            r#"`padding` is "max_length", expected "do_not_pad""#,
        ),
        (
            r#"{"input":"a","truncate_prompt_tokens":17}"#,
            422,
            "Validation",
            "`truncate_prompt_tokens` is 17, expected 1 to 16",
        ),
        (r#"{"input":"overloaded"}"#, 429, "Overloaded", "overloaded"),
        (r#"{"input":"nan"}"#, 424, "Backend", "has the value NaN"),
    ] {
        assert_openai(body, &server.post("/classify", body), status, error_type, said);
    }
    assert_openai("GET", &server.get("/classify"), 405, "Validation", "does not take GET");
    let said = "`/classify` needs a sequence classifier, and this model is for";
    assert_openai("vectors", &Server::start().post("/classify", r#"{"input":"a"}"#), 424, "Backend", said);
}

/// The fake's rows of an input: one, or one for each of its tokens.
fn rows_of(input: &Input, width: usize) -> [Vec<Vec<f32>>; 2] {
    let cut = |token| row(input, token)[..width].to_vec();
    [vec![cut(0)], (0..tokens(input)).map(cut).collect()]
}

fn normalised(row: &[f32]) -> Vec<f32> {
    let norm = row.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    row.iter().map(|&value| (f64::from(value) / norm) as f32).collect()
}

/// Checks a list of rows of each input, and its number of tokens.
#[track_caller]
fn assert_rows(reply: &Reply, expected: &[Vec<Vec<f32>>], of_tokens: bool, tokens: usize) {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let answer = reply.json();
    let data = answer["data"].as_array().unwrap();
    assert_eq!(data.len(), expected.len(), "{answer}");
    for (index, (item, expected)) in data.iter().zip(expected).enumerate() {
        assert_eq!((&item["index"], &item["object"]), (&json!(index), &json!("pooling")), "{answer}");
        let got: Vec<Vec<f32>> = match of_tokens {
            true => serde_json::from_value(item["data"].clone()).unwrap(),
            false => vec![serde_json::from_value(item["data"].clone()).unwrap()],
        };
        let widths = |rows: &[Vec<f32>]| rows.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(widths(&got), widths(expected), "{answer}");
        for (got, expected) in got.iter().flatten().zip(expected.iter().flatten()) {
            assert!((got - expected).abs() < 1e-6, "{answer}: got {got}, expected {expected}");
        }
    }
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("fake")), "{answer}");
    assert_eq!(answer["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }), "{answer}");
    assert!(answer["created"].is_u64(), "{answer}");
}

#[test]
fn rows_of_inputs_and_of_tokens_are_given_as_the_task_says() {
    let inputs = [text("ab"), Input::Ids(vec![7, 8]), text("")];
    let asked = |server: &Server, mut body: Value| {
        body["input"] = json!(["ab", [7, 8], ""]);
        server.post("/models/fake/pooling", body.to_string())
    };
    let [whole, of_tokens] =
        [0, 1].map(|kind| inputs.iter().map(|input| rows_of(input, 4)[kind].clone()).collect::<Vec<_>>());
    let of_norm_one: Vec<Vec<Vec<f32>>> =
        of_tokens.iter().map(|rows| rows.iter().map(|row| normalised(row)).collect()).collect();
    let server = Server::start();
    for (body, normalize) in [
        (json!({}), true),
        (json!({ "task": null, "user": "u", "priority": 1, "cache_salt": "s" }), true),
        (json!({ "task": "embed", "use_activation": false }), false),
        (json!({ "task": "embed", "normalize": false }), false),
    ] {
        assert_rows(&asked(&server, body), &whole, false, 6);
        // The fake gives its rows as they are.
        let output = server.engine.seen.lock().unwrap().take().unwrap().output;
        assert_eq!(output, OutputKind::Pooled { normalize, dimensions: None });
    }
    assert_rows(&asked(&server, json!({ "task": "token_embed" })), &of_norm_one, true, 6);
    assert_rows(
        &asked(&server, json!({ "task": "token_embed", "use_activation": false })),
        &of_tokens,
        true,
        6,
    );
    assert_rows(&asked(&Server::with_model(sparse()), json!({})), &whole, false, 6);
    // Of classifiers: the probabilities of labels.
    let server = Server::with_model(classifier(["x", "y", "z"]));
    let raw: Vec<Vec<Vec<f32>>> = inputs.iter().map(|input| rows_of(input, 3)[0].clone()).collect();
    let likely = |rows: &Vec<Vec<f32>>| -> Vec<Vec<f32>> {
        let of_row = |row: &Vec<f32>| {
            softmax(&row.iter().map(|&logit| logit.into()).collect::<Vec<f64>>())
                .iter()
                .map(|&it| it as f32)
                .collect()
        };
        rows.iter().map(of_row).collect()
    };
    let probs: Vec<Vec<Vec<f32>>> = raw.iter().map(likely).collect();
    assert_rows(&asked(&server, json!({})), &probs, false, 6);
    assert_rows(&asked(&server, json!({ "task": "classify", "softmax": false })), &raw, false, 6);
    // Of tokens, too.
    let labels = ["a", "b", "c", "d"].map(str::to_owned);
    let rows = RowLens { pooled: None, tokens: Some(4), selected: Some(4) };
    let score_function = ScoreFunction::Softmax;
    let model = ModelInfo {
        task: Task::TokenClassification,
        labels: labels.into(),
        score_function,
        rows,
        ..embedding()
    };
    let server = Server::with_model(model);
    let probs: Vec<Vec<Vec<f32>>> = of_tokens.iter().map(likely).collect();
    assert_rows(&asked(&server, json!({})), &probs, true, 6);
    assert_rows(
        &asked(&server, json!({ "task": "token_classify", "use_activation": false })),
        &of_tokens,
        true,
        6,
    );
}

#[test]
fn rows_are_bytes_as_base64() {
    let server = Server::start();
    for (task, kind) in [("embed", 0), ("token_embed", 1)] {
        let body =
            json!({ "input": "ab", "task": task, "use_activation": false, "encoding_format": "base64" });
        let answer = server.post("/pooling", body.to_string()).json();
        let bytes = STANDARD.decode(answer["data"][0]["data"].as_str().unwrap()).unwrap();
        let got: Vec<f32> =
            bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert_eq!(got, rows_of(&text("ab"), 4)[kind].concat(), "{task}");
    }
}

#[test]
fn more_inputs_than_a_request_may_have_are_pooled_in_parts_and_their_tokens_at_once() {
    let server = Server::start();
    let texts: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    let expected: Vec<Vec<Vec<f32>>> = texts.iter().map(|it| rows_of(&text(it), 4)[0].clone()).collect();
    let tokens = texts.iter().map(|it| it.len() + 1).sum();
    assert_rows(&server.post("/pooling", json!({ "input": texts }).to_string()), &expected, false, tokens);
    let body = json!({ "input": texts, "task": "token_embed" });
    let said = "batch size 30 > maximum allowed batch size 8";
    assert_openai("tokens", &server.post("/pooling", body.to_string()), 422, "Validation", said);
    let id = |body: &str| server.post("/pooling", body).json()["id"].as_str().unwrap().to_owned();
    assert!(id(r#"{"input":"a"}"#).starts_with("pooling-"));
    assert_eq!(id(r#"{"input":"a","task":"token_embed","request_id":"mine"}"#), "pooling-mine");
}

#[test]
fn what_is_wrong_with_what_is_pooled_is_told_by_its_name() {
    let server = Server::start();
    for (field, value, said) in [
        (
            "task",
            json!("classify"),
            r#"`task` is "classify", expected "embed" or "token_embed", which this model can"#,
        ),
        ("task", json!("encode"), r#"`task` is "encode", expected "embed" or "token_embed""#),
        ("task", json!(7), "integer `7`, expected a string"),
        ("dimensions", json!(2), "`dimensions` is not possible here: use it with `/v1/embeddings`"),
        ("data", json!({}), "`data` is not possible here: no plugin reads it"),
        ("messages", json!([]), "`messages` is not possible here: no chat template is applied"),
        ("padding", json!("max_length"), r#"`padding` is "max_length", expected "do_not_pad""#),
        ("add_special_tokens", json!(false), "`add_special_tokens` is false, expected true"),
        ("truncate_prompt_tokens", json!(17), "`truncate_prompt_tokens` is 17, expected 1 to 16"),
        ("encoding_format", json!("bytes"), "unknown variant `bytes`, expected `float` or `base64`"),
        ("input", json!([]), "`input` cannot be empty"),
        ("input", json!(null), "null, expected a text"),
        ("input", json!("nan"), "has the value NaN"),
    ] {
        let mut body = json!({ "input": "a" });
        body[field] = value;
        let reply = server.post("/pooling", body.to_string());
        let (status, error_type) = match said {
            "`input` cannot be empty" => (400, "Empty"),
            "has the value NaN" => (424, "Backend"),
            _ => (422, "Validation"),
        };
        assert_openai(&body.to_string(), &reply, status, error_type, said);
    }
    let sparse = Server::with_model(sparse());
    let reply = sparse.post("/pooling", r#"{"input":"a","task":"token_embed"}"#);
    assert_openai(
        "sparse",
        &reply,
        422,
        "Validation",
        r#"`task` is "token_embed", expected "embed", which this"#,
    );
    let masked = ModelInfo { task: Task::MaskedLm, ..embedding() };
    let reply = Server::with_model(masked).post("/pooling", r#"{"input":"a"}"#);
    let said = "`/pooling` needs an embedding model, a sequence classifier or a token classifier";
    assert_openai("masked", &reply, 424, "Backend", said);
    assert_openai("GET", &server.get("/pooling"), 405, "Validation", "does not take GET");
}

#[test]
fn embeddings_take_vllm_s_fields_that_are_possible() {
    let server = Server::start();
    let asked = |options: Value| {
        let mut body = options;
        body["input"] = json!(["ab", [7, 8]]);
        let reply = server.post("/v1/embeddings", body.to_string());
        assert_eq!(reply.status, 200, "{body}: {}", reply.text());
        server.engine.seen.lock().unwrap().take().unwrap()
    };
    let pooled = |normalize| OutputKind::Pooled { normalize, dimensions: None };
    for (options, output, truncation, limit) in [
        (json!({}), pooled(true), None, None),
        (json!({ "truncate_prompt_tokens": -1 }), pooled(true), Some(Truncation::Right), None),
        (json!({ "truncate_prompt_tokens": 4 }), pooled(true), Some(Truncation::Right), Some(4)),
        (
            json!({ "truncate_prompt_tokens": 4, "truncation_side": "left" }),
            pooled(true),
            Some(Truncation::Left),
            Some(4),
        ),
        (json!({ "use_activation": false }), pooled(false), None, None),
        (json!({ "normalize": false }), pooled(false), None, None),
        (json!({ "use_activation": true, "normalize": false }), pooled(true), None, None),
        (json!({ "padding": "do_not_pad", "add_special_tokens": true }), pooled(true), None, None),
        (
            json!({ "embed_dtype": "float32", "endianness": "native", "encoding_format": "base64" }),
            pooled(true),
            None,
            None,
        ),
        // Vectors written as numbers have no bytes, so these fields change nothing.
        (json!({ "embed_dtype": "float16", "endianness": "big" }), pooled(true), None, None),
        (
            json!({ "priority": 7, "request_id": "a", "cache_salt": "b", "messages": null }),
            pooled(true),
            None,
            None,
        ),
        (json!({ "mm_processor_kwargs": {}, "chat_template": "c", "user": 7 }), pooled(true), None, None),
    ] {
        let request = asked(options.clone());
        let got = (request.output, request.truncation, request.max_input_length);
        assert_eq!(got, (output, truncation, limit), "{options}");
    }
}

#[test]
fn embeddings_refuse_vllm_s_fields_that_would_change_vectors() {
    let server = Server::start();
    let base64 = json!("base64");
    for (field, value, said) in [
        ("messages", json!([]), "`messages` is not possible here: no chat template is applied"),
        ("add_special_tokens", json!(false), "`add_special_tokens` is false, expected true"),
        ("padding", json!("max_length"), r#"`padding` is "max_length", expected "do_not_pad""#),
        ("padding", json!(true), "boolean `true`, expected a string"),
        ("truncate_prompt_tokens", json!(0), "`truncate_prompt_tokens` is 0, expected 1 to 16, or -1"),
        ("truncate_prompt_tokens", json!(17), "`truncate_prompt_tokens` is 17, expected 1 to 16, or -1"),
        ("truncate_prompt_tokens", json!(1.5), "floating point `1.5`, expected a whole number"),
        ("truncation_side", json!("both"), "unknown variant `both`, expected `left` or `right`"),
        ("embed_dtype", json!("float16"), r#"`embed_dtype` is "float16", expected "float32" for base64"#),
        ("endianness", json!("big"), r#"`endianness` is "big", expected "little" for base64"#),
        ("encoding_format", json!("bytes"), "unknown variant `bytes`, expected `float` or `base64`"),
        ("use_activation", json!(1), "integer `1`, expected a boolean"),
    ] {
        let mut body = json!({ "input": "a", "encoding_format": base64 });
        body[field] = value;
        for path in ["/v1/embeddings", "/embeddings"] {
            assert_openai(&body.to_string(), &server.post(path, body.to_string()), 422, "Validation", said);
        }
    }
    let chat = r#"{"model":"a","messages":[{"role":"user","content":"b"}]}"#;
    let said = "`messages` is not possible here";
    assert_openai("no input", &server.post("/v1/embeddings", chat), 422, "Validation", said);
    let none = server.post("/v1/embeddings", r#"{"model":"a"}"#);
    assert_openai("nothing", &none, 422, "Validation", "missing field `input`");
}
