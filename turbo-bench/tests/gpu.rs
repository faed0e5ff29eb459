//! `gpu.sh`, the script of the bundle, on a machine without a GPU.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use turbo_bench::figures::gpu::returned::{Ended, Manifest, STEPS};

const MANIFEST: &str = r#"{"commit":"0123456789ab","date":"2000-01-01T00:00:00Z","files":[]}"#;

/// What a run of the script left.
struct Run {
    out: tempfile::TempDir,
    went_well: bool,
    printed: String,
    steps: Vec<Ended>,
}

/// The script of a bundle, of so many seconds.
fn gpu(bundle: &Path, out: &Path, seconds: u32, steps: &[&str]) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu/gpu.sh");
    fs::copy(script, bundle.join("gpu.sh")).unwrap();
    fs::write(bundle.join("manifest.json"), format!("{MANIFEST}\n")).unwrap();
    let mut gpu = Command::new("bash");
    gpu.arg(bundle.join("gpu.sh")).arg(out).args(steps);
    // no Python has to be waited for
    gpu.env("TURBO_PEERS_PYTHON", "no-such-python").env("GPU_SECONDS", seconds.to_string());
    gpu
}

/// Runs it.
fn run(bundle: &Path, seconds: u32, steps: &[&str]) -> Run {
    let out = tempfile::tempdir().unwrap();
    let done = gpu(bundle, out.path(), seconds, steps).output().unwrap();
    let left = fs::read_to_string(out.path().join("run.jsonl")).unwrap();
    let (manifest, lines) = left.split_once('\n').unwrap();
    assert_eq!(serde_json::from_str::<Manifest>(manifest).unwrap().commit, "0123456789ab");
    let steps = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let printed = String::from_utf8(done.stdout).unwrap() + &String::from_utf8(done.stderr).unwrap();
    Run { out, went_well: done.status.success(), printed, steps }
}

/// A bundle whose program is a script.
fn stub(program: &str) -> tempfile::TempDir {
    let bundle = tempfile::tempdir().unwrap();
    let file = bundle.path().join("turbo-bench");
    fs::write(&file, format!("#!/bin/sh\n{program}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    bundle
}

fn names(steps: &[Ended]) -> Vec<&str> {
    steps.iter().map(|step| step.step.as_str()).collect()
}

#[test]
fn without_a_gpu_every_step_says_why_in_a_line() {
    let bundle =
        stub(r#"echo working >&2; echo 'error: no NVIDIA driver found ("libcuda.so.1" \ it)' >&2; exit 1"#);
    let run = run(bundle.path(), 60, &[]);
    assert!(!run.went_well);
    assert_eq!(names(&run.steps), STEPS);
    let why = r#"error: no NVIDIA driver found ("libcuda.so.1" \ it)"#;
    assert!(run.steps.iter().all(|step| (step.rc, step.says.as_str()) == (1, why)), "{:?}", run.steps);
    for step in STEPS {
        assert!(
            run.printed.contains(&format!("FAILED  {step} (exit code 1): error: no NVIDIA")),
            "{}",
            run.printed
        );
    }
    let mut files: Vec<String> = fs::read_dir(run.out.path())
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files, ["log.txt", "run.jsonl"]);
    let log = fs::read_to_string(run.out.path().join("log.txt")).unwrap();
    assert_eq!((log.matches("\n==> ").count(), log.matches("working").count()), (6, 6), "{log}");
}

/// This program was built without GPUs or finds none; in any case it says so.
#[test]
fn the_program_itself_says_why() {
    let bundle = tempfile::tempdir().unwrap();
    symlink(env!("CARGO_BIN_EXE_turbo-bench"), bundle.path().join("turbo-bench")).unwrap();
    let run = run(bundle.path(), 60, &["ceilings", "suite"]);
    // where there is a GPU after all they may go well
    assert_eq!(names(&run.steps), ["suite", "ceilings"]);
    assert!(run.steps.iter().all(|step| step.rc == 0 || step.says.starts_with("error: ")), "{}", run.printed);
}

#[test]
fn a_step_that_takes_too_long_is_ended_and_the_rest_is_told_apart() {
    // the second one never ends
    let bundle = stub(
        r#"echo "$2 begins"; case $2 in ceilings) sleep 1000 & wait ;; *) echo '{}' >"$4/$2.json" ;; esac"#,
    );
    let run = run(bundle.path(), 2, &[]);
    assert!(!run.went_well);
    let codes: Vec<i32> = run.steps.iter().map(|step| step.rc).collect();
    assert_eq!(codes, [0, 124, 124, 124, 124, 124], "{}", run.printed);
    assert!(run.steps[1].says.starts_with("not done after "), "{:?}", run.steps[1]);
    assert_eq!(run.steps[5].says, "no time was left");
    assert!(run.out.path().join("suite.json").exists() && !run.out.path().join("rows.json").exists());
}

#[test]
fn what_went_well_is_eight_files_and_no_more() {
    let bundle = stub(r#"[ "$1 $3" = "gpu --out" ] && echo '{}' >"$4/$2.json""#);
    let run = run(bundle.path(), 60, &[]);
    assert!(run.went_well, "{}", run.printed);
    assert!(run.steps.iter().all(|step| step.rc == 0), "{}", run.printed);
    assert_eq!(fs::read_dir(run.out.path()).unwrap().count(), 8);
    assert_eq!(run.printed.matches(" ok ").count(), 6, "{}", run.printed);
}

#[test]
fn a_step_that_nobody_knows_is_refused_before_anything_runs() {
    let (bundle, parent) = (stub("exit 0"), tempfile::tempdir().unwrap());
    let out = parent.path().join("out");
    let done = gpu(bundle.path(), &out, 60, &["suite", "encoders"]).output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.starts_with("encoders: no such step; expected some of suite ceilings "), "{said}");
    assert!(!out.exists());
}

#[test]
fn what_an_earlier_run_found_is_not_written_over() {
    let bundle = stub(r#"echo '{}' >"$4/$2.json""#);
    let first = run(bundle.path(), 60, &["suite"]);
    let again = gpu(bundle.path(), first.out.path(), 60, &["rows"]).output().unwrap();
    let said = String::from_utf8(again.stderr).unwrap();
    assert_eq!(again.status.code(), Some(2), "{said}");
    assert!(said.contains("/run.jsonl is there already: give another OUT"), "{said}");
    assert!(first.out.path().join("suite.json").exists() && !first.out.path().join("rows.json").exists());
    // of a run that was ended before it had anything else
    let out = tempfile::tempdir().unwrap();
    fs::write(out.path().join("log.txt"), "earlier").unwrap();
    let again = gpu(bundle.path(), out.path(), 60, &["rows"]).output().unwrap();
    let said = String::from_utf8(again.stderr).unwrap();
    assert_eq!(again.status.code(), Some(2), "{said}");
    assert!(said.contains("/log.txt is there already"), "{said}");
    assert_eq!(fs::read_to_string(out.path().join("log.txt")).unwrap(), "earlier");
}

/// `timeout` hides the step from a terminal's Ctrl-C. SIGTERM stands for it here: a shell cannot trap SIGINT where tests run
/// in the background.
#[test]
fn an_interruption_ends_the_step_that_runs() {
    let (bundle, out) = (
        stub(r#"echo $$ >"$4/writing" && mv "$4/writing" "$4/process" && exec sleep 1000"#),
        tempfile::tempdir().unwrap(),
    );
    let mut script = gpu(bundle.path(), out.path(), 60, &[]).spawn().unwrap();
    let (begun, file) = (Instant::now(), out.path().join("process"));
    while !file.exists() {
        assert!(begun.elapsed() < Duration::from_secs(30), "no step has begun");
        sleep(Duration::from_millis(10));
    }
    let step: i32 = fs::read_to_string(file).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_child(&script), Signal::TERM).unwrap();
    assert_eq!(script.wait().unwrap().code(), Some(143));
    assert!(begun.elapsed() < Duration::from_secs(30), "it was waited for");
    assert!(test_kill_process(Pid::from_raw(step).unwrap()).is_err(), "the step still runs");
}
