//! Several models from a file.

use std::{fs, path::Path};

use serde_json::json;
use tempfile::TempDir;

use crate::{
    assert_fails, data, path,
    server::{Server, Signal, run, tiny_model, turbo},
};

/// A folder with a file of this text, in which `{data}` is the folder of the fixtures.
pub(crate) fn written(text: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let text = text.replace("{data}", path(&data()));
    fs::write(folder.path().join("turbo.toml"), text).unwrap();
    folder
}

pub(crate) fn file(folder: &TempDir) -> String {
    path(&folder.path().join("turbo.toml")).to_owned()
}

const TWO: &str = "
default = 'ranker'
[server]
hostname = '127.0.0.1'
port = 9
max_client_batch_size = 1
";

fn two() -> String {
    let models = "
[[models]]
name = 'embedder'
aliases = ['org/embedder']
max_batch_tokens = 96
max_client_batch_size = 3
[[models.versions]]
version = '1'
model_id = '{data}/tiny-sentence'
[[models.versions]]
version = '2'
model_id = '{data}/tiny-dense'
[[models]]
name = 'labels'
model_id = '{data}/pipeline-classify'
load = 'request'
";
    TWO.replace("max_client_batch_size = 1\n", "").replace("ranker", "labels") + models
}

fn start(folder: &TempDir, arguments: &[&str]) -> Server {
    let mut command = turbo();
    command.args(["serve", "--config", &file(folder)]).args(arguments);
    Server::spawn(command)
}

#[test]
fn a_file_is_a_server_of_its_models() {
    let folder = written(&two());
    // The command line takes precedence over the file.
    let server = start(&folder, &["--port=0"]);
    let (_, models) = server.get("/v1/models");
    let names: Vec<&str> =
        models["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    let expected = ["embedder", "org/embedder", "embedder/1", "embedder/2", "labels", "labels/1"];
    assert_eq!(names, expected);
    for (route, fixture) in
        [("/models/embedder/versions/1/info", "tiny-sentence"), ("/models/embedder/info", "tiny-dense")]
    {
        let (_, info) = server.get(route);
        assert!(info["model_id"].as_str().unwrap().ends_with(fixture), "{info}");
        assert_eq!(
            (&info["served_model_name"], &info["max_client_batch_size"]),
            (&json!("embedder"), &json!(3))
        );
    }
    let (status, answer) = server.post("/predict", &json!({ "inputs": "the cat" }));
    assert_eq!(status, 200, "the default one is loaded for its first request: {answer}");
    assert_eq!(server.post("/models/embedder/embed", &json!({ "inputs": "the cat" })).0, 200);
    let (_, metrics) = server.get("/metrics");
    for line in ["te_embed_success{model=\"embedder/2\"} 1", "te_predict_success{model=\"labels/1\"} 1"] {
        assert!(metrics.as_str().unwrap().lines().any(|it| it == line), "no {line} in {metrics}");
    }
    assert_eq!(server.post("/models/ranker/rerank", &json!({ "query": "a", "texts": ["b"] })).0, 404);
    let (code, output) = server.end(Signal::Terminate);
    assert_eq!(code, Some(0), "{output}");
}

#[test]
fn an_ensemble_is_a_reranker_to_its_clients() {
    let text = "
[server]
hostname = '127.0.0.1'
port = 0
[[models]]
name = 'embedder'
model_id = '{data}/tiny-sentence'
[[models]]
name = 'ranker'
model_id = '{data}/tiny-cross-encoder'
[[ensembles]]
name = 'search'
output = 'ranked'
[[ensembles.steps]]
name = 'ranked'
do = 'rerank'
model = 'ranker'
query = 'request.query'
texts = 'near'
[[ensembles.steps]]
name = 'near'
do = 'retrieve'
model = 'embedder'
query = 'request.query'
texts = 'request.texts'
keep = 2
";
    let folder = written(text);
    let server = start(&folder, &[]);
    let texts = ["the cat sat", "a dog", "the mat", "the cat sat on the mat"];
    let body = json!({ "query": "the cat sat on the mat", "texts": texts });
    let (status, ranks) = server.post("/models/search/rerank", &body);
    let ranks = ranks.as_array().unwrap();
    assert_eq!((status, ranks.len()), (200, 4), "{ranks:?}");
    let scores: Vec<f64> = ranks.iter().map(|rank| rank["score"].as_f64().unwrap()).collect();
    assert!(scores[0] >= scores[1] && scores[1] > 0.0 && scores[2..] == [0.0, 0.0], "{scores:?}");
    let kept: Vec<usize> = ranks[..2].iter().map(|rank| rank["index"].as_u64().unwrap() as usize).collect();
    assert!(kept.contains(&3), "the text itself is nearest: {kept:?}");
    // The model alone gives them the same scores.
    let alone = json!({ "query": "the cat sat on the mat", "texts": kept.iter().map(|&at| texts[at]).collect::<Vec<_>>() });
    let (_, alone) = server.post("/models/ranker/rerank", &alone);
    assert_eq!(alone[0]["score"], ranks[0]["score"]);
    assert_eq!(server.post("/models/search/embed", &json!({ "inputs": "a" })).0, 424);
    assert_eq!(server.post("/models/search/predict", &json!({ "inputs": "a" })).0, 422);
    let (code, output) = server.end(Signal::Terminate);
    assert_eq!(code, Some(0), "{output}");
}

#[test]
fn a_model_runs_on_the_device_that_it_chooses() {
    let text = "
[server]
hostname = '127.0.0.1'
port = 0
[[models]]
name = 'elsewhere'
model_id = '{data}/tiny-sentence'
device = 'DEVICE'
[[models]]
name = 'here'
model_id = '{data}/tiny-sentence'
";
    // The command line's device is for models that choose none.
    let folder = written(&text.replace("DEVICE", "cuda:4000000"));
    let beside = run(&["serve", "--config", &file(&folder), "--device=cpu"]);
    assert_fails(beside, &["--device cuda:4000000: "]);
    let folder = written(&text.replace("DEVICE", "cpu"));
    let nowhere = run(&["serve", "--config", &file(&folder), "--device=cuda:4000000"]);
    assert_fails(nowhere, &["--device cuda:4000000: "]);
    let server = start(&folder, &["--device=cpu"]);
    assert_eq!(server.post("/models/elsewhere/embed", &json!({ "inputs": "the cat" })).0, 200);
    assert_eq!(server.end(Signal::Terminate).0, Some(0));
}

/// As with a certificate that was renewed.
#[test]
fn a_half_of_tls_may_be_said_beside_the_file_of_the_other() {
    let text = "
[server]
hostname = '127.0.0.1'
port = 0
tls_cert = 'nowhere'
tls_key = 'key'
[[models]]
name = 'embedder'
model_id = '{data}/tiny-sentence'
";
    let folder = written(text);
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let cert = folder.path().join("cert");
    fs::write(&cert, signed.cert.pem()).unwrap();
    fs::write(folder.path().join("key"), signed.signing_key.serialize_pem()).unwrap();
    let server = start(&folder, &["--tls-cert", path(&cert)]);
    assert_eq!(server.get("/health").0, 200);
    assert_eq!(server.end(Signal::Terminate).0, Some(0));
}

#[test]
fn a_folder_where_it_is_started_is_none_of_the_file() {
    let folder = written("[server]\nport = 0\n[[models]]\nname = 'ranker'\nmodel_id = 'models/ranker'\n");
    let elsewhere = tempfile::tempdir().unwrap();
    fs::create_dir_all(elsewhere.path().join("models/ranker")).unwrap();
    let mut command = turbo();
    command.args(["serve", "--hostname=127.0.0.1", "--config", &file(&folder)]).current_dir(elsewhere.path());
    command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", elsewhere.path());
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("models/ranker: HF_HUB_OFFLINE is set"), "{said}");
}

#[test]
fn mistakes_are_told_before_anything_is_loaded() {
    let folder = written(&format!("{TWO}[[models]]\nname = 'ranker'\nmodel_id = 'nowhere/at/all'\n"));
    let file = file(&folder);
    for command in [&["check-config", &file][..], &["serve", "--config", &file]] {
        let said =
            [":6: max_client_batch_size: unknown key in server: it belongs in [[models]]", ":9: model_id: "];
        let (code, output) = run(command);
        assert_eq!(code, Some(1), "{output}");
        assert!(said.iter().all(|said| output.contains(said)), "{output}");
        assert!(output.ends_with(&format!("error: {file}: 2 mistakes\n")), "{output}");
    }
    let sound = written(&two());
    let (code, output) = run(&["check-config", &self::file(&sound)]);
    assert_eq!(code, Some(0), "{output}");
    let expected = format!("{}: sound: embedder (1 from ", self::file(&sound));
    assert!(output.starts_with(&expected) && output.contains("), labels (1 from "), "{output}");
    assert!(!output.contains("Hub"), "{output}");
}

#[test]
fn a_folder_that_is_not_there_is_not_silently_one_of_the_hub() {
    let model = |id: &str, more: &str| format!("[[models]]\nname = 'm'\nmodel_id = '{id}'\n{more}");
    let check = |text: &str| {
        let folder = written(text);
        fs::create_dir(folder.path().join("models")).unwrap();
        run(&["check-config", &file(&folder)])
    };
    let (code, output) = check(&model("model/nope", ""));
    assert!(code == Some(0) && output.trim_end().ends_with("m (1 from the Hub: model/nope)"), "{output}");
    let (code, output) = check(&model("models/nope", ""));
    assert_eq!(code, Some(1), "{output}");
    assert!(
        output.contains(":3: model_id: models/nope: no such folder, and there is a folder models"),
        "{output}"
    );
    assert!(output.contains("set its `revision`"), "{output}");
    let (code, output) = check(&model("models/nope", "revision = 'main'\n"));
    assert!(code == Some(0) && output.contains("from the Hub: models/nope"), "{output}");
}

/// As Compose files set them.
#[test]
fn variables_that_are_set_to_nothing_say_nothing() {
    let nothing = [
        "REVISION",
        "DTYPE",
        "POOLING",
        "DEFAULT_PROMPT",
        "SERVED_MODEL_NAME",
        "HUGGINGFACE_HUB_CACHE",
        "PACKED_CACHE",
        "PAYLOAD_LIMIT",
        "JSON_OUTPUT",
        "OTLP_ENDPOINT",
        "PROMETHEUS_PORT",
        "AIP_HTTP_PORT",
    ];
    let serve = |arguments: &[&str]| {
        let mut command = turbo();
        command.args(["serve", "--hostname=127.0.0.1", "--port=0"]).args(arguments);
        command.envs(nothing.map(|variable| (variable, "")));
        command
    };
    let folder = written(&two());
    let (file, model) = (file(&folder), tiny_model());
    for place in [["--config", &file], ["--model-id", path(&model)]] {
        let (code, output) = Server::spawn(serve(&place)).end(Signal::Terminate);
        assert_eq!(code, Some(0), "{output}");
        assert!(!output.contains("means nothing here"), "{output}");
    }
    // But an empty key would protect nothing, and an empty list of origins would allow all.
    for (variable, expected) in [
        ("API_KEY", "it is empty: give a key"),
        ("CORS_ALLOW_ORIGIN", "expected `*`, or scheme, host and port"),
    ] {
        let output = serve(&["--model-id=nowhere/at/all"]).env(variable, "").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(expected), "{said}");
    }
}

#[test]
fn flags_of_a_model_are_refused_beside_a_file() {
    let folder = written(&two());
    let file = file(&folder);
    assert_fails(
        run(&["serve", "--config", &file, "--dtype=bf16"]),
        &["--dtype beside --config", "[[models]]"],
    );
    assert_fails(
        run(&["serve", "--config", &file, "--served-model-name=x"]),
        &["--served-model-name beside --config", "set `name` in their [[models]]"],
    );
    for (arguments, variable, value, expected) in [
        (["--config", &file], "MODEL_ID", "minilm", "the variable MODEL_ID beside --config: "),
        (["--model-id", "minilm"], "CONFIG", &file, "--model-id beside the variable CONFIG: "),
    ] {
        let mut command = turbo();
        command.arg("serve").args(arguments).env(variable, value);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains(expected), "{said}");
    }
    assert_fails(run(&["serve", "--config", path(Path::new("nowhere.toml"))]), &["nowhere.toml"]);
    let (code, output) = run(&["serve"]);
    assert_eq!(code, Some(2));
    assert!(output.contains("--model-id"), "{output}");
}
