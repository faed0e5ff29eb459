//! Which model answers to a name in a path, a body or a call, and how names that there are not are refused.

use serde_json::{Value, json};
use tonic::Code;
use turbo_serve::grpc::proto::tei::{InfoRequest, info_client::InfoClient};

use super::{Several, UNLOADED, assert_openai_404, call, rerank, search};
use crate::{
    fake::{HIDDEN, Server, assert_tei},
    grpc::channel,
    statuses::assert_openai,
};

#[test]
fn a_path_leads_to_its_model_and_none_to_the_default() {
    let server = Several::start();
    for (path, model_id) in [
        ("/info", "embedder/2"),
        ("/models/embedder/info", "embedder/2"),
        ("/models/org%2Fembedder/info", "embedder/2"),
        ("/models/embedder/versions/1/info", "embedder/1"),
        ("/models/embedder/versions/latest/info", "embedder/2"),
        ("/models/embedder%2F1/info", "embedder/1"),
        ("/models/org/embedder/info", "embedder/2"),
        ("/models/org/embedder/1/info", "embedder/1"),
        ("/models/org/embedder/versions/1/info", "embedder/1"),
        ("/models/ranker/info", "ranker/1"),
    ] {
        let reply = server.running.get(path);
        assert_eq!((reply.status, &reply.json()["model_id"]), (200, &json!(model_id)), "{path}");
    }
    for path in ["/models/ranker/rerank", "/models/ranker", "/models/ranker/versions/1/invocations"] {
        let reply = server.post(path, rerank());
        assert_eq!((reply.status, reply.json().as_array().unwrap().len()), (200, 2), "{path}");
    }
    for path in ["/pipeline/feature-extraction", "/versions/1/embed", "/versions/1"] {
        let reply = server.post(&format!("/models/org/embedder{path}"), json!({ "inputs": "a" }));
        assert_eq!((reply.status, reply.json().as_array().unwrap().len()), (200, 1), "{path}");
    }
    let reply = server.post("/rerank", rerank());
    assert_tei("/rerank", &reply, 424, "Backend", "`/rerank` needs a sequence classifier with one label");
}

#[test]
fn a_body_names_its_model_unless_the_path_does() {
    let server = Several::start();
    let embeddings = |path: &str, model: Value| server.post(path, json!({ "input": "a", "model": model }));
    for (path, model) in [
        ("/v1/embeddings", json!(null)),
        ("/v1/embeddings", json!("embedder")),
        ("/v1/embeddings", json!("org/embedder/1")),
        ("/models/embedder/v1/embeddings", json!("text-embedding-3-small")),
    ] {
        let reply = embeddings(path, model.clone());
        assert_eq!((reply.status, &reply.json()["model"]), (200, &json!("embedder")), "{path} {model}");
    }
    let reply = embeddings("/v1/embeddings", json!("ranker"));
    assert_eq!((reply.status, &reply.json()["code"]), (424, &json!(424)), "{}", reply.text());
}

#[test]
fn names_that_there_are_not_are_404_in_the_protocols_words() {
    let server = Several::start();
    let said = "no model `other` is served: expected `embedder`, `ranker`";
    assert_openai_404(&server.post("/v1/embeddings", json!({ "input": "a", "model": "other" })), said);
    assert_openai_404(&server.post("/models/other/v1/embeddings", json!({ "input": "a" })), said);
    assert_openai_404(&server.running.get("/v1/models/other"), said);
    // The body is too large as well, and is read to its end, so that the answer arrives.
    let large = json!({ "inputs": "a".repeat(5_000_000) });
    for path in ["/models/other/embed", "/models/other", "/models/other/predict"] {
        assert_tei(path, &server.post(path, large.clone()), 404, "Validation", said);
    }
    assert_tei("info", &server.running.get("/models/other/info"), 404, "Validation", said);
    assert_tei("health", &server.running.get("/models/other/health"), 404, "Validation", said);
    let said = "model `embedder` has no version `3`: expected `1`, `2`";
    let path = "/models/embedder/versions/3/embed";
    assert_tei(path, &server.post(path, json!({ "inputs": "a" })), 404, "Validation", said);
    let reply = server.running.get("/models/embedder/nowhere");
    assert_tei("route", &reply, 404, "Validation", "no route `/models/embedder/nowhere`");
    let reply = server.running.get("/models/embedder/embed");
    assert_tei("method", &reply, 405, "Validation", "`/models/embedder/embed` does not take GET");
    let reply = server.post("/models/org/other/embed", json!({ "inputs": "a" }));
    assert_tei("name", &reply, 404, "Validation", "no model `org/other` is served");
    let reply = server.running.get("/models/org/embedder/nowhere");
    assert_tei("route", &reply, 404, "Validation", "no route `/models/org/embedder/nowhere`");
    let reply = server.running.get("/models/org/embedder/embed");
    assert_tei("method", &reply, 405, "Validation", "`/models/org/embedder/embed` does not take GET");
}

#[test]
fn a_name_that_is_no_text_is_404_in_the_protocols_words() {
    let server = Several::start();
    for path in ["/models/%FF/embed", "/models/%FF", "/models/ranker/versions/%FF/predict"] {
        let reply = server.post(path, json!({ "inputs": "a" }));
        assert_tei(path, &reply, 404, "Validation", "the path names no model: Invalid UTF-8");
    }
    for path in ["/models/%FF/info", "/models/%FF/health"] {
        assert_tei(path, &server.running.get(path), 404, "Validation", "the path names no model");
    }
    let replies = [
        server.post("/models/%FF/v1/embeddings", json!({ "input": "a" })),
        server.running.get("/v1/models/%FF"),
    ];
    for reply in replies {
        assert_openai("OpenAI", &reply, 404, "Validation", "the path names no model: Invalid UTF-8");
    }
}

#[test]
fn the_list_of_models_has_every_name_that_works() {
    let server = Several::start();
    let listed = |server: &Several| {
        let list = server.running.get("/v1/models").json();
        assert_eq!(list["object"], "list");
        let names: Vec<(String, String)> = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|model| {
                assert_eq!((&model["object"], &model["owned_by"]), (&json!("model"), &json!("turbo")));
                assert!(model["created"].as_u64().unwrap() > 1_700_000_000, "{model}");
                let id = model["id"].as_str().unwrap();
                let alone = server.running.get(&format!("/v1/models/{id}"));
                assert_eq!((alone.status, alone.json()), (200, model.clone()), "{id}");
                (id.to_owned(), model["root"].as_str().unwrap().to_owned())
            })
            .collect();
        names
    };
    let pairs = |names: &[(&str, &str)]| -> Vec<(String, String)> {
        names.iter().map(|&(name, root)| (name.to_owned(), root.to_owned())).collect()
    };
    let all = pairs(&[
        ("embedder", "embedder/2"),
        ("org/embedder", "embedder/2"),
        ("embedder/1", "embedder/1"),
        ("embedder/2", "embedder/2"),
        ("ranker", "ranker/1"),
        ("ranker/1", "ranker/1"),
    ]);
    assert_eq!(listed(&server), all);
    server.unload("embedder/2");
    server.unload("ranker");
    let left = [("embedder", "embedder/1"), ("org/embedder", "embedder/1"), ("embedder/1", "embedder/1")];
    assert_eq!(listed(&server), pairs(&left));
    assert_openai_404(&server.running.get("/v1/models/ranker"), UNLOADED);
    server.load("ranker");
    server.load("embedder");
    assert_eq!(listed(&server), all);
}

#[test]
fn one_model_answers_to_any_name() {
    let server = Server::start();
    let body = json!({ "input": "a", "model": "org/text-embedding" }).to_string();
    let reply = server.post("/v1/embeddings", body);
    assert_eq!((reply.status, &reply.json()["model"]), (200, &json!("fake")));
    assert_eq!(server.post("/models/whatever/embed", r#"{"inputs":"a"}"#).status, 200);
    assert_eq!(server.get("/v1/models/org/whatever").json()["root"], "fake/1");
    let ids: Vec<Value> = server.get("/v1/models").json()["data"].as_array().unwrap().clone();
    assert_eq!(ids.iter().map(|model| model["id"].as_str().unwrap()).collect::<Vec<_>>(), ["fake", "fake/1"]);
}

#[test]
fn rows_are_those_of_the_model_that_the_body_names() {
    let server = Several::with([search(["embedder", "ranker"], 3)]);
    for path in ["/v2/embed", "/pooling"] {
        let ask = |model: &str| server.post(path, json!({ "model": model, "texts": ["a"], "input": ["a"] }));
        assert_eq!(ask("embedder").status, 200, "{path}");
        let unknown = ask("none");
        assert!(
            unknown.status == 404 && unknown.json()["error"]["message"].is_string(),
            "{}",
            unknown.text()
        );
    }
    let width = |model: &str| {
        let answer = server.post("/pooling", json!({ "model": model, "input": ["a"] })).json();
        answer["data"][0]["data"].as_array().map(Vec::len)
    };
    assert_eq!((width("embedder"), width("ranker")), (Some(HIDDEN), Some(1)));
    let reply = server.post("/models/search/v2/embed", json!({ "texts": ["a"] }));
    assert_openai("vectors", &reply, 424, "Backend", "`/v2/embed` needs an embedding model");
    let reply = server.post("/models/search/pooling", json!({ "input": ["a"] }));
    assert_openai("scores", &reply, 422, "Validation", "reads a query and a text");
}

#[test]
fn a_call_names_its_model_in_its_metadata() {
    let server = Several::start();
    server.runtime.block_on(async {
        let mut client = InfoClient::new(channel(&server.running).await);
        let default = client.info(InfoRequest {}).await.unwrap().into_inner();
        assert_eq!(default.model_id, "embedder/2");
        for (name, model_id) in
            [("ranker", "ranker/1"), ("embedder/1", "embedder/1"), ("org/embedder", "embedder/2")]
        {
            let info = client.info(call(name, InfoRequest {})).await.unwrap().into_inner();
            assert_eq!(info.model_id, model_id, "{name}");
        }
        let status = client.info(call("other", InfoRequest {})).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
        assert!(status.message().starts_with("no model `other` is served: expected `embedder`"), "{status}");
    });
}
