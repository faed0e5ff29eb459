//! A disk that is full, at the start or from some moment on: what was to be kept is lost, and requests are answered all
//! the same.
//!
//! The system's limit on the length of files stands for the disk: writing beyond it is an error as on a disk without
//! room. The log is a pipe, and knows no such limit.

use std::{fs, process::Command};

use serde_json::json;

use crate::{
    cache::metric,
    server::{Server, Signal, tiny_model, turbo},
};

const UNWRITTEN: &str = "turbo_cache_unwritten{tier=\"folder\"}";
const ENTRIES: &str = "turbo_cache_entries{tier=\"folder\"}";

/// Serves the tiny model where no file grows beyond this many blocks of 512 bytes; `folder` keeps answers and costs.
fn start(folder: &std::path::Path, blocks: u64) -> Server {
    let turbo = turbo();
    let mut shell = Command::new("sh");
    shell.env_clear().env("RUST_LOG", "info").env("DEVICE", "cpu");
    shell.stdin(std::process::Stdio::null());
    shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    shell.args(["-c", &format!("ulimit -f {blocks}; exec \"$0\" \"$@\"")]);
    shell.arg(turbo.get_program()).args(["serve", "--hostname=127.0.0.1", "--port=0", "--model-id"]);
    shell.arg(tiny_model()).arg("--packed-cache=off");
    shell.arg("--cache-dir").arg(folder.join("answers")).arg("--cost-cache").arg(folder.join("costs"));
    Server::spawn(shell)
}

/// Sends 32 texts that no other round has, and expects every answer.
fn ask(server: &Server, round: usize) {
    let words = ["the", "cat", "sat", "on", "mat", "dog", "and", "a"];
    let text = |number: usize| {
        let words: Vec<&str> = (0..6).map(|digit| words[(number >> (3 * digit)) % 8]).collect();
        words.join(" ")
    };
    let texts: Vec<String> = (32 * round..32 * (round + 1)).map(text).collect();
    let (status, rows) = server.post("/embed", &json!({ "inputs": texts }));
    assert_eq!((status, rows.as_array().map(Vec::len)), (200, Some(32)), "round {round}");
}

/// The one line of the log with these words.
#[track_caller]
fn assert_once(log: &str, said: &str) {
    assert_eq!(log.lines().filter(|line| line.contains(said)).count(), 1, "{said}: {log}");
}

#[test]
fn nothing_is_kept_on_a_disk_that_is_full_from_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), 0);
    (0..20).for_each(|round| ask(&server, round));
    ask(&server, 0);
    assert!(metric(&server, "turbo_cache_hits{tier=\"memory\"}") >= Some(32.0), "memory is as it was");
    let (code, log) = server.end(Signal::Terminate);
    assert_eq!(code, Some(0), "{log}");
    assert_once(&log, "answers are not kept in the folder");
    assert!(log.contains("costs of batches are not kept") && !log.contains("panicked"), "{log}");
    assert!(
        !folder
            .path()
            .join("costs")
            .read_dir()
            .unwrap()
            .any(|file| { fs::metadata(file.unwrap().path()).unwrap().len() > 0 })
    );
}

#[test]
fn a_disk_that_becomes_full_costs_what_came_last() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), 3000);
    ask(&server, 0);
    server.wait_for_metric(ENTRIES, 32);
    let mut round = 0;
    while metric(&server, UNWRITTEN) == Some(0.0) {
        round += 1;
        assert!(round < 3000, "the disk was never full");
        ask(&server, round);
    }
    // The same holds for all later requests.
    (0..20).for_each(|more| ask(&server, round + 1 + more));
    let (code, log) = server.end(Signal::Terminate);
    assert_eq!(code, Some(0), "{log}");
    assert_once(&log, "answers are not kept in the folder now");
    assert!(!log.contains("panicked"), "{log}");

    // What was written before is there, and whole.
    let again = Server::start(&["--cache-dir", folder.path().join("answers").to_str().unwrap()]);
    ask(&again, 0);
    assert_eq!(metric(&again, "turbo_cache_hits{tier=\"folder\"}"), Some(32.0));
    let (code, log) = again.end(Signal::Terminate);
    assert!(code == Some(0) && !log.contains("set aside"), "{log}");
}
