//! Starts other programs, waits for them, and ends them.

use std::process::{Child, Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How often a waiting loop looks.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// The command as a user would type it.
pub(crate) fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs a command whose output the user sees.
///
/// # Errors
/// When it cannot be started or fails. The message has the command line.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", line(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", line(command));
    }
    Ok(())
}

/// Asks a child to end (SIGTERM), and kills it if it has not ended after `patience`, or as soon as `hurry` says so.
///
/// # Errors
/// When the child's status cannot be read.
pub(crate) fn end(child: &mut Child, patience: Duration, hurry: impl Fn() -> bool) -> Result<ExitStatus> {
    let start = Instant::now();
    ask_to_end(child);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() > patience || hurry() {
            child.kill()?;
            return Ok(child.wait()?);
        }
        sleep(TICK);
    }
}

#[cfg(unix)]
fn ask_to_end(child: &mut Child) {
    // The standard library only has SIGKILL, and small systems have `kill` only in the shell.
    // A failure means that the child is gone already.
    let _ = Command::new("sh").args(["-c", &format!("kill -TERM {}", child.id())]).status();
}

#[cfg(not(unix))]
fn ask_to_end(child: &mut Child) {
    let _ = child.kill();
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Child {
        let mut child =
            Command::new("sh").args(["-c", script]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        // the one line that it prints says that it handles signals now
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
            .unwrap();
        child
    }

    #[test]
    fn a_polite_child_ends_with_its_own_status() {
        let mut child = shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done");
        assert_eq!(end(&mut child, LONG, || false).unwrap().code(), Some(7));
    }

    #[test]
    fn a_stubborn_child_is_killed() {
        let script = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
        assert_eq!(end(&mut shell(script), Duration::from_millis(200), || false).unwrap().code(), None);
        assert_eq!(end(&mut shell(script), LONG, || true).unwrap().code(), None);
    }

    #[test]
    fn a_failure_names_the_command() {
        let error = run(Command::new("sh").args(["-c", "exit 3"])).unwrap_err().to_string();
        assert!(error.contains("`sh -c exit 3` failed") && error.contains('3'), "{error}");
    }
}
