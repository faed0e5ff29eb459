//! Starts the server as a child process, waits for it, and ends it.
//!
//! The server prints one line on standard output when it is ready: `listening on http://HOST:PORT`. Its standard error
//! goes to a log file, whose end is shown when something fails.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::interrupt::{self, Interrupted};
use crate::process::{self, TICK};
use crate::progress::Progress;

/// How long the server may take to be ready. Loading takes a second and warming up about ten; a busy machine may take
/// several times as long.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How long the server may take to end: it first answers what it has accepted.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
/// How many lines of the log a failure shows.
const LOG_LINES: usize = 40;

/// A running server, which is killed when dropped.
pub(super) struct Server {
    child: Child,
    address: String,
    log: PathBuf,
}

impl Server {
    /// Starts `turbo serve` on a loopback port, and returns when it is ready.
    ///
    /// # Errors
    /// When it does not start, ends, or is not ready in time. The message has the end of its log.
    pub(super) fn start(
        binary: &Path,
        model: &Path,
        port: u16,
        log: PathBuf,
        progress: Progress,
    ) -> Result<Self> {
        let errors = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(binary);
        command
            .arg("serve")
            .arg("--model-id")
            .arg(model)
            .args(["--hostname", "127.0.0.1", "--port", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors);
        // Ctrl-C in a terminal reaches the whole process group; in its own group the server gets one signal, from us.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child =
            command.spawn().with_context(|| format!("cannot start `{}`", process::line(&command)))?;
        let lines = lines_of(child.stdout.take().expect("piped above"));
        let mut server = Self { child, address: String::new(), log };
        let spinner =
            progress.spinner("starting the server: it loads the model and measures what batches cost");
        let ready = server.wait_until_ready(&lines);
        spinner.finish_and_clear();
        server.address = server.explain(ready)?;
        Ok(server)
    }

    fn wait_until_ready(&mut self, lines: &Receiver<String>) -> Result<String> {
        let start = Instant::now();
        while start.elapsed() < READY_WITHIN {
            match lines.recv_timeout(TICK) {
                Ok(line) => {
                    if let Some(address) = ready_address(&line) {
                        return Ok(address.to_owned());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the server ended before it was ready ({})", self.child.wait()?)
                }
            }
            interrupt::check()?;
        }
        bail!("the server was not ready within {} s", READY_WITHIN.as_secs())
    }

    /// Its address: `http://HOST:PORT`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Adds the end of the server's log to an error.
    pub(super) fn explain<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            if error.is::<Interrupted>() {
                return error;
            }
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
            anyhow!("{error:#}\nthe server's own words ({}):\n  {end}", self.log.display())
        })
    }

    /// Returns at Ctrl-C or SIGTERM.
    ///
    /// # Errors
    /// When the server ends by itself.
    pub(super) fn wait_for_interrupt(&mut self) -> Result<()> {
        while interrupt::received() == 0 {
            if let Some(status) = self.child.try_wait()? {
                return self.explain(Err(anyhow!("the server ended by itself ({status})")));
            }
            thread::sleep(TICK);
        }
        Ok(())
    }

    /// Asks the server to end, and waits until it has. Another Ctrl-C kills it.
    ///
    /// # Errors
    /// When it ends with a code other than 0, or has to be killed.
    pub(super) fn stop(mut self) -> Result<()> {
        let before = interrupt::received();
        let status = process::end(&mut self.child, ENDS_WITHIN, || interrupt::received() > before)?;
        if !status.success() {
            return self.explain(Err(anyhow!("the server did not end cleanly ({status})")));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail if the child has been waited for, and then there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in the line that says that the server is ready.
fn ready_address(line: &str) -> Option<&str> {
    line.strip_prefix("listening on ").map(str::trim).filter(|address| address.starts_with("http://"))
}

/// Reads lines until the end, even when the receiver is gone: a full pipe would stop the writer.
fn lines_of(output: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_has_the_address() {
        assert_eq!(ready_address("listening on http://127.0.0.1:8080\r"), Some("http://127.0.0.1:8080"));
        assert_eq!(ready_address("listening on nothing"), None);
        assert_eq!(ready_address("warming up"), None);
    }

    #[cfg(unix)]
    mod with_a_stand_in {
        use super::*;

        /// Runs a shell script in place of the server; its log is in `folder`.
        fn start(folder: &tempfile::TempDir, script: &str) -> Result<Server> {
            use std::os::unix::fs::PermissionsExt;
            let binary = folder.path().join("turbo");
            fs::write(&binary, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&binary, fs::Permissions::from_mode(0o700)).unwrap();
            let log = folder.path().join("log");
            Server::start(&binary, Path::new("models/minilm"), 0, log, Progress::new(true))
        }

        #[test]
        fn it_is_told_what_to_serve_and_ends_when_asked() {
            let folder = tempfile::tempdir().unwrap();
            let script = "trap 'exit 0' TERM; echo hello; echo \"listening on http://$*\"; while :; do sleep 0.05; done";
            let server = start(&folder, script).unwrap();
            assert_eq!(
                server.address(),
                "http://serve --model-id models/minilm --hostname 127.0.0.1 --port 0"
            );
            server.stop().unwrap();
        }

        #[test]
        fn an_early_end_shows_the_log() {
            let folder = tempfile::tempdir().unwrap();
            let error = start(&folder, "echo 'no config.json' >&2; exit 1").err().unwrap().to_string();
            assert!(error.contains("before it was ready") && error.contains("no config.json"), "{error}");
        }

        #[test]
        fn an_unclean_end_is_an_error() {
            let folder = tempfile::tempdir().unwrap();
            let script = "trap 'exit 9' TERM; echo 'listening on http://x'; while :; do sleep 0.05; done";
            let error = start(&folder, script).unwrap().stop().unwrap_err().to_string();
            assert!(error.contains("did not end cleanly") && error.contains('9'), "{error}");
        }
    }
}
