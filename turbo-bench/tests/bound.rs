//! What is started by way of `turbo-bench bound` ends with its parent process.

#![cfg(target_os = "linux")]

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

#[test]
fn a_server_ends_with_who_is_killed() {
    // the inner shell says its number, and becomes what runs
    let script = r#""$0" bound sh -c 'echo $$; exec sleep 60' & wait"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_turbo-bench")]).stdin(Stdio::null());
    let mut shell = shell.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let server: u32 = line.trim().parse().unwrap();
    // a process that has ended stays in the list, as a zombie, until its parent has waited for it
    let runs = || fs::read_to_string(format!("/proc/{server}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    assert!(runs());
    shell.kill().unwrap();
    shell.wait().unwrap();
    let killed = Instant::now();
    while runs() {
        assert!(killed.elapsed() < Duration::from_secs(10), "it goes on");
        thread::sleep(Duration::from_millis(5));
    }
}
