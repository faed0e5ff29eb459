//! What the program takes of the machine: threads, and time when there is nothing to do.

use std::{
    process::Command,
    thread::{available_parallelism, sleep},
    time::Duration,
};

use serde_json::json;

use super::server::{Server, Signal, run, turbo};

/// The program on the first core only; `None` where there is no `taskset`.
fn on_one_core() -> Option<Command> {
    if Command::new("taskset").arg("--version").output().is_err() {
        assert!(!is_required(), "there is no program `taskset`");
        eprintln!("SKIPPED: there is no program `taskset` to bind the server to a core with");
        return None;
    }
    let program = turbo();
    let mut command = Command::new("taskset");
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.args(["-c", "0"]).arg(program.get_program());
    Some(command)
}

/// Whether it is a failure that the machine lacks what a test needs.
fn is_required() -> bool {
    std::env::var_os("TURBO_REQUIRE_MACHINE").is_some_and(|value| value == "1")
}

#[test]
fn as_many_threads_compute_as_the_system_allows() {
    let all = available_parallelism().unwrap().get();
    let threads = if all == 1 { "1 thread)".to_owned() } else { format!("{all} threads)") };
    let (_, output) = run(&["devices"]);
    assert!(output.lines().next().unwrap().contains(&threads), "{output}");

    let Some(mut command) = on_one_core() else { return };
    let output = String::from_utf8(command.arg("devices").output().unwrap().stdout).unwrap();
    assert!(output.lines().next().unwrap().contains("1 thread)"), "{output}");
}

#[test]
fn tokens_are_made_on_the_cores_that_compute_leaves() {
    let all = available_parallelism().unwrap().get();
    let workers = |arguments: &[&str]| {
        let server = Server::start(arguments);
        let workers = server.get("/info").1["tokenization_workers"].as_u64().unwrap();
        assert_eq!(server.end(Signal::Terminate).0, Some(0));
        workers as usize
    };
    assert_eq!(workers(&[]), 1, "compute takes all cores");
    assert_eq!(workers(&["--threads=1"]), (all - 1).clamp(1, 64));
    assert_eq!(workers(&["--threads=1", "--tokenization-workers=3"]), 3);
}

/// Time that all threads of a process have run, by the system's count; `None` where it keeps none.
fn cpu_time(process: u32) -> Option<Duration> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let ran = threads.map(|thread| {
        let schedstat = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        schedstat.split(' ').next()?.parse::<u64>().ok()
    });
    ran.sum::<Option<u64>>().map(Duration::from_nanos)
}

#[test]
fn a_server_that_nobody_asks_uses_no_time() {
    let server = Server::start(&[]);
    for _ in 0..3 {
        assert_eq!(server.post("/embed", &json!({ "inputs": "the cat" })).0, 200);
    }
    sleep(Duration::from_millis(300)); // threads that spin for more work sleep by now, and the connection is closed
    let Some(before) = cpu_time(server.process()) else {
        assert!(!is_required(), "this system does not count the time of threads");
        eprintln!("SKIPPED: this system does not count the time of threads");
        return;
    };
    sleep(Duration::from_secs(2));
    let used = cpu_time(server.process()).unwrap() - before;
    assert!(used < Duration::from_millis(5), "{used:?} in two seconds of idleness");
    assert_eq!(server.end(Signal::Terminate).0, Some(0));
}
