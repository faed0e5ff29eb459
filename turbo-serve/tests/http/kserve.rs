//! KServe's Open Inference Protocol v2 over REST: tensors in and out, as JSON and in its binary form.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    body::{Body, to_bytes},
    http::Request,
};
use proptest::{collection::vec, prelude::*, sample::select};
use prost::Message;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tower::ServiceExt;
use turbo_serve::{
    engine::{
        DecodeRequest, EngineError, EngineInfo, Health, Infer, InferRequest, InferResponse, Input, ModelInfo,
        OutputKind, Pending, Priority, TokenizeRequest, Tokenized, Truncation,
    },
    grpc::proto::open_inference::{ModelInferRequest, model_infer_request::InferRequestedOutputTensor},
    http::{HttpOptions, Metrics, router},
};

use crate::{
    fake::{Fake, Reply, Running, Server, classifier, embedding, routes, row},
    kserve_grpc::message,
    models::{assert_near, list, ok, serve},
};

const INFER: &str = "/v2/models/fake/infer";

fn text(texts: &[&str]) -> Value {
    json!({ "name": "text", "datatype": "BYTES", "shape": [texts.len()], "data": texts })
}

fn infer(server: &Running, body: &Value) -> Value {
    ok(&server.post(INFER, body.to_string()))
}

/// An output of an answer, its shape and its values.
fn output<'a>(answer: &'a Value, name: &str) -> (&'a Value, Vec<f32>) {
    let output = list(&answer["outputs"]).iter().find(|output| output["name"] == name);
    let output = output.unwrap_or_else(|| panic!("no {name} in {answer}"));
    let values = list(&output["data"]).iter().map(|value| value.as_f64().unwrap() as f32).collect();
    (&output["shape"], values)
}

/// What the fake model makes of these inputs.
pub(crate) fn rows(inputs: &[Input]) -> Vec<f32> {
    inputs.iter().flat_map(|input| row(input, 0)).collect()
}

pub(crate) fn texts(texts: &[&str]) -> Vec<Input> {
    texts.iter().map(|&text| Input::Text(text.to_owned())).collect()
}

#[test]
fn texts_become_vectors() {
    let server = Server::start();
    let body = json!({ "id": "7", "inputs": [text(&["a", "bc"])] });
    let answer = infer(&server, &body);
    assert_eq!(
        (&answer["model_name"], &answer["model_version"], &answer["id"]),
        (&json!("fake"), &json!("1"), &json!("7"))
    );
    assert_eq!(output(&answer, "sentence_embedding"), (&json!([2, 4]), rows(&texts(&["a", "bc"]))));
    assert_eq!(list(&answer["outputs"]).len(), 1, "token rows are for those who ask: {answer}");
    let seen = server.engine.seen.lock().unwrap().clone().unwrap();
    assert_eq!(seen.output, OutputKind::Pooled { normalize: true, dimensions: None });
    assert_eq!(seen.truncation, None, "the engine's default");

    let parameters = json!({
        "normalize": false, "dimensions": 2, "truncate": true, "truncation_direction": "left", "priority": 3
    });
    let pair = json!({ "name": "whatever", "datatype": "BYTES", "shape": [1, 2], "data": [["a", "b"]] });
    let answer = infer(&server, &json!({ "inputs": [pair], "parameters": parameters }));
    let (shape, values) = output(&answer, "sentence_embedding");
    assert_eq!((shape, values.len()), (&json!([1, 2]), 2));
    let seen = server.engine.seen.lock().unwrap().clone().unwrap();
    assert_eq!(seen.output, OutputKind::Pooled { normalize: false, dimensions: Some(2) });
    assert_eq!(seen.truncation, Some(Truncation::Left));
    assert_eq!(seen.urgency.priority, Priority::Low);
    assert_eq!(seen.inputs, [Input::Pair("a".to_owned(), "b".to_owned())]);
}

#[test]
fn ids_are_used_without_their_padding() {
    let server = Server::start();
    let integers = |name: &str, datatype: &str, data: Value| json!({ "name": name, "datatype": datatype, "shape": [2, 3], "data": data });
    let ids = integers("input_ids", "INT64", json!([[1, 2, 3], [4, 0, 0]]));
    let mask = integers("attention_mask", "BOOL", json!([true, true, true, true, false, false]));
    let types = integers("token_type_ids", "INT32", json!([0, 0, 1, 1, 0, 0]));
    let answer = infer(&server, &json!({ "inputs": [ids, mask] }));
    let expected = rows(&[Input::Ids(vec![1, 2, 3]), Input::Ids(vec![4])]);
    assert_eq!(output(&answer, "sentence_embedding"), (&json!([2, 4]), expected));
    infer(&server, &json!({ "inputs": [types, mask, ids] }));
    let seen = server.engine.seen.lock().unwrap().clone().unwrap();
    let Input::Encoded(second) = &seen.inputs[1] else { panic!("{seen:?}") };
    assert_eq!((&second.input_ids[..], &second.token_type_ids[..]), (&[4][..], &[1][..]));
}

#[test]
fn rows_of_tokens_are_filled_up() {
    let server = Server::start();
    let wanted = json!([{ "name": "token_embeddings" }, { "name": "attention_mask" }, { "name": "sentence_embedding" }]);
    let answer = infer(&server, &json!({ "inputs": [text(&["a", "bc"])], "outputs": wanted }));
    let [one, two] = [0, 1].map(|index| texts(&["a", "bc"])[index].clone());
    let mut expected: Vec<f32> = [0, 1].iter().flat_map(|&token| row(&one, token)).collect();
    expected.extend([0.0; 4]);
    expected.extend([0, 1, 2].iter().flat_map(|&token| row(&two, token)));
    assert_eq!(output(&answer, "token_embeddings"), (&json!([2, 3, 4]), expected));
    assert_eq!(output(&answer, "attention_mask"), (&json!([2, 3]), vec![1.0, 1.0, 0.0, 1.0, 1.0, 1.0]));
    assert_eq!(output(&answer, "sentence_embedding"), (&json!([2, 4]), rows(&[one, two])));
    let names: Vec<&Value> = list(&answer["outputs"]).iter().map(|output| &output["name"]).collect();
    assert_eq!(
        names,
        ["token_embeddings", "attention_mask", "sentence_embedding"],
        "in the order of the request"
    );
}

/// An engine with slots for this many inputs, which answers after a moment.
struct Narrow {
    fake: Fake,
    slots: Semaphore,
}

impl Infer for Narrow {
    fn info(&self) -> &EngineInfo {
        self.fake.info()
    }

    fn infer(&self, request: InferRequest) -> Pending<'_, InferResponse> {
        Box::pin(async move {
            let full = |_| EngineError::Overloaded { retry_after: Duration::from_millis(1) };
            let _slots = self.slots.try_acquire_many(request.inputs.len() as u32).map_err(full)?;
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.fake.infer(request).await
        })
    }

    fn tokenize(&self, request: TokenizeRequest) -> Pending<'_, Vec<Tokenized>> {
        self.fake.tokenize(request)
    }

    fn decode(&self, request: DecodeRequest) -> Pending<'_, Vec<String>> {
        self.fake.decode(request)
    }

    fn health(&self) -> Health {
        self.fake.health()
    }
}

#[test]
fn rows_of_two_kinds_need_no_more_slots_than_there_are_inputs() {
    let engine = Narrow { fake: Fake::new(Health::Ready), slots: Semaphore::new(2) };
    let metrics = Metrics::install().unwrap();
    let server = Running::start(router(Arc::new(engine) as Arc<dyn Infer>, metrics, HttpOptions::default()));
    let wanted = json!([{ "name": "token_embeddings" }, { "name": "sentence_embedding" }]);
    let body = json!({ "inputs": [text(&["a", "bc"])], "outputs": wanted });
    let reply = server.post(INFER, body.to_string());
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("x-compute-tokens"), "5", "which are counted once");
    assert_eq!(output(&reply.json(), "sentence_embedding").1, rows(&texts(&["a", "bc"])));
}

#[test]
fn ids_are_cut_where_their_padding_is_known() {
    let server = Server::start();
    let ids: Vec<u32> = (1..=20).collect();
    let tensor = |name: &str, values: &Value| json!({ "name": name, "datatype": "INT64", "shape": [1, 20], "data": values });
    let (of_ids, types) =
        (tensor("input_ids", &json!(ids)), |values: Value| tensor("token_type_ids", &values));
    let mut others = vec![0; 20];
    others[19] = 1;
    let cut = json!({ "truncate": true, "truncation_direction": "left" });
    let seen = |inputs: Value| {
        infer(&server, &json!({ "inputs": inputs, "parameters": cut }));
        let seen = server.engine.seen.lock().unwrap().take().unwrap();
        assert_eq!(seen.truncation, Some(Truncation::Left));
        seen.inputs
    };
    // The engine cuts these, after it has left out padding; types that are all 0 say nothing.
    assert_eq!(seen(json!([of_ids])), [Input::Ids(ids.clone())]);
    assert_eq!(seen(json!([of_ids, types(json!(vec![0; 20]))])), [Input::Ids(ids)]);
    let typed = seen(json!([of_ids, types(json!(others))]));
    let [Input::Encoded(typed)] = &typed[..] else { panic!("{typed:?}") };
    assert_eq!(
        (typed.input_ids.first(), typed.input_ids.len(), typed.token_type_ids.len()),
        (Some(&5), 16, 16)
    );
    let whole = json!({ "inputs": [of_ids, types(json!(vec![0; 20]))], "parameters": { "truncate": false } });
    assert_refused("whole", &server.post(INFER, whole.to_string()), 422, "20 tokens");
}

#[test]
fn classifiers_give_logits_and_probabilities() {
    let server = Server::with_model(classifier(["x", "y"]));
    let answer = infer(&server, &json!({ "inputs": [text(&["a"])] }));
    let (shape, logits) = output(&answer, "logits");
    assert_eq!((shape, &logits[..]), (&json!([1, 2]), &row(&texts(&["a"])[0], 0)[..2]));
    let (shape, scores) = output(&answer, "scores");
    assert_eq!(shape, &json!([1, 2]));
    assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-6, "{scores:?}");
    let best = if logits[0] > logits[1] { (0, "x") } else { (1, "y") };
    let wanted = json!([{ "name": "logits", "parameters": { "classification": 1 } }]);
    let answer = infer(&server, &json!({ "inputs": [text(&["a"])], "outputs": wanted }));
    let output = &answer["outputs"][0];
    let expected = format!("{:.6}:{}:{}", logits[best.0], best.0, best.1);
    assert_eq!((&output["datatype"], &output["data"]), (&json!("BYTES"), &json!([expected])), "{answer}");
    // 0 classes are all of the numbers
    let wanted = json!([{ "name": "logits", "parameters": { "classification": 0 } }]);
    let answer = infer(&server, &json!({ "inputs": [text(&["a"])], "outputs": wanted }));
    assert_eq!(self::output(&answer, "logits").1, logits, "{answer}");
}

/// Folders of embedders may list labels, too: transformers writes two where a folder has none.
#[test]
fn values_of_embeddings_have_no_labels() {
    let labels = ["LABEL_0", "LABEL_1"].map(str::to_owned).into();
    let server = Server::with_model(ModelInfo { labels, ..embedding() });
    let wanted = json!([{ "name": "sentence_embedding", "parameters": { "classification": 4 } }]);
    let answer = infer(&server, &json!({ "inputs": [text(&["a"])], "outputs": wanted }));
    let values = list(&answer["outputs"][0]["data"]);
    assert_eq!(values.len(), 4, "{answer}");
    for value in values {
        assert_eq!(value.as_str().unwrap().matches(':').count(), 1, "{value}");
    }
}

/// Sends a body of JSON and what follows it.
fn send(server: &Running, json: &Value, raw: &[u8]) -> Reply {
    let json = json.to_string();
    let length = json.len().to_string();
    let headers =
        [("inference-header-content-length", &*length), ("content-type", "application/octet-stream")];
    server.send("POST", INFER, &headers, [json.as_bytes(), raw].concat())
}

#[test]
fn tensors_may_be_binary_on_both_ways() {
    let server = Server::start();
    let input = json!({
        "name": "text", "datatype": "BYTES", "shape": [2], "parameters": { "binary_data_size": 11 }
    });
    let wanted = json!([
        { "name": "token_embeddings", "parameters": { "binary_data": false } },
        { "name": "attention_mask" },
        { "name": "sentence_embedding", "parameters": { "binary_data": true } },
    ]);
    let body = json!({ "inputs": [input], "outputs": wanted, "parameters": { "binary_data_output": true } });
    let reply = send(&server, &body, b"\x01\0\0\0a\x02\0\0\0bc");
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("content-type"), "application/octet-stream");
    let (head, raw) = reply.body.split_at(reply.header("inference-header-content-length").parse().unwrap());
    let head: Value = serde_json::from_slice(head).unwrap();
    let sizes: Vec<Option<u64>> = list(&head["outputs"])
        .iter()
        .map(|output| output["parameters"]["binary_data_size"].as_u64())
        .collect();
    assert_eq!(sizes, [None, Some(2 * 3 * 8), Some(2 * 4 * 4)]);
    assert_eq!(list(&head["outputs"][0]["data"]).len(), 2 * 3 * 4);
    let (mask, rows) = raw.split_at(48);
    let mask: Vec<i64> = mask.chunks(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect();
    assert_eq!(mask, [1, 1, 0, 1, 1, 1]);
    let rows: Vec<f32> = rows.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    assert_eq!(rows, self::rows(&texts(&["a", "bc"])));

    let ids: Vec<u8> = [1_i64, 2, 3].iter().flat_map(|id| id.to_le_bytes()).collect();
    let input = |name: &str, datatype: &str, size: usize| json!({ "name": name, "datatype": datatype, "shape": [1, 3], "parameters": { "binary_data_size": size } });
    let body = json!({ "inputs": [input("input_ids", "INT64", 24), input("attention_mask", "BOOL", 3)] });
    let reply = send(&server, &body, &[&ids[..], &[1, 1, 0]].concat());
    let expected = self::rows(&[Input::Ids(vec![1, 2])]);
    assert_eq!(output(&ok(&reply), "sentence_embedding"), (&json!([1, 4]), expected));
}

/// Checks an error in the protocol's form; `said` is part of its sentence.
#[track_caller]
fn assert_refused(what: &str, reply: &Reply, status: u16, said: &str) {
    assert_eq!(reply.status, status, "{what}: {}", reply.text());
    let body = reply.json();
    assert_eq!(body.as_object().unwrap().len(), 1, "{what}: {body}");
    let message = body["error"].as_str().unwrap();
    assert!(message.contains(said), "{what}: {message:?} does not say {said:?}");
}

#[test]
fn what_is_wrong_is_told() {
    let server = Server::start();
    let tensor = |datatype: &str, shape: Value, data: Value| json!({ "inputs": [{ "name": "t", "datatype": datatype, "shape": shape, "data": data }] });
    let without = |field: &str| {
        let mut body = tensor("BYTES", json!([1]), json!(["a"]));
        body["inputs"][0].as_object_mut().unwrap().remove(field);
        body
    };
    let texts = |texts: &[&str]| json!({ "inputs": [text(texts)] });
    let parameter =
        |name: &str, value: Value| json!({ "inputs": [text(&["a"])], "parameters": { name: value } });
    let wanted = |name: &str, parameters: Value| json!({ "inputs": [text(&["a"])], "outputs": [{ "name": name, "parameters": parameters }] });
    let binary =
        json!({ "name": "t", "datatype": "BYTES", "shape": [1], "parameters": { "binary_data_size": 1 } });
    let twice = json!([{ "name": "token_embeddings" }, { "name": "token_embeddings" }]);
    let twice = json!({ "inputs": [text(&["a"])], "outputs": twice });
    let mut without_rows = tensor("INT64", json!([1_u64 << 40, 0]), json!([]));
    without_rows["inputs"][0]["name"] = json!("input_ids");
    let mut shared = binary.clone();
    shared["parameters"] = json!({ "shared_memory_region": "r", "shared_memory_byte_size": 16 });
    let mut both = binary.clone();
    both["data"] = json!(["a"]);
    for (body, status, said) in [
        (json!({}), 422, "missing field `inputs`"),
        (json!({ "inputs": [] }), 422, "expected one tensor of texts"),
        (without("shape"), 422, "missing field `shape`"),
        (without("data"), 422, "input `t`: has neither `data` nor `binary_data_size`"),
        (json!({ "inputs": [both] }), 422, "input `t`: has both"),
        (json!({ "inputs": [shared] }), 422, "input `t`: shared memory is not available here"),
        (json!({ "inputs": [binary] }), 422, "`binary_data_size` is 1, expected a number up to the 0 bytes"),
        (tensor("FP32", json!([1]), json!([1])), 422, "datatype is `FP32`, expected `BYTES`"),
        (
            tensor("BYTES", json!([2]), json!(["a"])),
            422,
            "has 1 elements, expected 2 elements for its shape [2]",
        ),
        (tensor("BYTES", json!([1]), json!([1])), 422, "is `BYTES`, and its data are numbers"),
        (tensor("INT64", json!([1]), json!(["a"])), 422, "is `INT64`, and its data are strings"),
        (
            tensor("INT64", json!([1]), json!([1.5])),
            422,
            "floating point `1.5`, expected a string, an integer",
        ),
        (tensor("INT64", json!([1]), json!([u64::MAX])), 422, "which is larger than any id"),
        (tensor("BYTES", json!([2]), json!(["a", 1])), 422, "`data` has both numbers and strings"),
        (tensor("BYTES", json!([1]), json!("a")), 422, "expected a list of strings or integers"),
        (tensor("BYTES", json!([0]), json!([])), 400, "cannot be empty"),
        (twice, 422, "output `token_embeddings` is asked for twice"),
        (without_rows, 422, "input `input_ids`: shape is [1099511627776, 0], expected ids in a row"),
        (
            tensor("INT64", json!([1_u64 << 40, 1_u64 << 40]), json!([])),
            422,
            "more elements than can be counted",
        ),
        (texts(&["a"; 9]), 422, "batch size 9 > maximum"),
        (texts(&["backend"]), 424, "on fire"),
        (texts(&["nan"]), 424, "the value NaN"),
        (texts(&["overloaded"]), 429, "overloaded"),
        (
            wanted("logits", json!({})),
            422,
            "output `logits` is not known: this model has `sentence_embedding`",
        ),
        (wanted("token_embeddings", json!({ "classification": 1 })), 422, "for a row of numbers for each"),
        (
            wanted("sentence_embedding", json!({ "classification": -1 })),
            422,
            "`classification` is -1, expected",
        ),
        (
            wanted(
                "sentence_embedding",
                json!({ "shared_memory_region": "r", "shared_memory_byte_size": 16 }),
            ),
            422,
            "output `sentence_embedding`: shared memory is not available here",
        ),
        (
            wanted("sentence_embedding", json!({ "binary_data": "yes" })),
            422,
            "`binary_data` is `yes`, expected",
        ),
        (
            parameter("binary_data_output", json!("yes")),
            422,
            "`binary_data_output` is `yes`, expected a boolean",
        ),
        (
            tensor("UINT8", json!([1]), json!([999])),
            422,
            "input `t`: its data has 999, which is no `UINT8`: expected 0 to 255",
        ),
        (
            tensor("INT8", json!([1]), json!([-129])),
            422,
            "has -129, which is no `INT8`: expected -128 to 127",
        ),
        (tensor("BOOL", json!([1]), json!([2])), 422, "has 2, which is no `BOOL`: expected 0 to 1"),
        (tensor("UINT64", json!([1]), json!([-1])), 422, "has -1, which is no `UINT64`"),
        (parameter("dimensions", json!(9)), 422, "`dimensions` is 9"),
        (parameter("dimensions", json!("9")), 422, "parameter `dimensions` is `9`, expected a number"),
        (parameter("normalize", json!([true])), 422, "`normalize` is of another type, expected a boolean"),
        (parameter("truncation_direction", json!("up")), 422, "is `up`, expected `left` or `right`"),
        (parameter("prompt_name", json!("x")), 422, "`prompt_name` is `x`"),
    ] {
        assert_refused(&body.to_string(), &server.post(INFER, body.to_string()), status, said);
    }
    assert_refused("not JSON", &server.post(INFER, "{"), 400, "not JSON");
    assert_refused("too large", &server.post(INFER, "a".repeat(20_000)), 413, "larger than the limit");
    let with_length = |length: &str, body: &str| {
        server.send("POST", INFER, &[("inference-header-content-length", length)], body)
    };
    let said = "is `99`, expected a number up to the body's length, 2";
    assert_refused("length", &with_length("99", "{}"), 422, said);
    assert_refused("length", &with_length("x", "{}"), 422, "is `x`, expected a number");
    let more = send(&server, &texts(&["a"]), b"abc");
    assert_refused("more", &more, 422, "3 bytes after those of the tensors");
}

#[test]
fn paths_that_lead_nowhere_are_told_in_the_protocols_words() {
    let server = Server::start();
    for (method, path, status, said) in [
        ("GET", INFER, 405, "does not take GET"),
        ("PUT", INFER, 405, "does not take PUT"),
        ("POST", "/v2/models/fake/ready", 405, "does not take POST"),
        ("POST", "/v2", 405, "`/v2` does not take POST"),
        ("GET", "/v2/nothing", 404, "no route `/v2/nothing`"),
        ("GET", "/v2/models/%ff", 404, "no route `/v2/models/%ff`"),
        ("GET", "/v2/models/fake/versions/7", 404, "model `fake` has no version `7`"),
        ("POST", "/v2/models/fake/versions/7/infer", 404, "model `fake` has no version `7`"),
        ("POST", "/v2/repository/models/fake", 404, "expected `/load` or `/unload` at its end"),
        ("POST", "/v2/repository/models/fake/load", 422, "only by a server that was started with `--config`"),
        (
            "POST",
            "/v2/repository/models/fake/unload",
            422,
            "only by a server that was started with `--config`",
        ),
    ] {
        assert_refused(&format!("{method} {path}"), &server.send(method, path, &[], ""), status, said);
    }
    let load = server.post("/v2/repository/models/fake/load", r#"{"parameters":{"config":"{}"}}"#);
    assert_refused("load", &load, 422, "parameter `config`: expected none");
    assert_eq!(server.get(INFER).header("allow"), "POST");
}

#[test]
fn a_server_tells_what_it_is() {
    let server = Server::start();
    let about = ok(&server.get("/v2"));
    assert_eq!(about["name"], "turbo");
    assert!(list(&about["extensions"]).contains(&json!("binary_tensor_data")), "{about}");
    assert_eq!(ok(&server.get("/v2/health/live"))["live"], true);
    assert_eq!(ok(&server.get("/v2/health/ready"))["ready"], true);
    for path in ["/v2/models/fake", "/v2/models/fake/versions/1", "/v2/models/org/any"] {
        let model = ok(&server.get(path));
        assert_eq!(
            (&model["name"], &model["versions"], &model["platform"]),
            (&json!("fake"), &json!(["1"]), &json!("turbo"))
        );
        assert_eq!(model["inputs"], json!([{ "name": "text", "datatype": "BYTES", "shape": [-1] }]));
        assert_eq!(
            model["outputs"][0],
            json!({ "name": "sentence_embedding", "datatype": "FP32", "shape": [-1, 4] })
        );
        assert_eq!(ok(&server.get(&format!("{path}/ready")))["ready"], true);
        let config = ok(&server.get(&format!("{path}/config")));
        assert_eq!((&config["name"], &config["max_batch_size"]), (&json!("fake"), &json!(8)));
        assert_eq!(config["input"], json!([{ "name": "text", "data_type": "TYPE_STRING", "dims": [1] }]));
        let output = json!({ "name": "sentence_embedding", "data_type": "TYPE_FP32", "dims": [4] });
        assert_eq!(config["output"][0], output);
    }
    for (health, why) in [
        (Health::Starting, "the model is being prepared"),
        (Health::Failing, "the model cannot be run"),
        (Health::Stopping, "the server is stopping"),
    ] {
        let server = Server::with_health(health);
        assert_eq!(server.get("/v2/health/live").status, 200);
        assert_refused("ready", &server.get("/v2/health/ready"), 503, why);
        assert_refused("ready", &server.get("/v2/models/fake/ready"), 503, "`fake` is not ready");
    }
}

#[test]
fn what_was_done_is_counted_whoever_asked() {
    let server = Server::start();
    infer(&server, &json!({ "inputs": [text(&["a", "b"])] }));
    assert_eq!(server.post("/embed", r#"{"inputs":["a","b","c"]}"#).status, 200);
    assert_eq!(server.post("/embed", r#"{"inputs":"backend"}"#).status, 424);
    for path in ["/v2/models/stats", "/v2/models/fake/stats", "/v2/models/fake/versions/1/stats"] {
        let stats = ok(&server.get(path));
        let stats = &stats["model_stats"][0];
        assert_eq!((&stats["name"], &stats["version"]), (&json!("fake"), &json!("1")));
        assert_eq!(stats["inference_count"], 5, "{path}: {stats}");
        assert!(stats["last_inference"].as_u64().unwrap() > 1_700_000_000_000, "{stats}");
        let inference = &stats["inference_stats"];
        assert_eq!((&inference["success"]["count"], &inference["fail"]["count"]), (&json!(2), &json!(1)));
        assert_eq!(inference["queue"], json!({ "count": 2, "ns": 2 * 2_100_000 }));
        assert_eq!(inference["compute_infer"], json!({ "count": 2, "ns": 2 * 3_999_000 }));
        assert_eq!(inference["compute_output"]["count"], 2);
        assert_eq!(inference["cache_miss"]["count"], 0, "it keeps no answers");
    }
}

#[test]
fn every_task_has_its_tensors() {
    let near = |got: &[f32], expected: &Value, of: &Value| {
        assert_eq!(got.len(), list(expected).len(), "{of}");
        for (got, expected) in got.iter().zip(list(expected)) {
            assert_near(&json!(got), expected.as_f64().unwrap(), of);
        }
    };
    let ids = |ids: &Value| json!({ "inputs": [{ "name": "input_ids", "datatype": "INT64", "shape": [1, list(ids).len()], "data": ids }] });

    let (server, cases) = serve("pipeline-fill-mask-wordpiece");
    for case in cases.iter().filter(|case| list(&case["logits"]).len() == 1) {
        for body in [json!({ "inputs": [text(&[case["text"].as_str().unwrap()])] }), ids(&case["ids"])] {
            let answer = infer(&server, &body);
            let (shape, logits) = output(&answer, "logits");
            assert_eq!(shape, &json!([1, 1, logits.len()]), "{body}");
            near(&logits, &case["logits"][0], &body);
        }
    }

    let (server, cases) = serve("pipeline-entities-wordpiece");
    let case = &cases[0];
    let body = json!({ "inputs": [text(&[case["text"].as_str().unwrap()])] });
    let answer = infer(&server, &body);
    let (shape, logits) = output(&answer, "logits");
    let mask = output(&answer, "attention_mask").1;
    assert_eq!((shape[0].as_u64(), shape[1].as_u64()), (Some(1), Some(mask.len() as u64)));
    assert!(mask.iter().all(|&bit| bit == 1.0), "{mask:?}");
    near(&logits, &case["logits"], &body);

    let (server, cases) = serve("pipeline-answers-wordpiece");
    let (case, window) = (&cases[0], &cases[0]["windows"][0]);
    let pair = json!([case["question"], case["context"]]);
    let pair = json!({ "name": "text", "datatype": "BYTES", "shape": [1, 2], "data": pair });
    let body = json!({ "inputs": [pair] });
    let answer = infer(&server, &body);
    near(&output(&answer, "start_logits").1, &window["start"], &body);
    near(&output(&answer, "end_logits").1, &window["end"], &body);
}

/// Elements after their lengths, some of which are wrong.
pub(crate) fn elements() -> impl Strategy<Value = Vec<u8>> {
    let length =
        prop_oneof![6 => Just(None), 1 => any::<u32>().prop_map(Some), 1 => (0..9_u32).prop_map(Some)];
    let element = (length, "[a-c]{0,3}").prop_map(|(length, text)| {
        let length = length.unwrap_or(text.len() as u32);
        [&length.to_le_bytes()[..], text.as_bytes()].concat()
    });
    vec(element, 0..4).prop_map(|elements| elements.concat())
}

#[test]
fn large_tensors_are_put_together_away_from_the_threads_of_the_sockets() {
    let routes = routes(Arc::new(Fake::new(Health::Ready)));
    // Counts the threads that are started besides the one of the sockets.
    let others = |request: Request<Body>| {
        let started = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&started);
        let starts = move || {
            count.fetch_add(1, SeqCst);
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_start(starts)
            .build()
            .unwrap();
        let answer = runtime.block_on(async {
            let response = routes.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), 200);
            to_bytes(response.into_body(), usize::MAX).await.unwrap()
        });
        (started.load(SeqCst), answer.len())
    };
    let wanted = || json!([{ "name": "token_embeddings" }]);
    let over_http = |text: &str| {
        let body = json!({ "inputs": [self::text(&[text])], "outputs": wanted() });
        others(Request::post(INFER).body(Body::from(body.to_string())).unwrap())
    };
    let over_grpc = |text: &str| {
        let outputs =
            vec![InferRequestedOutputTensor { name: "token_embeddings".to_owned(), ..Default::default() }];
        let message = ModelInferRequest { outputs, id: String::new(), ..message(&[text], true) };
        let message = message.encode_to_vec();
        let frame = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
        let request = Request::post("/inference.GRPCInferenceService/ModelInfer");
        let request = request.header("content-type", "application/grpc").header("te", "trailers");
        others(request.body(Body::from(frame)).unwrap())
    };
    // A row of four values for each of its tokens.
    let (short, long) = ("a".repeat(100), "a".repeat(9000));
    for (of, (threads, bytes)) in [("HTTP", over_http(&short)), ("gRPC", over_grpc(&short))] {
        assert!(threads == 0 && bytes > 4 * 400, "{of}: {threads} threads for {bytes} bytes");
    }
    for (of, (threads, bytes)) in [("HTTP", over_http(&long)), ("gRPC", over_grpc(&long))] {
        assert!(threads > 0 && bytes > 4 * 36_000, "{of}: {threads} threads for {bytes} bytes");
    }
}

/// An input that claims some of the bytes after the JSON, or has data of its own.
fn input() -> impl Strategy<Value = Value> {
    let name = select(&["text", "input_ids", "attention_mask", "token_type_ids"][..]);
    let datatype = select(&["BYTES", "BYTES", "INT64", "INT32", "UINT8", "BOOL", "FP32", ""][..]);
    let size = prop_oneof![9 => 0..4_i64, 1 => select(&[i64::MAX, i64::MIN, -1, 1 << 32][..])];
    let said =
        prop_oneof![6 => (0..40_u64).prop_map(Some), 1 => any::<u64>().prop_map(Some), 1 => Just(None)];
    let data =
        select(vec![json!(["a"]), json!([[1, 2], [3, 0]]), json!([true]), json!([1, "a"]), Value::Null]);
    (name, datatype, vec(size, 0..3), said, data).prop_map(|(name, datatype, shape, said, data)| {
        let mut input = json!({ "name": name, "datatype": datatype, "shape": shape });
        match said {
            Some(size) => input["parameters"] = json!({ "binary_data_size": size }),
            None => input["data"] = data,
        }
        input
    })
}

#[test]
fn whatever_comes_is_answered() {
    let router = routes(Arc::new(Fake::new(Health::Ready)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let send = |json: &[u8], raw: &[u8], length: usize| {
        let request = Request::post(INFER).header("inference-header-content-length", length);
        let request = request.body(Body::from([json, raw].concat())).unwrap();
        let response = runtime.block_on(router.clone().oneshot(request)).unwrap();
        let status = response.status().as_u16();
        let answer = runtime.block_on(to_bytes(response.into_body(), usize::MAX)).unwrap();
        if status == 200 {
            assert!(String::from_utf8_lossy(&answer).starts_with(r#"{"model_name":"fake""#));
        } else {
            assert!([400, 422].contains(&status), "{status}: {answer:?}");
            let answer: Value = serde_json::from_slice(&answer).expect("every refusal is JSON");
            assert!(answer["error"].is_string(), "{answer}");
        }
        status == 200
    };
    let answered = Cell::new(0);
    let body = (vec(input(), 1..3), any::<bool>(), elements(), prop_oneof![9 => Just(0), 1 => -3..3_isize]);
    proptest!(ProptestConfig::with_cases(2000), |((inputs, binary, raw, lie) in body)| {
        let json = json!({ "inputs": inputs, "parameters": { "binary_data_output": binary } }).to_string();
        send(json.as_bytes(), &raw, json.len().saturating_add_signed(lie));
    });
    // The same parts, with true sizes.
    let body = (elements(), select(&[1_i64, 2][..]));
    proptest!(ProptestConfig::with_cases(300), |((raw, width) in body)| {
        let input = json!({
            "name": "text", "datatype": "BYTES", "shape": [1, width], "parameters": { "binary_data_size": raw.len() }
        });
        let json = json!({ "inputs": [input] }).to_string();
        answered.set(answered.get() + usize::from(send(json.as_bytes(), &raw, json.len())));
    });
    assert!(answered.get() > 20, "else what comes is refused too early: {answered:?}");
}
