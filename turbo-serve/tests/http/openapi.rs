//! The OpenAPI document is correct: examples and invalid requests are answered as it says. That it has all routes, and
//! no others, follows from how the router is made.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use jsonschema::Validator;
use serde_json::{Value, json};
use turbo_serve::{
    engine::{Health, MaskToken, ModelInfo, RowLens, Task},
    http::{HttpOptions, Metrics, router},
    models::{Alias, Declared, Load, LoadWhen, Loaded, Models, Source, SourceError},
    net::{self, InFlightLimits},
};

use crate::{
    fake::{Fake, HIDDEN, PAYLOAD_LIMIT, Reply, Running, Server, classifier, embedding, routes, sparse},
    models,
};

/// The document, with the statuses that were seen of each operation.
struct Document {
    document: Value,
    schemas: BTreeMap<String, Validator>,
    seen: BTreeMap<(String, String), BTreeSet<String>>,
}

/// One operation of the document.
#[derive(Clone)]
struct Operation {
    method: String,
    path: String,
    told: Value,
}

impl Document {
    fn fetch() -> Self {
        let document = Server::start().get("/openapi.json").json();
        let components = &document["components"];
        let schema = |name: &String| {
            let schema = json!({ "$ref": format!("#/components/schemas/{name}"), "components": components });
            (format!("#/components/schemas/{name}"), jsonschema::validator_for(&schema).unwrap())
        };
        let schemas = components["schemas"].as_object().unwrap().keys().map(schema).collect();
        Self { document, schemas, seen: BTreeMap::new() }
    }

    fn operations(&self) -> Vec<Operation> {
        let of_path = |(path, methods): (&String, &Value)| {
            let methods = methods.as_object().unwrap().clone().into_iter();
            let path = path.clone();
            methods
                .map(move |(method, told)| Operation { method, path: path.clone(), told })
                .collect::<Vec<_>>()
        };
        self.document["paths"].as_object().unwrap().iter().flat_map(of_path).collect()
    }

    fn validator(&self, schema: &Value) -> &Validator {
        &self.schemas[schema["$ref"].as_str().unwrap()]
    }

    fn is_valid(&self, operation: &Operation, body: &Value) -> bool {
        let content = &operation.told["requestBody"]["content"]["application/json"];
        self.validator(&content["schema"]).is_valid(body)
    }

    /// Fields of an answer that its schema does not have.
    fn untold(&self, schema: &Value, answer: &Value) -> Vec<String> {
        let schema = schema["$ref"].as_str().unwrap().trim_start_matches('#');
        let fields = &self.document.pointer(schema).unwrap()["properties"];
        match (fields.as_object(), answer.as_object()) {
            (Some(told), Some(got)) => got.keys().filter(|name| !told.contains_key(*name)).cloned().collect(),
            _ => Vec::new(),
        }
    }

    /// Validates an answer against the document.
    #[track_caller]
    fn check(&mut self, operation: &Operation, reply: &Reply) {
        let Operation { method, path, told } = operation;
        let status = reply.status.to_string();
        let said = format!("{method} {path}: {status} {:.300}", String::from_utf8_lossy(&reply.body));
        let response = told["responses"].get(&status).unwrap_or_else(|| panic!("not told: {said}"));
        for name in response["headers"].as_object().into_iter().flat_map(|headers| headers.keys()) {
            assert!(reply.headers.contains_key(name.as_str()), "no {name}: {said}");
        }
        match response["content"].as_object() {
            None => assert!(reply.body.is_empty(), "{said}"),
            Some(content) => {
                let (media_type, told) = content.iter().next().unwrap();
                let got = reply.header("content-type").split(';').next().unwrap();
                assert_eq!(got, media_type, "{said}");
                if media_type == "application/json" {
                    let answer = reply.json();
                    let errors = self
                        .validator(&told["schema"])
                        .iter_errors(&answer)
                        .map(|error| error.to_string())
                        .collect::<Vec<_>>();
                    assert!(errors.is_empty(), "{errors:?}: {said}");
                    let untold = self.untold(&told["schema"], &answer);
                    assert!(untold.is_empty(), "{untold:?} not told: {said}");
                }
            }
        }
        self.seen.entry((path.clone(), method.clone())).or_default().insert(status);
    }
}

impl Operation {
    fn examples(&self) -> Vec<Value> {
        let content = &self.told["requestBody"]["content"]["application/json"];
        let examples = content["examples"].as_object().into_iter().flat_map(|examples| examples.values());
        examples.map(|example| example["value"].clone()).collect()
    }

    fn send(&self, server: &Running, prefix: &str, body: &str) -> Reply {
        let path = self.path(prefix);
        match self.method.as_str() {
            "get" => server.get(&path),
            _ => server.post(&path, body),
        }
    }

    /// Sends a request without a body, with a deadline.
    fn send_hurried(&self, server: &Running, prefix: &str, millis: &str) -> Reply {
        server.send("GET", &self.path(prefix), &[("x-request-deadline-ms", millis)], "")
    }

    fn path(&self, prefix: &str) -> String {
        let path = self.path.replace("{name}", "fake").replace("{version}", "1");
        // An operation with `servers` of its own is not behind a model's path.
        let prefix = if self.told["servers"].is_null() { prefix } else { "" };
        format!("{prefix}{path}")
    }
}

/// Servers of models for every task: the fake ones fail when a text tells them to.
fn servers() -> Vec<Running> {
    let tokens = RowLens { pooled: None, tokens: Some(HIDDEN), selected: Some(HIDDEN) };
    let of = |task| ModelInfo {
        task,
        labels: ["O".to_owned(), "B-X".to_owned(), "C".to_owned(), "D".to_owned()].into(),
        mask_token: Some(MaskToken { id: 103, text: "[MASK]".to_owned() }),
        rows: tokens,
        ..embedding()
    };
    let fakes = [
        embedding(),
        sparse(),
        classifier(["x", "y"]),
        classifier(["x"]),
        of(Task::TokenClassification),
        of(Task::QuestionAnswering),
        of(Task::MaskedLm),
    ];
    let folders = ["pipeline-entities-roberta", "pipeline-answers-roberta", "pipeline-fill-mask-wordpiece"];
    let fakes = fakes.map(|model| Running::start(routes(Arc::new(Fake::of(model, Health::Ready)))));
    let real = folders.map(|folder| Running::start(models::routes(folder)));
    fakes.into_iter().chain(real).collect()
}

/// Three models, of which one cannot be loaded, and one takes its time.
fn one_is_broken() -> (Running, tokio::runtime::Runtime) {
    enum Versions {
        Whole,
        Broken,
        Slow,
    }

    impl Source for Versions {
        fn versions(&self) -> Result<Vec<String>, SourceError> {
            Ok(vec!["1".to_owned()])
        }

        fn load(&self, _: Load<'_>) -> Result<Loaded, SourceError> {
            match self {
                Self::Broken => return Err("its file is damaged".into()),
                Self::Slow => std::thread::sleep(Duration::from_secs(2)),
                Self::Whole => {}
            }
            Ok(Arc::new(Fake::new(Health::Ready)).into())
        }
    }

    let declared = |(name, alias, source): (&str, Option<&str>, Versions)| Declared {
        name: name.to_owned(),
        aliases: Vec::from_iter(alias.map(|name| Alias { name: name.to_owned(), version: None })),
        version: None,
        load: LoadWhen::Request,
        source: Arc::new(source),
    };
    let models = [
        // The alias is the name of the other servers' models.
        ("whole", Some("fake"), Versions::Whole),
        ("broken", None, Versions::Broken),
        ("slow", None, Versions::Slow),
    ];
    let models = Models::new(models.map(declared).into(), None).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(models.start()).unwrap();
    let routes = router(models, Metrics::install().unwrap(), HttpOptions::default());
    (Running::start(routes), runtime)
}

/// A request with every text replaced by `text`, and ids by its letters; values of enumerations stay.
fn with_text(value: &Value, text: &str) -> Value {
    match value {
        Value::String(_) => json!(text),
        Value::Array(items) if items.iter().all(Value::is_number) => {
            json!(text.chars().map(u32::from).collect::<Vec<_>>())
        }
        Value::Array(items) => items.iter().map(|item| with_text(item, text)).collect(),
        Value::Object(fields) => {
            let kept = [
                "parameters",
                "truncation_direction",
                "encoding_format",
                "embedding_types",
                "input_type",
                "task",
                "truncate",
                "rank_fields",
                "model",
                "name",
                "datatype",
                "shape",
            ];
            let field = |(name, value): (&String, &Value)| {
                let value =
                    if kept.contains(&name.as_str()) { value.clone() } else { with_text(value, text) };
                (name.clone(), value)
            };
            fields.iter().map(field).collect()
        }
        other => other.clone(),
    }
}

/// The body, each time with another field left out or of another type.
fn changed(body: &Value) -> Vec<Value> {
    let others =
        [json!(null), json!(true), json!(-1), json!(7.5), json!("x"), json!([]), json!([[[1]]]), json!({})];
    let of_field = |name: &String| {
        let with = |value: &Value| {
            let mut body = body.clone();
            body[name] = value.clone();
            body
        };
        let mut without = body.clone();
        without.as_object_mut().unwrap().remove(name);
        others.iter().map(with).chain([without]).collect::<Vec<_>>()
    };
    body.as_object().unwrap().keys().flat_map(of_field).collect()
}

#[test]
fn every_answer_is_as_the_document_says() {
    let mut document = Document::fetch();
    let (servers, (broken, _runtime)) = (servers(), one_is_broken());
    let key = "secret".parse::<net::ApiKey>().unwrap();
    let locked = Running::start(net::protect(routes(Arc::new(Fake::new(Health::Ready))), key));
    let ours = "https://ours.example".parse().unwrap();
    let guarded = Running::start(net::allow_origins(routes(Arc::new(Fake::new(Health::Ready))), &[ours]));
    let from_elsewhere = [("content-type", "application/json"), ("origin", "https://other.example")];
    let packed = [("content-type", "application/json"), ("content-encoding", "br")];
    let full = InFlightLimits { bodies: usize::MAX, answers: 0 };
    let full = Running::start(net::bounded(routes(Arc::new(Fake::new(Health::Ready))), full));
    let ill = Server::with_health(Health::Failing);
    for operation in document.operations() {
        if operation.method == "get" {
            for server in &servers {
                document.check(&operation, &operation.send(server, "", ""));
            }
            document.check(&operation, &operation.send(&ill, "", ""));
        }
        for example in operation.examples() {
            assert!(document.is_valid(&operation, &example), "{}: {example}", operation.path);
            let mut at_home = None;
            for server in servers.iter().chain([&broken]) {
                let reply = operation.send(server, "", &example.to_string());
                document.check(&operation, &reply);
                if reply.status == 200 {
                    at_home.get_or_insert(server);
                }
            }
            let home = at_home.unwrap_or_else(|| panic!("{}: nobody answers {example}", operation.path));
            for body in changed(&example) {
                let reply = operation.send(home, "", &body.to_string());
                document.check(&operation, &reply);
                let valid = document.is_valid(&operation, &body);
                assert!(valid || reply.status != 200, "{} takes {body}", operation.path);
            }
            for text in ["overloaded", "expired", "stopping", "panic", "nan"] {
                let body = with_text(&example, text).to_string();
                for server in &servers {
                    document.check(&operation, &operation.send(server, "", &body));
                }
            }
            let large = json!({ "inputs": "a".repeat(PAYLOAD_LIMIT) }).to_string();
            for body in ["{", "[]", "", large.as_str()] {
                document.check(&operation, &operation.send(&servers[0], "", body));
            }
            let of_text = [("content-type", "text/plain")];
            let path = operation.path.replace("{name}", "fake").replace("{version}", "1");
            document.check(&operation, &servers[0].send("POST", &path, &of_text, "{}"));
            document.check(&operation, &guarded.send("POST", &path, &from_elsewhere, "{}"));
            document.check(&operation, &servers[0].send("POST", &path, &packed, "{}"));
            document.check(&operation, &full.send("POST", &path, &packed[..1], "{}"));
        }
        let example = operation.examples().first().map(Value::to_string).unwrap_or_default();
        let of_a_model = operation.told["responses"].get("404").is_some();
        for model in ["whole", "broken", "other"].into_iter().filter(|_| of_a_model) {
            let path = operation.path.replace("{name}", model);
            let here = Operation { path, ..operation.clone() };
            let reply = here.send(&broken, &format!("/models/{model}"), &example);
            document.check(&operation, &reply);
        }
        document.check(&operation, &operation.send(&locked, "", &example));
    }
    let waits = |it: &Operation| it.method == "get" && it.told["responses"].get("504").is_some();
    for operation in document.operations().into_iter().filter(waits) {
        let here = Operation { path: operation.path.replace("{name}", "slow"), ..operation.clone() };
        for millis in ["5", "soon"] {
            document.check(&operation, &here.send_hurried(&broken, "/models/slow", millis));
        }
    }
    for operation in document.operations() {
        let told: BTreeSet<String> =
            operation.told["responses"].as_object().unwrap().keys().cloned().collect();
        let seen = &document.seen[&(operation.path.clone(), operation.method.clone())];
        let unseen: Vec<&String> = told.difference(seen).filter(|status| *status != "408").collect();
        assert!(unseen.is_empty(), "{} {} was never {unseen:?}", operation.method, operation.path);
    }
}

#[test]
fn the_document_is_where_clients_look_and_the_page_reads_it() {
    let server = Server::start();
    let document = server.get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(server.get("/api-doc/openapi.json").json(), document);
    let ids: Vec<&Value> = document["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|methods| methods.as_object().unwrap().values().map(|operation| &operation["operationId"]))
        .collect();
    let distinct: BTreeSet<String> = ids.iter().map(ToString::to_string).collect();
    assert_eq!(ids.len(), distinct.len(), "{ids:?}");
    let page = server.get("/docs");
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert!(page.text().contains("fetch('openapi.json')"));
    assert!(
        page.text().contains("parameter.in === 'path'"),
        "each parameter of a path has a box of its own, and those of the head have none"
    );
    assert!(
        !page.text().contains("http://") && !page.text().contains("https://"),
        "it works without a network"
    );
}

#[test]
fn the_document_says_where_the_router_is_nested() {
    let routes = routes(Arc::new(Fake::new(Health::Ready)));
    let server = Running::start(Router::new().nest("/at/{place}/turbo", routes));
    let above = "/at/home/turbo";
    for path in
        ["/openapi.json", "/api-doc/openapi.json", "/models/a/openapi.json", "/models/org/a/openapi.json"]
    {
        let document = server.get(&format!("{above}{path}")).json();
        let urls = [0, 1, 2].map(|nth| document["servers"][nth]["url"].clone());
        let expected = ["", "/models/{model}", "/models/{model}/versions/{version}"];
        assert_eq!(urls, expected.map(|behind| json!(format!("{above}{behind}"))), "{path}");
        assert_eq!(
            document["paths"]["/v2/health/live"]["get"]["servers"],
            json!([{ "url": above }]),
            "{path}"
        );
    }
    assert_eq!(server.get(above).status, 200, "its root");
    assert_eq!(Server::start().get("/models/org/a/openapi.json").json()["servers"][0]["url"], "/");
}

#[test]
fn routes_that_are_not_told_are_not_there() {
    let server = Server::start();
    let document = server.get("/openapi.json").json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{name}", "fake").replace("{version}", "1");
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH"] {
            let told = methods.get(method.to_lowercase()).is_some();
            let reply = server.send(method, &path, &[("content-type", "application/json")], "{}");
            assert_eq!(reply.status == 405, !told, "{method} {path}: {}", reply.status);
            if !told {
                let allowed = reply.header("allow").to_lowercase();
                let told = methods.as_object().unwrap().keys();
                assert!(told.clone().all(|method| allowed.contains(method.as_str())), "{path}: {allowed}");
            }
        }
    }
}
