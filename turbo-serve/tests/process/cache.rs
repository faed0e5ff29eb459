//! `--cache-bytes`, `--cache-dir`: what is answered once is not computed again.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use super::server::{Server, Signal, run};

/// The value of a metric, by its name and labels.
pub(crate) fn metric(server: &Server, name: &str) -> Option<f64> {
    let (_, metrics) = server.get("/metrics");
    metrics.as_str()?.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn an_answer_comes_again_without_being_computed() {
    let server = Server::start(&[]);
    let ask = || server.post("/embed", &json!({ "inputs": ["the cat", "a dog sat"] }));
    let first = ask();
    assert_eq!(first.0, 200);
    let batches = metric(&server, "te_batch_next_size_count");
    assert_eq!(ask(), first);
    assert_eq!(metric(&server, "te_batch_next_size_count"), batches);
    assert_eq!(metric(&server, "turbo_cache_misses"), Some(2.0));
    assert_eq!(metric(&server, "turbo_cache_hits{tier=\"memory\"}"), Some(2.0));
    assert_eq!(metric(&server, "turbo_cache_entries{tier=\"memory\"}"), Some(2.0));
    assert_eq!(metric(&server, "te_request_input_length_count"), Some(4.0));
    assert!(metric(&server, "turbo_cache_bytes{tier=\"memory\"}").unwrap() > 64.0);
    assert_eq!(server.get("/info").1["cache_bytes"], 256 << 20);
    assert_eq!(server.end(Signal::Terminate).0, Some(0));
}

#[test]
fn no_bytes_are_no_cache() {
    let server = Server::start(&["--cache-bytes=0"]);
    let ask = || server.post("/embed", &json!({ "inputs": "the cat" }));
    assert_eq!(ask(), ask());
    assert_eq!(metric(&server, "te_batch_next_size_count"), Some(2.0));
    assert_eq!(metric(&server, "turbo_cache_misses"), Some(0.0));
    assert_eq!(server.get("/info").1["cache_bytes"], 0);
    assert_eq!(server.end(Signal::Terminate).0, Some(0));
}

/// A server that keeps answers in `folder`.
fn start(folder: &Path, arguments: &[&str]) -> Server {
    Server::start(&[&["--cache-dir", folder.to_str().unwrap()], arguments].concat())
}

fn embed(server: &Server) -> Value {
    let (status, rows) = server.post("/embed", &json!({ "inputs": ["the cat", "a dog sat"] }));
    assert_eq!(status, 200);
    rows
}

const IN_FOLDER: &str = "turbo_cache_hits{tier=\"folder\"}";

#[test]
fn answers_outlive_the_server_and_are_of_one_model() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("answers");
    let first = start(&folder, &[]);
    let rows = embed(&first);
    assert_eq!(first.end(Signal::Terminate).0, Some(0));

    let again = start(&folder, &["--threads=1"]);
    assert_eq!(embed(&again), rows);
    assert_eq!(metric(&again, IN_FOLDER), Some(2.0));
    assert_eq!(metric(&again, "turbo_cache_misses"), Some(0.0));
    assert!(metric(&again, "turbo_cache_bytes{tier=\"folder\"}").unwrap() > 1000.0);
    embed(&again);
    assert_eq!(metric(&again, IN_FOLDER), Some(2.0), "the second time they are in memory");
    assert_eq!(again.end(Signal::Terminate).0, Some(0));

    for other in ["--dtype=bf16", "--pooling=cls", "--layout=padded"] {
        let other = start(&folder, &[other]);
        embed(&other);
        assert_eq!(metric(&other, "turbo_cache_misses"), Some(2.0));
        assert_eq!(other.end(Signal::Terminate).0, Some(0));
    }
}

#[test]
fn a_server_that_is_killed_leaves_a_folder_that_can_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let killed = start(dir.path(), &[]);
    let rows = embed(&killed);
    killed.wait_for_metric("turbo_cache_entries{tier=\"folder\"}", 2);
    let kill = format!("kill -KILL {}", killed.process());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    drop(killed);
    let again = start(dir.path(), &[]);
    assert_eq!(embed(&again), rows);
    assert_eq!(metric(&again, IN_FOLDER), Some(2.0));
    let (code, log) = again.end(Signal::Terminate);
    assert!(code == Some(0) && !log.contains("WARN"), "{log}");
}

#[test]
fn a_folder_that_cannot_be_used_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (start(dir.path(), &[]), start(dir.path(), &[]));
    assert_eq!(embed(&first), embed(&second));
    let (code, log) = second.end(Signal::Terminate);
    assert!(code == Some(0) && log.contains("WARN"), "{log}");
    assert!(
        log.contains("answers are not kept in the folder") && log.contains("another server uses it"),
        "{log}"
    );
    let (code, log) = first.end(Signal::Terminate);
    assert!(code == Some(0) && !log.contains("WARN"), "{log}");

    let file = tempfile::NamedTempFile::new().unwrap();
    let (code, log) = start(&file.path().join("below"), &[]).end(Signal::Terminate);
    assert!(code == Some(0) && log.contains("answers are not kept in the folder"), "{log}");
}

#[test]
fn a_damaged_file_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let first = start(dir.path(), &[]);
    let rows = embed(&first);
    assert_eq!(first.end(Signal::Terminate).0, Some(0));
    let file = dir.path().join("answers-1.redb");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let again = start(dir.path(), &[]);
    assert_eq!(embed(&again), rows);
    let (code, log) = again.end(Signal::Terminate);
    assert!(code == Some(0) && log.contains("WARN") && log.contains("is set aside"), "{log}");
    assert!(log.contains("answers-1.redb"), "{log}");
    let last = start(dir.path(), &[]);
    assert_eq!((embed(&last), metric(&last, IN_FOLDER)), (rows, Some(2.0)));
    assert_eq!(last.end(Signal::Terminate).0, Some(0));
}

#[test]
fn a_number_of_bytes_is_expected() {
    for (value, said) in [("much", "268435456, 256MiB or 1GB"), ("1000", "expected 65536 or more, or 0")] {
        let (code, output) = run(&["serve", "--model-id=minilm", "--cache-bytes", value]);
        assert_eq!(code, Some(2), "{output}");
        assert!(
            output.contains(value) && output.contains("--cache-bytes") && output.contains(said),
            "{output}"
        );
    }
}
