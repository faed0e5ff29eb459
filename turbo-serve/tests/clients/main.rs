//! Common Python clients, from Python's package index, against a running server.
//!
//! They lie where `.ci/run` puts them, in `target/clients`. Where they are missing the tests say so and pass, unless
//! `TURBO_REQUIRE_CLIENTS=1`.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

#[path = "../process/server.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod server;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use server::{Server, drain, turbo, wait};

/// Time that a client may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(240);

/// The folder of the tests' models, built into another crate's tests.
fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data")
}

/// Where the clients are, if they are.
fn clients() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/clients");
    let there = folder.join("tritonclient").is_dir();
    let required = std::env::var_os("TURBO_REQUIRE_CLIENTS").is_some_and(|value| value == "1");
    assert!(there || !required, "no clients in {}: .ci/run installs them", folder.display());
    if !there {
        println!("skipped: no clients in {}", folder.display());
    }
    there.then_some(folder)
}

/// Runs a client script against a server of this model; its arguments may need the server's address.
fn ask(model: &str, script: &str, arguments: impl Fn(&str) -> Vec<String>) {
    let Some(clients) = clients() else { return };
    let server = Server::start_model(&data().join(model), &[]);
    ask_server(&clients, &server, script, &arguments(server.address()));
}

fn ask_server(clients: &Path, server: &Server, script: &str, arguments: &[String]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(script);
    let mut command = Command::new("python3");
    command.arg(&script).args(arguments);
    // None of the variables of the environment, such as proxies and tokens, and no connection that leaves this machine.
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path).env("PYTHONPATH", clients).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("HOME", std::env::temp_dir()).env("HF_HUB_DISABLE_TELEMETRY", "1").env("NO_PROXY", "*");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (stdout, stderr) = (drain(child.stdout.take().unwrap()), drain(child.stderr.take().unwrap()));
    let status = wait(&mut child);
    let said = stdout.join().unwrap() + &stderr.join().unwrap();
    assert!(status.success(), "{} {arguments:?} at {}: {said}", script.display(), server.address());
}

fn url(address: &str) -> String {
    format!("http://{address}")
}

#[test]
fn openai() {
    ask("tiny-sentence", "openai_sdk.py", |address| vec![url(address)]);
}

#[test]
fn cohere() {
    for (task, model) in [("embed", "tiny-sentence"), ("rerank", "tiny-cross-encoder")] {
        ask(model, "cohere_sdk.py", |address| vec![task.to_owned(), url(address)]);
    }
}

#[test]
fn langchain() {
    ask("tiny-sentence", "langchain_embeddings.py", |address| vec![url(address)]);
}

#[test]
fn hugging_face() {
    for (task, model) in [
        ("feature-extraction", "tiny-sentence"),
        ("sentence-similarity", "tiny-sentence"),
        ("text-classification", "pipeline-classify"),
        ("token-classification", "pipeline-entities-roberta"),
        ("question-answering", "pipeline-answers-roberta"),
        ("fill-mask", "pipeline-fill-mask-wordpiece"),
    ] {
        ask(model, "hugging_face.py", |address| vec![task.to_owned(), url(address)]);
    }
}

#[test]
fn triton() {
    let Some(clients) = clients() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = |name: &str, fixture: &str| {
        format!("[[models]]\nname = '{name}'\nmodel_id = '{}'\n", data().join(fixture).display())
    };
    let ensemble = "[[ensembles]]
        name = 'topics'
        output = 'topic'
        [[ensembles.steps]]
        name = 'vector'
        do = 'embed'
        model = 'embedder'
        texts = 'request.texts'
        [[ensembles.steps]]
        name = 'topic'
        do = 'nearest'
        vectors = 'vector'
        labels = { animals = 'the cat sat on the mat', food = 'a hot soup' }
        ";
    let models =
        [&model("embedder", "tiny-sentence"), &model("ranker", "tiny-cross-encoder"), ensemble].concat();
    let config = folder.path().join("turbo.toml");
    fs::write(&config, models).unwrap();
    for protocol in ["http", "grpc"] {
        let mut command = turbo();
        command.args(["serve", "--hostname=127.0.0.1", "--port=0", "--config"]).arg(&config);
        let server = Server::spawn(command);
        ask_server(&clients, &server, "triton.py", &[protocol.to_owned(), server.address().to_owned()]);
    }
}

#[test]
fn grpcio() {
    let services = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto").display().to_string();
    for (task, model) in
        [("embed", "tiny-sentence"), ("predict", "pipeline-classify"), ("rerank", "tiny-cross-encoder")]
    {
        ask(model, "tei_grpc.py", |address| vec![task.to_owned(), address.to_owned(), services.clone()]);
    }
}

#[test]
fn schemathesis() {
    for (model, paths) in [("tiny-sentence", "."), ("tiny-cross-encoder", "rerank|predict|vertex|^/$")] {
        ask(model, "schema.py", |address| vec![url(address), paths.to_owned()]);
    }
}
