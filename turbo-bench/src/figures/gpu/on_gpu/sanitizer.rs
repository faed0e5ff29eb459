//! Runs this program's own suite under compute-sanitizer.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::super::sanitizer::{Finding, Sanitized, TOOLS};

/// Its place in an installation of CUDA, if it is not on the path.
const ELSEWHERE: &str = "/usr/local/cuda/bin/compute-sanitizer";
/// The time limit of each tool.
const PATIENCE: Duration = Duration::from_secs(150);
const TICK: Duration = Duration::from_millis(50);

/// Runs `watched` under each tool.
///
/// # Errors
/// When there is no temporary file, or a process cannot be started or waited for.
pub(super) fn run(watched: &[String]) -> Result<Vec<Sanitized>> {
    let names = ["compute-sanitizer", ELSEWHERE];
    let found = |name: &&&str| Command::new(name).arg("--version").output().is_ok();
    let sanitizer = names.iter().find(found);
    let of = |tool: &str| -> Result<Sanitized> {
        let finding = match sanitizer {
            Some(sanitizer) => {
                let mut command = Command::new(sanitizer);
                command.args(["--tool", tool, "--print-limit", "3"]).args(watched);
                watch(&mut command)?
            }
            None => Finding::Unavailable("there is no compute-sanitizer".to_owned()),
        };
        Ok(Sanitized { tool: tool.to_owned(), finding })
    };
    TOOLS.into_iter().map(of).collect()
}

fn watch(command: &mut Command) -> Result<Finding> {
    let mut output = tempfile::tempfile().context("cannot make a temporary file")?;
    let both = |file: &File| -> Result<Stdio> { Ok(file.try_clone()?.into()) };
    let mut child = command.stdin(Stdio::null()).stdout(both(&output)?).stderr(both(&output)?).spawn()?;
    let begin = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if begin.elapsed() > PATIENCE => {
                child.kill()?;
                child.wait()?;
                break None;
            }
            None => thread::sleep(TICK),
        }
    };
    let mut said = Vec::new();
    output.seek(SeekFrom::Start(0))?;
    output.read_to_end(&mut said)?;
    let said = String::from_utf8_lossy(&said);
    eprintln!("{command:?}\n{said}");
    let Some(status) = status else {
        return Ok(Finding::Failed(format!("not done after {} s", PATIENCE.as_secs())));
    };
    Ok(Finding::of(&said, status.success()))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_was_printed_on_either_stream_is_read() {
        let script = "echo '========= ERROR SUMMARY: 0 errors' >&2";
        assert_eq!(watch(Command::new("sh").args(["-c", script])).unwrap(), Finding::Clean);
        let script = "echo broken; exit 3";
        assert_eq!(watch(Command::new("sh").args(["-c", script])).unwrap(), Finding::Failed("broken".into()));
    }
}
