//! Ensembles: what is one request to them, and what their models are asked.

use std::sync::Arc;

use serde_json::{Value, json};
use tonic::Code;
use turbo_serve::{
    engine::{Health, Truncation},
    grpc::proto::tei::rerank_client::RerankClient,
    models::{
        Declared,
        ensemble::{Does, Ensemble, QUERY, Step, TEXTS},
    },
};

use super::{Several, call, declared, known, rerank, search, to_rank};
use crate::{
    fake::{Fake, classifier, embedding, wait_until},
    grpc::channel,
    statuses::assert_openai,
};

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
        let mut client = RerankClient::new(channel(&server.running).await);
        let status = client.rerank_stream(call("search", to_rank())).await.unwrap_err();
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
