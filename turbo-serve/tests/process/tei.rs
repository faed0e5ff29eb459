//! The flags and variables of text-embeddings-inference start turbo, too.

use serde_json::{Value, json};

use crate::server::{Server, Signal, run, tiny_model, turbo};

/// A flag, a value, and the field of `/info` that then shows a value.
type Flag = (&'static str, &'static str, Option<(&'static str, &'static str)>);

/// Every flag of text-embeddings-inference, except those that are tested alongside.
const FLAGS: [Flag; 24] = [
    ("--tokenization-workers", "2", Some(("tokenization_workers", "2"))),
    ("--dtype", "float32", Some(("model_dtype", "\"float32\""))),
    ("--served-model-name", "org/served", Some(("served_model_name", "\"org/served\""))),
    ("--pooling", "cls", Some(("model_type", r#"{"embedding":{"pooling":"cls"}}"#))),
    ("--max-concurrent-requests", "64", Some(("max_concurrent_requests", "64"))),
    ("--max-batch-tokens", "512", Some(("max_batch_tokens", "512"))),
    ("--max-batch-requests", "7", Some(("max_batch_requests", "7"))),
    ("--max-client-batch-size", "5", Some(("max_client_batch_size", "5"))),
    ("--auto-truncate", "false", Some(("auto_truncate", "false"))),
    ("--default-prompt", "say: ", None),
    ("--revision", "main", None),
    ("--hf-api-token", "old", None),
    ("--hf-token", "new", None),
    ("--hostname", "127.0.0.1", None),
    ("--port", "0", None),
    ("--huggingface-hub-cache", "nowhere", None),
    ("--payload-limit", "1000", None),
    ("--api-key", "secret", None),
    ("--json-output", "true", None),
    ("--disable-spans", "true", None),
    ("--otlp-endpoint", "http://127.0.0.1:1", None),
    ("--otlp-service-name", "tei", None),
    ("--prometheus-port", "9000", None),
    ("--cors-allow-origin", "https://example.org", None),
];

/// Flags about files that the tests' model does not have: each is refused for that, and not as unknown.
const ABOUT_FILES: [(&str, &str, &str); 2] = [
    ("--default-prompt-name", "query", "the model's prompts are: none"),
    ("--dense-path", "2_Dense", "2_Dense"),
];

/// Flags without a value.
const SWITCHES: [&str; 2] = ["--json-output", "--disable-spans"];

fn check(server: Server, socket: &std::path::Path) {
    assert!(!cfg!(unix) || socket.exists());
    let (status, _) = server.get("/info");
    assert_eq!(status, 401, "it has a key");
    let info = server.get_with_key("/info", "secret");
    for (flag, _, expected) in FLAGS {
        let Some((field, value)) = expected else { continue };
        assert_eq!(info[field], serde_json::from_str::<Value>(value).unwrap(), "{flag}");
    }
    let (code, output) = server.end(Signal::Terminate);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{output}");
    for ignored in ["--revision main", "--disable-spans", "--prometheus-port"] {
        let said = output.matches(&format!("{ignored} means nothing here")).count();
        assert_eq!(said, 1, "{ignored} in {output}");
    }
}

#[test]
fn every_flag_starts_turbo() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut command = turbo();
    command.args(["serve", "--model-id"]).arg(tiny_model()).arg("--uds-path").arg(&socket);
    for (flag, value, _) in &FLAGS {
        command.arg(flag);
        if !SWITCHES.contains(flag) {
            command.arg(value);
        }
    }
    check(Server::spawn(command), &socket);
}

#[test]
fn every_variable_starts_turbo() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let variable = |flag: &str| flag.trim_start_matches('-').replace('-', "_").to_uppercase();
    let mut command = turbo();
    command.arg("serve").env("MODEL_ID", tiny_model()).env("UDS_PATH", &socket);
    command.env("USE_FLASH_ATTENTION", "False").env("TASK", "feature-extraction");
    for (flag, value, _) in &FLAGS {
        command.env(variable(flag), value);
    }
    check(Server::spawn(command), &socket);
}

#[test]
fn flags_about_files_are_looked_for_in_the_folder() {
    for (flag, value, said) in ABOUT_FILES {
        let model = tiny_model();
        let arguments = ["serve", "--hostname=127.0.0.1", "--port=0", "--model-id", model.to_str().unwrap()];
        let (code, output) = run(&[&arguments[..], &[flag, value]].concat());
        assert!(code == Some(1) && output.contains(said), "{flag}: {output}");
    }
}

#[test]
fn variables_of_its_platforms_are_heeded() {
    let mut command = turbo();
    command.args(["serve", "--hostname=127.0.0.1", "--model-id"]).arg(tiny_model());
    // a port in use, over which the platform's choice takes precedence
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    command.env("PORT", taken.local_addr().unwrap().port().to_string()).env("AIP_HTTP_PORT", "0");
    command.env("AIP_PREDICT_ROUTE", "/predict").env("AIP_HEALTH_ROUTE", "/v1/models/up");
    command.env("API_KEY", "secret");
    command.env("TASK", "sentence-similarity");
    let server = Server::spawn(command);
    assert_eq!(server.get("/v1/models/up").0, 200, "who watches has no key");
    let instances = json!({ "instances": [{ "inputs": "a" }] });
    assert_eq!(server.post("/predict", &instances).0, 401);
    let answer = server.post_with_key("/predict", &instances, "secret");
    assert_eq!(answer["predictions"].as_array().map(Vec::len), Some(1), "{answer}");
    let sentences = json!({ "source_sentence": "a cat", "sentences": ["a cat", "a dog", "the mat"] });
    let answer = server.post_with_key("/", &json!({ "inputs": sentences }), "secret");
    assert_eq!(answer.as_array().map(Vec::len), Some(3), "{answer}");
    assert_eq!(server.end(Signal::Terminate).0, Some(0));
}
