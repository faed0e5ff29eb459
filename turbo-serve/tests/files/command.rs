//! The binary as a child process.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Child, ChildStdin, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Time that a step of a test may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);

/// `turbo COMMAND --model-id MODEL ARGUMENTS`, without the variables of the tests' environment.
pub(crate) fn turbo(command: &str, model: &Path, arguments: &[&str]) -> Command {
    let mut turbo = Command::new(env!("CARGO_BIN_EXE_turbo"));
    turbo.env_clear().env("HF_HUB_OFFLINE", "1").arg(command).arg("--model-id").arg(model).args(arguments);
    turbo.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    turbo
}

/// Exit code, standard output, standard error.
pub(crate) type Done = (Option<i32>, String, String);

pub(crate) fn run(mut turbo: Command) -> Done {
    done(turbo.output().unwrap())
}

pub(crate) fn run_with_input(mut turbo: Command, input: &[u8]) -> Done {
    let mut child = turbo.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    // It may have ended without reading everything.
    drop(writer.join().unwrap());
    done(output)
}

fn done(output: Output) -> Done {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Starts the command with the beginning of an input, and sends a signal once `file` has this many bytes. Returns its
/// exit code and output. More input could come, so it has not ended before the signal.
pub(crate) fn signal_at(turbo: Command, input: &str, signal: &str, file: &Path, bytes: u64) -> Done {
    let (child, stdin) = signalled(turbo, input, signal, file, bytes);
    let done = done(child.wait_with_output().unwrap());
    drop(stdin);
    done
}

/// The same, with a signal that must not end the command: it goes on to the end of its input.
pub(crate) fn signal_in_vain_at(turbo: Command, input: &str, signal: &str, file: &Path, bytes: u64) -> Done {
    let (child, stdin) = signalled(turbo, input, signal, file, bytes);
    drop(stdin);
    done(child.wait_with_output().unwrap())
}

fn signalled(mut turbo: Command, input: &str, signal: &str, file: &Path, bytes: u64) -> (Child, ChildStdin) {
    let mut child = turbo.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    wait_until(&mut child, || size(file) >= bytes);
    // The shell's own `kill`: there need not be a program of that name.
    let kill = format!("kill -{signal} {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    (child, stdin)
}

fn wait_until(child: &mut Child, reached: impl Fn() -> bool) {
    let started = Instant::now();
    while !reached() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before the signal");
        assert!(started.elapsed() < PATIENCE, "it does not come that far");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Bytes of a file, or of all files in a folder.
pub(crate) fn size(path: &Path) -> u64 {
    match fs::read_dir(path) {
        Ok(entries) => {
            entries.filter_map(|entry| entry.ok()?.metadata().ok()).map(|metadata| metadata.len()).sum()
        }
        Err(_) => fs::metadata(path).map_or(0, |metadata| metadata.len()),
    }
}
