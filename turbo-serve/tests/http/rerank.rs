//! Ranking in Cohere's and Jina's form.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use turbo_serve::{
    engine::{
        DecodeRequest, EngineError, EngineInfo, Health, Infer, InferRequest, InferResponse, Input, Pending,
        TokenizeRequest, Tokenized,
    },
    http::{HttpOptions, Metrics, router},
    models::Models,
};

use crate::fake::{
    Fake, Reply, Running, Server, assert_tei, classifier, embedding, empty, invalid, refuses, row, wait_until,
};

fn server() -> Server {
    Server::with_model(classifier(["LABEL_0"]))
}

/// The score of a document, by the textbook.
fn score(document: &str) -> f64 {
    let logit = f64::from(row(&Input::Pair("q".into(), document.into()), 0)[0]);
    1.0 / (1.0 + (-logit).exp())
}

/// Checks an error of these routes.
#[track_caller]
fn assert_refused(what: &str, reply: &Reply, status: u16, error_type: &str, said: &str) {
    let body = reply.json();
    assert_eq!((reply.status, &body["type"]), (status, &json!(error_type)), "{what}: {body}");
    assert_eq!(body["code"], status, "{what}: {body}");
    assert_eq!(body["message"], body["detail"], "{what}: {body}");
    assert!(body["message"].as_str().unwrap().contains(said), "{what}: {body} does not say {said:?}");
    assert_eq!(body.as_object().unwrap().len(), 4, "{what}: {body}");
}

#[test]
fn documents_are_ordered_by_their_score() {
    let server = server();
    let texts = ["c", "a", "d", "b", "a"];
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by(|&a, &b| score(texts[b]).total_cmp(&score(texts[a])));
    let objects = json!([{"text": "c"}, "a", {"text": "d", "title": "x"}, "b", "a"]);
    for (path, documents, options, count, returned) in [
        ("/v1/rerank", json!(texts), json!({}), 5, false),
        ("/v2/rerank", json!(texts), json!({"top_n": 2, "model": "rerank-v3.5"}), 2, false),
        ("/rerank", objects.clone(), json!({"return_documents": true, "texts": null}), 5, true),
        ("/", objects.clone(), json!({"top_n": 99, "return_documents": false}), 5, false),
        (
            "/v1/rerank",
            objects,
            json!({"return_documents": true, "top_n": 1, "rank_fields": ["text"]}),
            1,
            true,
        ),
    ] {
        let mut body = options;
        (body["query"], body["documents"]) = (json!("q"), documents);
        let reply = server.post(path, body.to_string());
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.header("x-compute-characters"), "10");
        let answer = reply.json();
        let results = answer["results"].as_array().unwrap();
        assert_eq!(results.len(), count, "{body}");
        for (result, &index) in results.iter().zip(&order) {
            assert_eq!(result["index"], index, "{answer}");
            let got = result["relevance_score"].as_f64().unwrap();
            assert!((got - score(texts[index])).abs() < 1e-6, "{result}, expected {}", score(texts[index]));
            let document = returned.then(|| json!({ "text": texts[index] }));
            assert_eq!(result.get("document"), document.as_ref(), "{result}");
        }
        // the fake's tokens of a pair: a byte each, and two
        let tokens = texts.len() * 4;
        assert_eq!(answer["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
        assert_eq!(answer["meta"]["tokens"], json!({ "input_tokens": tokens }));
        assert_eq!(answer["meta"]["billed_units"], json!({ "search_units": 1 }));
        assert_eq!((&answer["model"], &answer["object"]), (&json!("fake"), &json!("list")));
    }
}

#[test]
fn more_documents_than_a_request_may_have_are_ranked_in_parts() {
    let server = server();
    // The fake takes eight at a time.
    let documents: Vec<String> = (0..1000).map(|number| format!("{number}")).collect();
    let mut order: Vec<usize> = (0..documents.len()).collect();
    order.sort_by(|&a, &b| score(&documents[b]).total_cmp(&score(&documents[a])).then(a.cmp(&b)));
    for path in ["/v1/rerank", "/v2/rerank", "/rerank"] {
        let body = json!({ "query": "q", "documents": documents, "max_tokens_per_doc": 2, "top_n": 50 });
        let long = documents.iter().filter(|document| document.len() > 2).count();
        assert!(long > 8, "they are looked at in parts, too");
        let reply = server.post(path, body.to_string());
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.json()["results"].as_array().unwrap().len(), 50);
        let body = json!({ "query": "q", "documents": documents });
        let reply = server.post(path, body.to_string());
        let results: Vec<Value> = reply.json()["results"].as_array().unwrap().clone();
        let got: Vec<f64> =
            results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
        for ((result, got), &index) in results.iter().zip(got).zip(&order) {
            assert!((got - score(&documents[index])).abs() < 1e-6, "{result}, expected {index}");
        }
        let tokens: usize = documents.iter().map(|document| document.len() + 3).sum();
        assert_eq!(reply.json()["usage"]["total_tokens"], tokens);
    }
    // text-embeddings-inference's form keeps its own limit.
    let nine = json!({ "query": "q", "texts": vec!["a"; 9] }).to_string();
    let said = "batch size 9 > maximum allowed batch size 8";
    assert_tei("nine", &server.post("/rerank", nine), 422, "Validation", said);
}

/// Sends a request that takes at least 600 ms, and stops the server once that has begun: it stops after it has
/// answered.
#[track_caller]
fn assert_stops_behind(body: &Value, has_begun: impl Fn(&Fake) -> bool) {
    let engine = Arc::new(Fake::of(classifier(["LABEL_0"]), Health::Ready));
    let models = Models::single(Arc::clone(&engine));
    let metrics = Metrics::install().unwrap();
    let server = Running::start(router(models.clone(), metrics, HttpOptions::default()));
    std::thread::scope(|scope| {
        let began = Instant::now();
        let asked = scope.spawn(|| server.post("/v1/rerank", body.to_string()));
        wait_until("the request", || has_begun(&engine));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(models.stop());
        assert!(began.elapsed() >= Duration::from_millis(600), "it stopped after {:?}", began.elapsed());
        assert_eq!(asked.join().unwrap().status, 200);
        let refused = server.post("/v1/rerank", r#"{"query":"q","documents":["a"]}"#);
        assert_refused("stopped", &refused, 503, "Unhealthy", "server is stopping");
    });
}

#[test]
fn a_server_stops_when_the_last_part_is_ranked() {
    // Each of three parts takes 300 ms, and two run at a time: the last one is submitted when the server is stopping.
    let parts = json!({ "query": "slow", "documents": vec!["a"; 24] });
    assert_stops_behind(&parts, |engine| engine.seen.lock().unwrap().is_some());
    // Two parts are cut, one after the other, and ranked when the server is stopping.
    let cut = json!({ "query": "q", "documents": vec!["slow"; 16], "max_tokens_per_doc": 1 });
    assert_stops_behind(&cut, |engine| engine.tokenizing.load(SeqCst) > 0);
}

/// Refuses every second request.
struct Crowded {
    fake: Fake,
    /// Requests so far.
    came: AtomicUsize,
}

impl Crowded {
    fn answer<'a, T: Send + 'a>(&self, answer: Pending<'a, T>) -> Pending<'a, T> {
        let retry_after = Duration::from_secs(1);
        match self.came.fetch_add(1, SeqCst) % 2 {
            0 => answer,
            _ => Box::pin(async move { Err(EngineError::Overloaded { retry_after }) }),
        }
    }
}

impl Infer for Crowded {
    fn info(&self) -> &EngineInfo {
        self.fake.info()
    }

    fn infer(&self, request: InferRequest) -> Pending<'_, InferResponse> {
        self.answer(self.fake.infer(request))
    }

    fn tokenize(&self, request: TokenizeRequest) -> Pending<'_, Vec<Tokenized>> {
        self.answer(self.fake.tokenize(request))
    }

    fn decode(&self, request: DecodeRequest) -> Pending<'_, Vec<String>> {
        self.fake.decode(request)
    }

    fn health(&self) -> Health {
        self.fake.health()
    }
}

#[test]
fn documents_that_were_begun_to_be_cut_wait_for_room() {
    // Two parts are cut, and then ranked.
    let body = json!({ "query": "q", "documents": vec!["abc"; 16], "max_tokens_per_doc": 1 }).to_string();
    for (came, status) in [(0, 200), (1, 429)] {
        let fake = Fake::of(classifier(["LABEL_0"]), Health::Ready);
        let engine: Arc<dyn Infer> = Arc::new(Crowded { fake, came: AtomicUsize::new(came) });
        let server = Running::start(router(engine, Metrics::install().unwrap(), HttpOptions::default()));
        let reply = server.post("/v1/rerank", &body);
        assert_eq!(reply.status, status, "{}", reply.text());
    }
}

#[test]
fn answers_have_names_of_their_own() {
    let server = server();
    let id = || server.post("/v2/rerank", r#"{"query":"q","documents":["a"]}"#).json()["id"].clone();
    let (first, second) = (id(), id());
    assert!(
        first.as_str().is_some_and(|id| id.starts_with("rerank-")) && first != second,
        "{first} {second}"
    );
}

#[test]
fn documents_are_cut_to_the_tokens_that_are_asked_for() {
    let server = server();
    for (documents, limit, expected) in [
        (json!(["abcdef", "ab", "é", "aéb"]), 3, ["abc", "ab", "é", "aéb"]),
        (json!(["abcdef", "ab", "é", "aéb"]), 1, ["a", "a", "é", "a"]),
        (json!(["abcdef", "ab", "é", "aéb"]), 2, ["ab", "ab", "é", "aé"]),
        (json!(["ﷺab", "abcdef", "a", "ﷺ"]), 5, ["ﷺ", "abcde", "a", "ﷺ"]),
    ] {
        let body = json!({
            "query": "q", "documents": documents, "max_tokens_per_doc": limit, "return_documents": true,
        });
        let reply = server.post("/v2/rerank", body.to_string()).json();
        let seen = server.engine.seen.lock().unwrap().take().unwrap();
        let expected_pairs = expected.map(|text| Input::Pair("q".into(), text.into()));
        assert_eq!(seen.inputs, expected_pairs, "{limit}");
        let whole: Vec<&Value> = reply["results"].as_array().unwrap().iter().collect();
        assert!(whole.iter().all(
            |result| result["document"]["text"] == documents[result["index"].as_u64().unwrap() as usize]
        ));
    }
}

#[test]
fn what_is_wrong_is_told_in_the_words_of_who_asks() {
    let server = server();
    let many = json!({ "query": "q", "documents": vec!["a"; 1001] }).to_string();
    let both = ["/v1/rerank", "/v2/rerank"];
    for (body, (status, error_type, said)) in [
        ("{", (400, "Validation", "body is not JSON")),
        ("[]", invalid("expected a JSON object")),
        (r#"{"query":"q"}"#, invalid("missing field `documents`")),
        (r#"{"query":"q","texts":["a"]}"#, invalid("missing field `documents`")),
    ] {
        for path in both {
            assert_refused(&format!("{path} {body}"), &server.post(path, body), status, error_type, said);
        }
    }
    for (body, (status, error_type, said)) in [
        (r#"{"documents":["a"]}"#, invalid("missing field `query`")),
        (r#"{"query":"q","documents":"a"}"#, invalid("expected a list of texts, or of objects")),
        (r#"{"query":"q","documents":["a",7]}"#, invalid("with a field `text`, at [1]")),
        (r#"{"query":"q","documents":[]}"#, empty("`documents` cannot be empty")),
        (r#"{"query":"q","documents":["a"],"top_n":0}"#, invalid("`top_n` is 0, expected at least 1")),
        (
            r#"{"query":"q","documents":["a"],"max_tokens_per_doc":0}"#,
            invalid("`max_tokens_per_doc` is 0, expected at least 1"),
        ),
        (
            r#"{"query":"q","documents":[{"text":"a","title":"b"}],"rank_fields":["title","text"]}"#,
            invalid(r#"`rank_fields` is ["title", "text"], expected ["text"]"#),
        ),
        (
            r#"{"query":"q","documents":["a"],"rank_fields":[]}"#,
            invalid(r#"`rank_fields` is [], expected ["text"]"#),
        ),
        (
            &many,
            invalid(
                "batch size 1001 > maximum allowed batch size 1000: send fewer documents at a time, or raise \
                 `--max-rerank-documents`",
            ),
        ),
        (
            r#"{"query":"q","documents":["a"],"chat_template_kwargs":{}}"#,
            invalid(
                "`chat_template_kwargs` is not possible here: a template gets what the model's folder says",
            ),
        ),
        (
            r#"{"query":"q","documents":["a"],"padding":"max_length"}"#,
            invalid(r#"`padding` is "max_length", expected "do_not_pad""#),
        ),
        (r#"{"query":"overloaded","documents":["a"]}"#, (429, "Overloaded", "overloaded")),
        (r#"{"query":"nan","documents":["a"]}"#, (424, "Backend", "has the value NaN")),
        (
            r#"{"query":"q","documents":["tokenizer"],"max_tokens_per_doc":2}"#,
            (422, "Tokenizer", "of no use"),
        ),
    ] {
        for path in both.into_iter().chain(["/rerank", "/"]) {
            assert_refused(&format!("{path} {body}"), &server.post(path, body), status, error_type, said);
        }
    }
    for path in both {
        assert_refused(path, &server.get(path), 405, "Validation", "does not take GET");
        let text = server.send("POST", path, &[("content-type", "text/plain")], "{}");
        assert_refused(path, &text, 415, "Validation", "expected content-type");
    }
    refuses(&server, "/rerank", [(r#"{"texts":["a"],"documents":[]}"#, invalid("`query`"))]);
}

#[test]
fn other_models_say_what_they_are_for() {
    let server = Server::with_model(embedding());
    for path in ["/v1/rerank", "/v2/rerank", "/rerank"] {
        let reply = server.post(path, r#"{"query":"q","documents":["a"]}"#);
        let said = format!("`{path}` needs a sequence classifier with one label");
        assert_refused(path, &reply, 424, "Backend", &said);
    }
}
