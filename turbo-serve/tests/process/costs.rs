//! `--cost-cache`, `--packed-cache`: what one server has measured or packed the next one need not.

use std::{fs, path::PathBuf};

use serde_json::json;

use super::server::{Server, Signal};

/// The one file in a folder of costs.
fn only_file(folder: &std::path::Path) -> PathBuf {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

/// Starts a server with costs in `folder`, sends it a request and stops it; returns the log.
fn served(folder: &str) -> String {
    let server = Server::start(&["--cost-cache", folder]);
    assert_eq!(server.post("/embed", &json!({ "inputs": "the cat" })).0, 200);
    let (code, log) = server.end(Signal::Terminate);
    assert_eq!(code, Some(0), "{log}");
    log
}

#[test]
fn a_second_server_starts_from_what_the_first_has_measured() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("made");
    let log = served(folder.to_str().unwrap());
    assert!(log.contains("no costs of batches are kept yet"), "{log}");
    let first = fs::read_to_string(only_file(&folder)).unwrap();
    let log = served(folder.to_str().unwrap());
    assert!(log.contains("costs of batches are those of the last run"), "{log}");
    // Whether the measurements still hold depends on how busy the machine is; in both cases the server has kept what it
    // learnt.
    assert!(log.contains("the kept costs hold") || log.contains("the kept costs do not hold"), "{log}");
    assert_ne!(fs::read_to_string(only_file(&folder)).unwrap(), first);
}

#[test]
fn two_servers_share_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    std::thread::scope(|scope| {
        (0..2).for_each(|_| drop(scope.spawn(|| served(folder))));
    });
    only_file(dir.path());
}

#[test]
fn a_damaged_file_is_measured_again() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    served(folder);
    let file = only_file(dir.path());
    let whole = fs::read_to_string(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let log = served(folder);
    assert!(log.contains("WARN") && log.contains("the kept costs cannot be used: measuring again"), "{log}");
    assert!(log.contains(file.file_name().unwrap().to_str().unwrap()), "{log}");
    serde_json::from_str::<serde_json::Value>(&fs::read_to_string(&file).unwrap()).unwrap();
}

#[test]
fn a_folder_that_cannot_be_written_is_a_warning() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let log = served(file.path().join("below").to_str().unwrap());
    assert!(log.contains("WARN") && log.contains("costs of batches are not kept"), "{log}");
}

#[test]
fn a_second_server_copies_the_packed_weights_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("made");
    let packed = || {
        let server = Server::start(&["--dtype=float16", "--packed-cache", folder.to_str().unwrap()]);
        assert_eq!(server.get("/info").1["model_dtype"], "bfloat16");
        let answer = server.post("/embed", &json!({ "inputs": "the cat" }));
        let (code, log) = server.end(Signal::Terminate);
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("float16") && log.contains("computed in bf16"), "{log}");
        (answer, log)
    };
    let (first, log) = packed();
    assert!(log.contains("weights are packed") && log.contains("resident_mb"), "{log}");
    only_file(&folder);
    let (second, log) = packed();
    assert!(log.contains("packed weights are those of an earlier start"), "{log}");
    assert_eq!(first, second);
}

#[test]
fn off_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_in(dir.path(), &["--cost-cache=off", "--packed-cache=off"]);
    let (code, log) = server.end(Signal::Terminate);
    assert!(code == Some(0) && log.contains("warmed up") && !log.contains("are kept"), "{log}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

    let server = Server::start_in(dir.path(), &[]);
    assert_eq!(server.end(Signal::Terminate).0, Some(0));
    only_file(&dir.path().join(".cache/turbo/costs"));
    only_file(&dir.path().join(".cache/turbo/packed"));
}
