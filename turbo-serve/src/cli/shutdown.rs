//! When to stop: SIGTERM or SIGINT once stops gracefully, twice at once.

use std::io;

/// Listens for the signals that ask a process to stop.
pub(super) struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    /// From now on the signals do not end the process by themselves. Must be called on a runtime.
    #[cfg(unix)]
    pub(super) fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next of them.
    #[cfg(unix)]
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// From now on Ctrl-C does not end the process by itself. Must be called on a runtime.
    #[cfg(not(unix))]
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {})
    }

    /// Waits for the next Ctrl-C.
    #[cfg(not(unix))]
    pub(super) async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}
