//! Whole folders of every task behind the routes, against the reference's results: text in, answers out.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use axum::Router;
use serde_json::{Value, json};
use turbo_serve::{
    engine::{
        BatchTokens, Cpu, CpuOptions, DefaultPrompt, Engine, EngineConfig, Layout, Model, OpenOptions,
        Pooling, Task,
    },
    http::{HttpOptions, Metrics, router},
};

use crate::fake::{Reply, Running, assert_tei};

/// The references are of float32 pipelines or float64 models; ours sums in another order, and scores go through an
/// exponential.
const TOLERANCE: f64 = 2e-5;

fn folder(fixture: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data").join(fixture)
}

pub(crate) fn start(fixture: &str, options: OpenOptions) -> Running {
    start_with(fixture, options, EngineConfig::default())
}

fn start_with(fixture: &str, options: OpenOptions, config: EngineConfig) -> Running {
    Running::start(routes_with(fixture, options, config))
}

/// The routes over an engine with the model of that folder.
pub(crate) fn routes(fixture: &str) -> Router {
    routes_with(fixture, OpenOptions::default(), EngineConfig::default())
}

fn routes_with(fixture: &str, options: OpenOptions, config: EngineConfig) -> Router {
    let metrics = Metrics::install().unwrap(); // before an engine holds any
    let engine = engine(fixture, options, config);
    router(Arc::new(engine), metrics, HttpOptions::default())
}

/// The engine with the model of that folder.
pub(crate) fn engine(fixture: &str, options: OpenOptions, config: EngineConfig) -> Engine {
    let device = Cpu::new(CpuOptions::default()).unwrap();
    let model = Model::open(&folder(fixture), device, options).unwrap();
    let config =
        EngineConfig { warm_up: Duration::ZERO, max_batch_tokens: BatchTokens::AtMost(1024), ..config };
    Engine::start(model, &config).unwrap()
}

/// A server of the folder as it is, and the cases of its golden file.
pub(crate) fn serve(fixture: &str) -> (Running, Vec<Value>) {
    serve_in_parts(fixture, EngineConfig::default().max_client_batch_size)
}

/// The same, where a request has at most `limit` inputs: more are asked for in parts.
pub(crate) fn serve_in_parts(fixture: &str, limit: usize) -> (Running, Vec<Value>) {
    let golden: Value =
        serde_json::from_slice(&fs::read(folder(fixture).join("golden.json")).unwrap()).unwrap();
    let cases = golden.get("cases").or(golden.get("sentences")).unwrap().as_array().unwrap().clone();
    assert!(!cases.is_empty());
    let config = EngineConfig { max_client_batch_size: limit, ..EngineConfig::default() };
    (start_with(fixture, OpenOptions::default(), config), cases)
}

#[track_caller]
pub(crate) fn ok(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

#[track_caller]
pub(crate) fn assert_near(got: &Value, expected: f64, of: &Value) {
    let got = got.as_f64().unwrap_or_else(|| panic!("{of}: {got} is no number"));
    assert!((got - expected).abs() < TOLERANCE, "{of}: got {got}, expected {expected}");
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

#[test]
fn a_classifier_scores_texts_and_pairs() {
    let (server, cases) = serve("pipeline-classify");
    let mut batch = Vec::new();
    for case in &cases {
        for (options, scores) in [(json!({}), "softmax"), (json!({ "raw_scores": true }), "none")] {
            let mut body = options;
            body["inputs"] = case["inputs"].clone();
            let answer = ok(&server.post("/predict", body.to_string()));
            let expected = list(&case["scores"][scores]);
            assert_eq!(list(&answer).len(), expected.len());
            for (got, expected) in list(&answer).iter().zip(expected) {
                assert_eq!(got["label"], expected["label"], "{case}");
                assert_near(&got["score"], expected["score"].as_f64().unwrap(), case);
            }
        }
        batch.push(case["inputs"].clone());
    }
    let alone = ok(&server.post("/predict", json!({ "inputs": cases[0]["inputs"] }).to_string()));
    let together = ok(&server.post("/predict", json!({ "inputs": batch }).to_string()));
    assert_eq!((list(&together).len(), &together[0]), (cases.len(), &alone), "the same bits in company");
    let text = cases[0]["inputs"][0].clone();
    let body = json!({ "inputs": text, "parameters": { "function_to_apply": "sigmoid", "top_k": 2 } });
    let answer = ok(&server.post("/pipeline/text-classification", body.to_string()));
    assert_eq!(list(&answer[0]).len(), 2);
    assert_near(&answer[0][0]["score"], cases[0]["scores"]["sigmoid"][0]["score"].as_f64().unwrap(), &body);
    assert_tei(
        "/rerank",
        &server.post("/rerank", r#"{"query":"a","texts":["b"]}"#),
        424,
        "Backend",
        "`/predict`",
    );
}

#[test]
fn a_cross_encoder_ranks_texts() {
    let (server, cases) = serve("tiny-cross-encoder");
    let query = cases[0]["text"][0].clone();
    let of_query: Vec<&Value> = cases.iter().filter(|case| case["text"][0] == query).collect();
    let texts: Vec<&Value> = of_query.iter().map(|case| &case["text"][1]).collect();
    let logits: Vec<f64> = of_query.iter().map(|case| case["pooled"][0].as_f64().unwrap()).collect();
    assert!(texts.len() > 2);
    for raw in [true, false] {
        let body = json!({ "query": query, "texts": texts, "raw_scores": raw, "return_text": true });
        let answer = ok(&server.post("/", body.to_string()));
        let mut before = f64::INFINITY;
        for rank in list(&answer) {
            let index = rank["index"].as_u64().unwrap() as usize;
            let expected = if raw { logits[index] } else { 1.0 / (1.0 + (-logits[index]).exp()) };
            assert_near(&rank["score"], expected, rank);
            assert_eq!(rank["text"], *texts[index]);
            assert!(rank["score"].as_f64().unwrap() <= before, "{answer}");
            before = rank["score"].as_f64().unwrap();
        }
        assert_eq!(list(&answer).len(), texts.len());
    }
    assert_eq!(server.get("/info").json()["model_type"]["reranker"]["id2label"]["0"], "LABEL_0");
    // A query for each of these texts would be 45 GB.
    let body = json!({ "query": "a".repeat(100_000), "texts": vec![""; 450_000] });
    let reply = server.post("/rerank", body.to_string());
    assert_tei("many texts", &reply, 422, "Validation", "batch size 450000 > maximum allowed batch size");
    let metrics = server.get("/metrics");
    assert!(metrics.text().contains("# TYPE te_predict_inference_duration histogram"), "{}", metrics.text());
}

/// It reads a pair as its template writes it, with an instruction to judge by: the folder's, or the server's.
#[test]
fn a_language_model_ranks_texts() {
    let (server, cases) = serve("tiny-logit-score");
    let sigmoid = |case: &Value| 1.0 / (1.0 + (-case["pooled"][0].as_f64().unwrap()).exp());
    for case in &cases {
        let body = json!({ "query": case["text"][0], "texts": [case["text"][1]], "truncate": true });
        assert_near(&ok(&server.post("/rerank", body.to_string()))[0]["score"], sigmoid(case), case);
    }
    let [queries, documents] =
        [0, 1].map(|side| cases.iter().map(|it| &it["text"][side]).collect::<Vec<_>>());
    let body = json!({ "queries": queries, "documents": documents });
    let scores = ok(&server.post("/score", body.to_string()));
    for (score, case) in list(&scores["data"]).iter().zip(&cases) {
        assert_near(&score["score"], sigmoid(case), case);
    }
    let tokens: usize = cases.iter().map(|case| list(&case["input_ids"]).len()).sum();
    assert_eq!(scores["usage"]["prompt_tokens"], tokens);
    let long = json!({ "query": "hello", "texts": ["hello batch ".repeat(40)], "truncate": false });
    assert_tei("a long text", &server.post("/rerank", long.to_string()), 422, "Validation", "at most 128");

    let told = |words: &str| {
        let default_prompt = Some(DefaultPrompt::Text(words.to_owned()));
        let server = start("tiny-logit-score", OpenOptions { default_prompt, ..OpenOptions::default() });
        let body = json!({ "query": cases[0]["text"][0], "texts": [cases[0]["text"][1]] });
        ok(&server.post("/rerank", body.to_string()))[0]["score"].as_f64().unwrap()
    };
    let (same, other) = (told("Is it about the cat?"), told("Does it say hello?"));
    assert!(
        (same - sigmoid(&cases[0])).abs() < TOLERANCE && (other - same).abs() > TOLERANCE,
        "{same} {other}"
    );
    // A request's own instruction works as well, for one pair or many, and other requests have the folder's.
    let [query, document] = [0, 1].map(|side| &cases[0]["text"][side]);
    for (words, expected) in [("Does it say hello?", other), ("Is it about the cat?", same), ("", same)] {
        let body = json!({ "query": query, "documents": vec![document; 40], "instruction": words });
        let answer = ok(&server.post("/v1/rerank", body.to_string()));
        assert_eq!(list(&answer["results"]).len(), 40);
        list(&answer["results"]).iter().for_each(|it| assert_near(&it["relevance_score"], expected, it));
        let body = json!({ "text_1": query, "text_2": document, "instruction": words });
        let answer = ok(&server.post("/score", body.to_string()));
        assert_near(&answer["data"][0]["score"], expected, &answer);
        let body = json!({ "text_1": query, "text_2": document });
        assert_near(&ok(&server.post("/score", body.to_string()))["data"][0]["score"], same, &body);
    }
    // Cut to as many tokens as the request wants, but the end of the template is kept.
    let limits = [json!({}), json!({ "truncate_prompt_tokens": 60 })];
    let tokens = limits.map(|mut body| {
        (body["text_1"], body["text_2"]) = (query.clone(), json!("hello ".repeat(80)));
        body["instruction"] = json!("Does it say hello?");
        ok(&server.post("/score", body.to_string()))["usage"]["prompt_tokens"].clone()
    });
    assert_eq!(tokens, [128, 60]);
    let body = json!({ "text_1": query, "text_2": [document], "instruction": "hello ".repeat(300_000) });
    let reply = server.post("/score", body.to_string());
    let said = "not even the shortest pair fits into the 128 tokens that the model reads: shorten it";
    assert!(reply.status == 422 && reply.text().contains(said), "{}", reply.text());

    let (server, _) = serve("tiny-cross-encoder");
    for (path, mut body) in [
        ("/score", json!({ "queries": "a", "documents": "b" })),
        ("/v1/rerank", json!({ "query": "a", "documents": ["b"] })),
    ] {
        body["instruction"] = json!("Does it say hello?");
        let reply = server.post(path, body.to_string());
        let said = "`instruction` is not possible here: this model has no template of pairs";
        assert!(reply.status == 422 && reply.text().contains(said), "{path}: {}", reply.text());
    }
}

#[test]
fn vllm_s_clients_get_the_scores_that_the_folders_say() {
    let (server, cases) = serve("tiny-cross-encoder");
    let sides = [0, 1].map(|side| cases.iter().map(|case| &case["text"][side]).collect::<Vec<_>>());
    // This model's folder names the identity as its function.
    for mut body in [json!({}), json!({ "use_activation": false })] {
        (body["queries"], body["documents"]) = (json!(sides[0]), json!(sides[1]));
        let answer = ok(&server.post("/score", body.to_string()));
        assert_eq!(list(&answer["data"]).len(), cases.len());
        for (score, case) in list(&answer["data"]).iter().zip(&cases) {
            assert_near(&score["score"], case["pooled"][0].as_f64().unwrap(), case);
        }
        let tokens: usize = cases.iter().map(|case| list(&case["input_ids"]).len()).sum();
        assert_eq!(answer["usage"]["prompt_tokens"], tokens);
    }
    let (server, cases) = serve("pipeline-classify");
    let of_text = |case: &&Value| list(&case["inputs"]).len() == 1;
    let cases: Vec<&Value> = cases.iter().filter(of_text).collect();
    assert!(!cases.is_empty());
    let texts: Vec<&Value> = cases.iter().map(|case| &case["inputs"][0]).collect();
    for (options, scores) in [(json!({}), "softmax"), (json!({ "use_activation": false }), "none")] {
        let mut body = options;
        body["input"] = json!(texts);
        let answer = ok(&server.post("/classify", body.to_string()));
        assert_eq!(list(&answer["data"]).len(), cases.len());
        for (class, case) in list(&answer["data"]).iter().zip(&cases) {
            let mut probs: Vec<f64> = list(&class["probs"]).iter().map(|it| it.as_f64().unwrap()).collect();
            probs.sort_by(|a, b| b.total_cmp(a));
            let expected = list(&case["scores"][scores]);
            assert_eq!(
                (class["num_classes"].as_u64(), &class["label"]),
                (Some(expected.len() as u64), &expected[0]["label"])
            );
            for (got, expected) in probs.iter().zip(expected) {
                assert_near(&json!(got), expected["score"].as_f64().unwrap(), case);
            }
        }
    }
}

#[test]
fn vllm_s_rows_of_tokens_are_those_of_the_reference() {
    let (server, cases) = serve("pipeline-entities-roberta");
    for case in &cases {
        let expected: Vec<f64> = serde_json::from_value(case["logits"].clone()).unwrap();
        for active in [true, false] {
            let body = json!({ "input": case["text"], "use_activation": active });
            let answer = ok(&server.post("/pooling", body.to_string()));
            let rows = list(&answer["data"][0]["data"]);
            assert_eq!(answer["usage"]["prompt_tokens"], rows.len(), "special tokens have rows, too");
            let labels = list(&rows[0]).len();
            assert_eq!(rows.len() * labels, expected.len(), "{}", case["text"]);
            for (row, logits) in rows.iter().zip(expected.chunks(labels)) {
                let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
                for (got, logit) in list(row).iter().zip(logits) {
                    assert_near(got, if active { logit.exp() / sum } else { *logit }, &case["text"]);
                }
            }
        }
    }
}

#[test]
fn a_sparse_encoder_weighs_words() {
    let (server, cases) = serve("tiny-splade");
    let (folder, masked) = ("pipeline-fill-mask-wordpiece", Some(Task::SparseEmbedding));
    for case in &cases {
        let answer = ok(&server.post("/embed_sparse", json!({ "inputs": case["text"] }).to_string()));
        let mut weights = vec![0.0; list(&case["pooled"]).len()];
        for word in list(&answer[0]) {
            weights[word["index"].as_u64().unwrap() as usize] = word["value"].as_f64().unwrap();
            assert_ne!(word["value"], 0.0);
        }
        for (got, expected) in weights.iter().zip(list(&case["pooled"])) {
            assert_near(&json!(got), expected.as_f64().unwrap(), &case["text"]);
        }
    }
    assert_eq!(server.get("/info").json()["model_type"], json!({ "embedding": { "pooling": "splade" } }));
    // Any masked language model is one, when it is asked to be.
    let server = start(folder, OpenOptions { task: masked, ..OpenOptions::default() });
    assert!(!list(&ok(&server.post("/", r#"{"inputs":"the cat"}"#))[0]).is_empty());
}

#[test]
fn dense_modules_and_prompts_of_a_folder_are_used() {
    let (server, cases) = serve("tiny-dense");
    for case in &cases {
        for (normalize, expected) in [(true, &case["embedding"]), (false, &case["pooled"])] {
            let body = json!({ "inputs": case["text"], "normalize": normalize });
            let answer = ok(&server.post("/embed", body.to_string()));
            assert_eq!(list(&answer[0]).len(), list(expected).len(), "the width behind the dense modules");
            for (got, expected) in list(&answer[0]).iter().zip(list(expected)) {
                assert_near(got, expected.as_f64().unwrap(), &case["text"]);
            }
        }
    }
    let embed = |inputs: &str, prompt: Option<&str>| {
        ok(&server.post("/embed", json!({ "inputs": inputs, "prompt_name": prompt }).to_string()))
    };
    assert_eq!(embed("cat", Some("query")), embed("the query: cat", None));
    assert_eq!(embed("cat", Some("document")), embed("cat", None));
    assert_ne!(embed("cat", Some("query")), embed("cat", None));
    let reply = server.post("/embed", r#"{"inputs":"cat","prompt_name":"x"}"#);
    assert_tei("prompt", &reply, 422, "Validation", "this model's prompts are `document`, `query`");
    let of_type = |text: &str, input_type: &str| {
        let body = json!({ "texts": [text], "input_type": input_type });
        ok(&server.post("/v2/embed", body.to_string()))["embeddings"]["float"].clone()
    };
    assert_eq!(of_type("cat", "search_query"), embed("cat", Some("query")));
    assert_eq!(of_type("cat", "search_document"), embed("cat", Some("document")));
    let named = turbo_serve::engine::DefaultPrompt::Named("query".into());
    let defaulted =
        start("tiny-dense", OpenOptions { default_prompt: Some(named), ..OpenOptions::default() });
    let answer = ok(&defaulted.post("/embed", r#"{"inputs":"cat"}"#));
    assert_eq!(answer, embed("cat", Some("query")));
    // the default prompt is for texts without a type
    for (input_type, prompt) in
        [(json!(null), "query"), (json!("search_query"), "query"), (json!("search_document"), "document")]
    {
        let body = json!({ "texts": ["cat"], "input_type": input_type });
        let vectors = ok(&defaulted.post("/v2/embed", body.to_string()));
        assert_eq!(vectors["embeddings"]["float"], embed("cat", Some(prompt)), "{input_type}");
    }
    let like = json!({ "inputs": { "source_sentence": "cat", "sentences": ["cat", "the dog sat"] } });
    let answer = ok(&server.post("/similarity", like.to_string()));
    assert_near(&answer[0], 1.0, &like);
    assert!(answer[1].as_f64().unwrap() < 1.0, "{answer}");
}

fn server_limit(server: &Running) -> usize {
    server.get("/info").json()["max_input_length"].as_u64().unwrap() as usize
}

#[test]
fn tokens_are_those_of_the_tokenizer() {
    let (server, cases) = serve("tiny-dense");
    for case in &cases {
        let text = case["text"].as_str().unwrap();
        let answer = ok(&server.post("/tokenize", json!({ "inputs": text }).to_string()));
        let ids: Vec<Value> = list(&answer[0]).iter().map(|token| token["id"].clone()).collect();
        // Longer texts are cut for the model, but not here.
        if list(&case["input_ids"]).len() < server_limit(&server) {
            assert_eq!(json!(ids), case["input_ids"]);
        }
        for token in list(&answer[0]) {
            if token["special"] == false {
                let [start, stop] = ["start", "stop"].map(|side| token[side].as_u64().unwrap() as usize);
                assert_eq!(token["text"], text[start..stop], "{token}");
            }
        }
        let decoded = ok(&server.post("/decode", json!({ "ids": ids }).to_string()));
        assert!(!decoded[0].as_str().unwrap().contains("[CLS]"), "{decoded}");
    }
}

#[test]
fn every_layout_answers_alike() {
    let answers = [Layout::Packed, Layout::Padded].map(|layout| {
        let options = || OpenOptions { layout, ..OpenOptions::default() };
        let classifier = start("pipeline-classify", options());
        let masked = start("pipeline-fill-mask-wordpiece", options());
        let inputs = json!({ "inputs": [["the cat"], ["the cat sat on the mat", "a dog"], ["hello"]] });
        let gaps = json!({ "inputs": "the [MASK] sat on the [MASK]" });
        let mean = Some(Pooling::Mean.into());
        let vectors = start("pipeline-classify", OpenOptions { task: mean, ..options() });
        [
            ok(&classifier.post("/predict", inputs.to_string())),
            ok(&masked.post("/", gaps.to_string())),
            ok(&vectors.post("/embed", r#"{"inputs":["the cat sat","hello"]}"#)),
        ]
    });
    assert_eq!(answers[0], answers[1], "the bits of a row do not depend on the layout");
}
