//! The clients that people use, from Python's index, against a server that serves.
//!
//! They lie where `.ci/run` puts them, in `target/clients`. Where they are missing the tests say so and pass, unless
//! `TURBO_REQUIRE_CLIENTS` is set.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

#[path = "../process/server.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod server;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use server::{Server, drain, wait};

/// Time that a client may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(240);

/// The folder of the tests' models, built into another crate's tests.
fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data")
}

/// Where the clients are, if they are.
fn clients() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/clients");
    let there = folder.join("openai").is_dir();
    let required = std::env::var_os("TURBO_REQUIRE_CLIENTS").is_some();
    assert!(there || !required, "no clients in {}: .ci/run installs them", folder.display());
    if !there {
        println!("skipped: no clients in {}", folder.display());
    }
    there.then_some(folder)
}

/// Has a script ask a server of this model.
fn ask(model: &str, script: &str, arguments: impl Fn(&str) -> Vec<String>) {
    let Some(clients) = clients() else { return };
    let server = Server::start_model(&data().join(model), &[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(script);
    let mut command = Command::new("python3");
    command.arg(&script).args(arguments(&format!("http://{}", server.address())));
    // Nothing of whoever runs the tests, proxies and tokens among it, and nothing that leaves this machine.
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path).env("PYTHONPATH", clients).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("HOME", std::env::temp_dir()).env("HF_HUB_DISABLE_TELEMETRY", "1").env("NO_PROXY", "*");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (stdout, stderr) = (drain(child.stdout.take().unwrap()), drain(child.stderr.take().unwrap()));
    let status = wait(&mut child);
    let said = stdout.join().unwrap() + &stderr.join().unwrap();
    assert!(status.success(), "{} at {model}: {said}", script.display());
}

#[test]
fn openai() {
    ask("tiny-sentence", "openai_sdk.py", |url| vec![url.to_owned()]);
}

#[test]
fn langchain() {
    ask("tiny-sentence", "langchain_embeddings.py", |url| vec![url.to_owned()]);
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
        ask(model, "hugging_face.py", |url| vec![task.to_owned(), url.to_owned()]);
    }
}

#[test]
fn schemathesis() {
    for (model, paths) in [("tiny-sentence", "."), ("tiny-cross-encoder", "rerank|predict|vertex|^/$")] {
        ask(model, "schema.py", |url| vec![url.to_owned(), paths.to_owned()]);
    }
}
