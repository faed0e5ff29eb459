//! The routes of text-embeddings-inference beside `/embed`: what comes back, and which model answers where.

use serde_json::{Value, json};
use turbo_serve::engine::{
    Input, MaskToken, ModelInfo, OutputKind, Prompts, RowLens, ScoreFunction, Task, Truncation,
};

use crate::{
    fake::{HIDDEN, Server, assert_tei, classifier, embedding, row, sparse},
    statuses::assert_openai,
};

const LABELS: [&str; 3] = ["sad", "glad", "\"mad\""];

fn pair(first: &str, second: &str) -> Input {
    Input::Pair(first.into(), second.into())
}

fn text(text: &str) -> Input {
    Input::Text(text.into())
}

/// `[{score, label}]` of the fake's logits, by the textbook.
fn predictions(input: &Input, of: impl Fn(&[f64]) -> Vec<f64>) -> Vec<(f64, &'static str)> {
    let logits: Vec<f64> = row(input, 0)[..LABELS.len()].iter().map(|&logit| logit.into()).collect();
    let mut all: Vec<_> = of(&logits).into_iter().zip(LABELS).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
    logits.iter().map(|logit| logit.exp() / sum).collect()
}

fn sigmoid(logits: &[f64]) -> Vec<f64> {
    logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect()
}

#[track_caller]
fn assert_predictions(got: &Value, expected: &[(f64, &str)]) {
    assert_eq!(got.as_array().unwrap().len(), expected.len(), "{got}");
    for (got, (score, label)) in got.as_array().unwrap().iter().zip(expected) {
        assert_eq!(got["label"], *label, "{got}");
        assert!((got["score"].as_f64().unwrap() - score).abs() < 1e-6, "{got}, expected {score}");
        assert_eq!(got.as_object().unwrap().len(), 2, "{got}");
    }
}

#[test]
fn predict_scores_labels_the_best_first() {
    let server = Server::with_model(classifier(LABELS));
    for path in ["/predict", "/", "/invocations"] {
        for (inputs, input) in
            [(json!("a"), text("a")), (json!(["b"]), text("b")), (json!(["a", "b"]), pair("a", "b"))]
        {
            let reply = server.post(path, json!({ "inputs": inputs }).to_string());
            assert_eq!(reply.status, 200, "{}", reply.text());
            assert_predictions(&reply.json(), &predictions(&input, softmax));
        }
    }
    let reply = server.post("/predict", r#"{"inputs":[["a"],["a","b"]],"raw_scores":true}"#);
    let answer = reply.json();
    assert_eq!(answer.as_array().unwrap().len(), 2);
    for (got, input) in answer.as_array().unwrap().iter().zip([text("a"), pair("a", "b")]) {
        assert_predictions(got, &predictions(&input, <[f64]>::to_vec));
    }
    assert_eq!((reply.header("x-compute-characters"), reply.header("x-compute-type")), ("3", "cpu"));
    let many = ModelInfo { score_function: ScoreFunction::Sigmoid, ..classifier(LABELS) };
    let reply = Server::with_model(many).post("/predict", r#"{"inputs":"a"}"#);
    assert_predictions(&reply.json(), &predictions(&text("a"), sigmoid));
}

#[test]
fn rerank_orders_texts_by_their_score() {
    let server = Server::with_model(classifier(["LABEL_0"]));
    let texts = ["c", "a", "d", "b", "a"];
    let logit = |text: &str| f64::from(row(&pair("q", text), 0)[0]);
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by(|&a, &b| logit(texts[b]).total_cmp(&logit(texts[a])));
    for (options, scored) in [
        (json!({}), sigmoid as fn(&[f64]) -> Vec<f64>),
        (json!({ "raw_scores": true }), <[f64]>::to_vec),
        (json!({ "return_text": true, "raw_scores": null }), sigmoid),
    ] {
        let mut body = options.clone();
        (body["query"], body["texts"]) = (json!("q"), json!(texts));
        for path in ["/rerank", "/"] {
            let reply = server.post(path, body.to_string());
            assert_eq!(reply.header("x-compute-characters"), "10");
            let answer = reply.json();
            for (got, &index) in answer.as_array().unwrap().iter().zip(&order) {
                assert_eq!(got["index"], index, "{answer}");
                let score = scored(&[logit(texts[index])])[0];
                assert!((got["score"].as_f64().unwrap() - score).abs() < 1e-6, "{got}, expected {score}");
                let wanted = options.get("return_text").map(|_| json!(texts[index]));
                assert_eq!(got.get("text"), wanted.as_ref(), "{got}");
            }
            assert_eq!(answer.as_array().unwrap().len(), texts.len());
        }
    }
    // A classifier of one label answers it, too.
    assert_eq!(server.post("/predict", r#"{"inputs":"a"}"#).json()[0]["label"], "LABEL_0");
}

#[test]
fn logits_that_a_folder_calls_scores_are_still_between_0_and_1() {
    let identity = |model| ModelInfo { score_function: ScoreFunction::Identity, ..model };
    let server = Server::with_model(identity(classifier(["LABEL_0"])));
    let reply = server.post("/rerank", r#"{"query":"q","texts":["a"]}"#).json();
    let expected = sigmoid(&[row(&pair("q", "a"), 0)[0].into()])[0];
    assert!((reply[0]["score"].as_f64().unwrap() - expected).abs() < 1e-6, "{reply}");
    let reply = Server::with_model(identity(classifier(LABELS))).post("/predict", r#"{"inputs":"a"}"#);
    assert_predictions(&reply.json(), &predictions(&text("a"), softmax));
}

#[test]
fn sparse_vectors_have_their_words() {
    let server = Server::with_model(sparse());
    for path in ["/embed_sparse", "/"] {
        let answer = server.post(path, r#"{"inputs":["a",[1,2]]}"#).json();
        for (got, input) in answer.as_array().unwrap().iter().zip([text("a"), Input::Ids(vec![1, 2])]) {
            let expected: Vec<Value> = row(&input, 0)
                .iter()
                .enumerate()
                .map(|(index, value)| json!({ "index": index, "value": value }))
                .collect();
            assert_eq!(got.as_array().unwrap().len(), HIDDEN);
            for (got, expected) in got.as_array().unwrap().iter().zip(&expected) {
                assert_eq!(got["index"], expected["index"]);
                assert_eq!(
                    got["value"].as_f64().map(|x| x as f32),
                    expected["value"].as_f64().map(|x| x as f32)
                );
            }
        }
    }
    let seen = server.engine.seen.lock().unwrap().take().unwrap();
    assert_eq!(seen.output, OutputKind::RAW);
}

#[test]
fn similarity_compares_the_source_with_each_sentence() {
    let server = Server::start();
    let body = json!({ "inputs": { "source_sentence": "a", "sentences": ["a", "b"] } });
    let answer: Vec<f32> =
        serde_json::from_slice(&server.post("/similarity", body.to_string()).body).unwrap();
    let (a, b) = (row(&text("a"), 0), row(&text("b"), 0));
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f32>();
    for (got, expected) in answer.iter().zip([dot(&a, &a), dot(&a, &b)]) {
        assert!((got - expected.clamp(-1.0, 1.0)).abs() < 1e-6, "{answer:?}");
    }
    let seen = server.engine.seen.lock().unwrap().take().unwrap();
    assert_eq!(
        seen.output,
        OutputKind::Pooled { normalize: true, dimensions: None },
        "the fake does not normalise"
    );
}

#[test]
fn the_root_compares_sentences_where_its_model_gives_vectors() {
    let sentences = json!({ "inputs": { "source_sentence": "a", "sentences": ["a", "b"] } });
    for model in [embedding(), sparse()] {
        let server = Server::with_model(model);
        let expected = server.post("/similarity", sentences.to_string()).json();
        assert_eq!(expected.as_array().map(Vec::len), Some(2), "{expected}");
        for path in ["/", "/invocations", "/models/fake"] {
            let reply = server.post(path, sentences.to_string());
            assert_eq!((reply.status, &reply.json()), (200, &expected), "{path}");
        }
        let reply = server.post("/vertex", json!({ "instances": [sentences] }).to_string());
        assert_eq!((reply.status, reply.json()), (200, json!({ "predictions": [expected] })));
        for (inputs, said) in [
            (json!({ "sentences": ["a"] }), "map, expected a text, a list of token ids"),
            (json!({ "source_sentence": "a" }), "missing field `sentences`"),
        ] {
            let reply = server.post("/", json!({ "inputs": inputs }).to_string());
            assert_tei(&inputs.to_string(), &reply, 422, "Validation", said);
        }
    }
}

#[test]
fn labels_of_a_clients_own_are_refused() {
    let server = Server::with_model(classifier(["sad", "glad"]));
    let said = "`candidate_labels` is not possible: this model scores its own labels, `sad`, `glad`; ";
    for path in ["/", "/invocations", "/predict", "/pipeline/text-classification"] {
        let ask = |parameters: Value| {
            server.post(path, json!({ "inputs": "a", "parameters": parameters }).to_string())
        };
        for labels in [json!(["refund", "repair"]), json!("refund, repair")] {
            let reply = ask(json!({ "candidate_labels": labels, "multi_label": true }));
            assert_tei(path, &reply, 422, "Validation", said);
        }
        for parameters in [json!(null), json!({}), json!({ "candidate_labels": null, "multi_label": true })] {
            assert_eq!(ask(parameters.clone()).status, 200, "{path} {parameters}");
        }
    }
}

#[test]
fn truncation_and_prompts_reach_the_engine() {
    let named = [("query".to_owned(), "query: ".to_owned())];
    let prompts = Prompts { named: named.into(), default: None };
    let model = ModelInfo { prompts, ..embedding() };
    let (server, ranks) = (Server::with_model(model), Server::with_model(classifier(["LABEL_0"])));
    let scores = Server::with_model(classifier(LABELS));
    let (left, off) = (Some(Truncation::Left), Some(Truncation::Off));
    let sentences = json!({ "source_sentence": "a", "sentences": ["b"] });
    for (server, path, body, truncation, prompt) in [
        (&server, "/embed", json!({"inputs": "a", "prompt_name": "query"}), None, Some("query")),
        (
            &server,
            "/embed_all",
            json!({"inputs": "a", "prompt_name": "query", "truncate": false}),
            off,
            Some("query"),
        ),
        (
            &server,
            "/similarity",
            json!({"inputs": sentences, "parameters": {"truncation_direction": "left", "prompt_name": "query"}}),
            left,
            Some("query"),
        ),
        (&server, "/similarity", json!({"inputs": sentences, "parameters": {"truncate": false}}), off, None),
        (&scores, "/predict", json!({"inputs": "a", "truncate": false}), off, None),
        (&scores, "/predict", json!({"inputs": "a", "truncation_direction": "Left"}), left, None),
        (
            &ranks,
            "/rerank",
            json!({"query": "q", "texts": ["a"], "truncation_direction": "left"}),
            left,
            None,
        ),
    ] {
        let reply = server.post(path, body.to_string());
        assert_eq!(reply.status, 200, "{path} {body}: {}", reply.text());
        let seen = server.engine.seen.lock().unwrap().take().unwrap();
        assert_eq!(
            (seen.truncation, seen.prompt_name),
            (truncation, prompt.map(str::to_owned).into()),
            "{path} {body}"
        );
    }
    let reply = server.post("/embed", r#"{"inputs":"a","prompt_name":"passage"}"#);
    assert_tei(
        "passage",
        &reply,
        422,
        "Validation",
        "`prompt_name` is `passage`, this model's prompts are `query`",
    );
    let reply =
        server.post("/tokenize", r#"{"inputs":"a","prompt_name":"query","add_special_tokens":false}"#).json();
    assert_eq!((&reply[0][0]["text"], reply[0].as_array().unwrap().len()), (&json!("q"), 8), "{reply}");
}

#[test]
fn tokenize_gives_each_token_its_place() {
    let server = Server::start();
    let expected = json!([[
        {"id": 94, "text": "<^>", "special": true, "start": null, "stop": null},
        {"id": 97, "text": "a", "special": false, "start": 0, "stop": 1},
        {"id": 233, "text": "é", "special": false, "start": 1, "stop": 3},
        {"id": 36, "text": "<$>", "special": true, "start": null, "stop": null},
    ]]);
    assert_eq!(server.post("/tokenize", r#"{"inputs":"aé"}"#).json(), expected);
    let plain = server.post("/tokenize", r#"{"inputs":["aé",""],"add_special_tokens":false}"#).json();
    assert_eq!(plain, json!([[expected[0][1], expected[0][2]], []]));
    // Far more than an input of the model may have.
    let long = json!({ "inputs": "x".repeat(5000) }).to_string();
    assert_eq!(server.post("/tokenize", long).json()[0].as_array().unwrap().len(), 5002);
}

#[test]
fn decode_gives_the_text_back() {
    let server = Server::start();
    for (ids, skip, expected) in [
        (json!([94, 97, 233, 36]), None, json!(["aé"])),
        (json!([[94, 97, 36], [97]]), Some(false), json!(["^a$", "a"])),
        (json!([[97], [98]]), Some(true), json!(["a", "b"])),
    ] {
        let body = json!({ "ids": ids, "skip_special_tokens": skip });
        assert_eq!(server.post("/decode", body.to_string()).json(), expected, "{body}");
    }
}

/// A model of every task, and the route that `/` leads to.
fn models() -> [(ModelInfo, &'static str); 7] {
    let task = |task| ModelInfo {
        task,
        rows: RowLens { pooled: None, tokens: None, selected: None },
        ..embedding()
    };
    [
        (embedding(), "/embed"),
        (sparse(), "/embed_sparse"),
        (classifier(LABELS), "/predict"),
        (classifier(["LABEL_0"]), "/rerank"),
        (task(Task::TokenClassification), "/pipeline/token-classification"),
        (task(Task::QuestionAnswering), "/pipeline/question-answering"),
        (task(Task::MaskedLm), "/pipeline/fill-mask"),
    ]
}

#[test]
fn the_wrong_model_says_which_route_to_use() {
    let question = json!({ "question": "a", "context": "b", "source_sentence": "a", "sentences": ["b"] });
    for (model, main) in models() {
        let server = Server::with_model(model.clone());
        for (path, also) in [
            ("/embed", vec!["/embed_sparse"]),
            ("/embed_all", vec!["/embed"]),
            ("/embed_sparse", vec![]),
            ("/similarity", vec!["/embed", "/embed_sparse"]),
            ("/predict", vec!["/rerank"]),
            ("/rerank", vec![]),
            ("/pipeline/feature-extraction", vec!["/embed", "/embed_sparse"]),
            ("/pipeline/sentence-similarity", vec!["/embed", "/embed_sparse"]),
            ("/pipeline/text-classification", vec!["/predict", "/rerank"]),
            ("/pipeline/token-classification", vec![]),
            ("/pipeline/question-answering", vec![]),
            ("/pipeline/fill-mask", vec![]),
        ] {
            if path == main || also.contains(&main) {
                continue;
            }
            let inputs = match path {
                "/similarity" | "/pipeline/sentence-similarity" | "/pipeline/question-answering" => {
                    question.clone()
                }
                _ => json!("a"),
            };
            let body = json!({ "inputs": inputs, "query": "q", "texts": ["a"] });
            let reply = server.post(path, body.to_string());
            let said = format!("and this model is for {}: use `{main}`", model.task);
            assert_tei(&format!("{path} of {main}"), &reply, 424, "Backend", &said);
            assert_tei(path, &reply, 424, "Backend", &format!("`{path}` needs a"));
        }
        if main != "/embed" && main != "/embed_sparse" {
            for path in ["/v1/embeddings", "/embeddings"] {
                let reply = server.post(&format!("/models/fake{path}"), r#"{"input":"a"}"#);
                let said = format!("`{path}` needs an embedding model, and this");
                assert_openai(path, &reply, 424, "Backend", &said);
            }
        }
    }
    let metrics = Server::start().get("/metrics");
    assert!(metrics.text().contains(r#"te_request_failure{err="model_type"}"#), "{}", metrics.text());
}

#[test]
fn info_says_what_the_model_is_for() {
    let labels = json!({
        "id2label": {"0": "sad", "1": "glad", "2": "\"mad\""},
        "label2id": {"sad": 0, "glad": 1, "\"mad\"": 2},
    });
    let one = json!({ "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0} });
    let task = |task| ModelInfo { task, ..classifier(LABELS) };
    let mask = MaskToken { id: 103, text: "[MASK]".into() };
    for (model, expected) in [
        (sparse(), json!({ "embedding": { "pooling": "splade" } })),
        (classifier(LABELS), json!({ "classifier": labels })),
        (classifier(["LABEL_0"]), json!({ "reranker": one })),
        (task(Task::TokenClassification), json!({ "token_classifier": labels })),
        (task(Task::QuestionAnswering), json!({ "question_answering": {} })),
        (
            ModelInfo { mask_token: Some(mask), ..task(Task::MaskedLm) },
            json!({ "masked_lm": { "mask_token": "[MASK]" } }),
        ),
    ] {
        let model = ModelInfo { sha: Some("abc".into()), ..model };
        let info = Server::with_model(model).get("/info").json();
        assert_eq!((&info["model_type"], &info["model_sha"]), (&expected, &json!("abc")));
    }
}
