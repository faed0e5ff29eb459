//! The live page and its data: access to them, and what they say of models that are loaded, are not, or keep no record.

use std::sync::Arc;

use serde_json::Value;
use turbo_serve::{
    engine::{Health, MaskToken, ModelInfo, Task},
    http::{HttpOptions, Metrics, router},
    models::{Declared, Load, LoadWhen, Loaded, Models, Source, SourceError},
    net,
};

use crate::{
    fake::{Fake, Running, Server, assert_tei, embedding, routes},
    tiny,
};

#[test]
fn the_page_may_ask_nobody_but_this_server() {
    let server = Server::start();
    let page = server.get("/dashboard");
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    let policy = page.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    assert!(policy.contains("; connect-src 'self'; ") && !policy.contains("unsafe"), "{policy}");
}

#[test]
fn the_page_is_for_everybody_and_its_data_for_who_has_the_key() {
    let key = "secret".parse::<net::ApiKey>().unwrap();
    let server = Running::start(net::protect(routes(Arc::new(Fake::new(Health::Ready))), key));
    assert_eq!(server.get("/dashboard").status, 200);
    assert_tei("no key", &server.get("/dashboard/data"), 401, "Unauthorized", "expected the header");
    let shown = [("authorization", "Bearer secret")];
    assert_eq!(server.send("GET", "/dashboard/data", &shown, "").status, 200);
}

#[test]
fn an_engine_without_a_record_is_told_as_one() {
    let server = Server::start();
    let data = server.get("/dashboard/data").json();
    assert_eq!((&data["model"]["name"], &data["model"]["state"]), (&"fake".into(), &"ready".into()));
    assert_eq!(data["engine"]["answered_metric"], "te_embed_success");
    assert_eq!((&data["observed"], &data["engine"]["mask_token"]), (&Value::Null, &Value::Null));
}

#[test]
fn how_a_model_writes_its_mask_is_told() {
    let mask_token = Some(MaskToken { id: 4, text: "<mask>".to_owned() });
    let server = Server::with_model(ModelInfo { task: Task::MaskedLm, mask_token, ..embedding() });
    assert_eq!(server.get("/dashboard/data").json()["engine"]["mask_token"], "<mask>");
}

#[test]
fn what_an_engine_did_is_told() {
    let (server, sentences) = tiny::start();
    let before = server.get("/dashboard/data").json();
    assert_eq!(before["observed"]["totals"]["batches"], 0);
    assert!(before["observed"]["costs"]["measured"].as_array().is_some_and(|all| !all.is_empty()));
    for sentence in &sentences {
        let body = serde_json::json!({ "inputs": sentence.text }).to_string();
        assert_eq!(server.post("/embed", &body).status, 200);
    }
    let observed = server.get("/dashboard/data").json()["observed"].take();
    let tokens: usize = sentences.iter().map(|sentence| sentence.input_ids.len()).sum();
    assert_eq!(observed["totals"]["batches"], sentences.len());
    assert_eq!(observed["totals"]["answered"], sentences.len());
    assert_eq!(observed["totals"]["tokens"], tokens);
    assert_eq!(observed["totals"]["padded_tokens"], tokens, "each was alone");
    assert_eq!(observed["latencies"]["inputs_of_minute"], sentences.len());
}

#[test]
fn nothing_is_loaded_to_be_looked_at() {
    struct Never;

    impl Source for Never {
        fn versions(&self) -> Result<Vec<String>, SourceError> {
            Ok(vec!["1".to_owned()])
        }

        fn load(&self, _: Load<'_>) -> Result<Loaded, SourceError> {
            panic!("it was loaded")
        }
    }

    let asleep = |name: &str| Declared {
        name: name.to_owned(),
        aliases: Vec::new(),
        version: None,
        load: LoadWhen::Request,
        source: Arc::new(Never),
    };
    let models = Models::new(vec![asleep("asleep"), asleep("dreaming")], None).unwrap();
    let server = Running::start(router(models, Metrics::install().unwrap(), HttpOptions::default()));
    for path in ["/dashboard/data", "/models/asleep/dashboard/data"] {
        let data = server.get(path).json();
        assert_eq!(data["model"]["state"], "on demand", "{path}");
        assert_eq!((&data["engine"], &data["observed"]), (&Value::Null, &Value::Null), "{path}");
    }
    let unknown = server.get("/models/nobody/dashboard/data");
    assert_tei("unknown", &unknown, 404, "Validation", "nobody");
}
