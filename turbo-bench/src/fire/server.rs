//! A server as a process. It prints its address to its standard output, and is killed when it is dropped.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, kill_process};

use crate::log::Log;

pub use rustix::process::Signal;

/// What a server prints before its address.
const LISTENING: &str = "listening on http://";
/// The time between two looks of a wait.
const LOOK: Duration = Duration::from_millis(5);

/// A process that serves.
pub struct Server {
    name: String,
    child: Child,
    address: SocketAddr,
    log: Log,
}

impl Server {
    /// Starts `command`, and waits at most `patience` until it prints `listening on http://ADDRESS`.
    ///
    /// # Errors
    /// When it does not start, ends, or prints something else. The error quotes the last lines that it wrote.
    pub fn start(name: &str, command: &mut Command, patience: Duration) -> Result<Self> {
        let log = Log::new()?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.sink()?);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}: {command:?}"))?;
        let stdout = child.stdout.take().context("its standard output was asked for")?;
        let (lines, first) = mpsc::channel();
        thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            let mut line = String::new();
            let read = stdout.read_line(&mut line);
            // The receiver is gone if the line came too late.
            _ = lines.send(read.map(|_| line));
            // Later output has to be read by someone.
            std::io::copy(&mut stdout, &mut std::io::sink())
        });
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Self { name: name.to_owned(), child, address: nowhere, log };
        let line = first.recv_timeout(patience).ok().and_then(Result::ok).unwrap_or_default();
        match line.trim().strip_prefix(LISTENING).and_then(|address| address.parse().ok()) {
            Some(address) => server.address = address,
            None => bail!(
                "{name}: expected `{LISTENING}ADDRESS` within {patience:?}, got {line:?}; it said:\n{}",
                server.log.last_words()
            ),
        }
        Ok(server)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address that it listens at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The id of its process.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Its resident memory in bytes, as the system counts it.
    ///
    /// # Errors
    /// When the process is gone, or the system does not report it.
    pub fn resident_bytes(&self) -> Result<u64> {
        let file = format!("/proc/{}/status", self.child.id());
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        Ok(1024 * kilobytes.with_context(|| format!("{file} does not tell VmRSS"))?)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let process = Pid::from_child(&self.child);
        kill_process(process, signal).with_context(|| format!("cannot send {signal:?} to {}", self.name))
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// When it still runs after `patience`.
    pub fn wait(&mut self, patience: Duration) -> Result<ExitStatus> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if begin.elapsed() > patience {
                bail!(
                    "{}: expected its end within {patience:?}; it said:\n{}",
                    self.name,
                    self.log.last_words()
                );
            }
            thread::sleep(LOOK);
        }
    }

    /// All that it has written to its standard error.
    pub fn log(&self) -> String {
        self.log.text()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // If it has ended by itself, there is nothing to do.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, patience: u64) -> Result<Server> {
        Server::start("it", Command::new("sh").args(["-c", script]), Duration::from_millis(patience))
    }

    #[test]
    fn a_server_says_where_it_is_or_why_not() {
        let mut server =
            shell("echo listening on http://127.0.0.1:9; echo more; exec sleep 60", 10_000).unwrap();
        assert_eq!(server.address().port(), 9);
        assert!(server.resident_bytes().unwrap() > 0);
        server.signal(Signal::TERM).unwrap();
        assert!(!server.wait(Duration::from_secs(10)).unwrap().success());
        let said = |script, patience| shell(script, patience).err().unwrap().to_string();
        assert!(said("echo no such model >&2; exit 1", 10_000).contains("it said:\nno such model"));
        assert!(said("echo hello; exec sleep 60", 10_000).contains("got \"hello\\n\""));
        assert!(said("exec sleep 60", 50).contains("within 50ms, got \"\""));
    }
}
