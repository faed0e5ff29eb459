//! When to stop, and how: SIGTERM or SIGINT once stops gracefully, twice at once.
//!
//! ```text
//! signal ─▶ accepted requests are answered ─▶ the engines stop ─▶ 0
//!             │ the grace is over, or a second signal comes, at any time
//!             └─▶ who waits is refused ─▶ 1
//! ```

use std::{io, time::Duration};

use anyhow::{Result, bail};
use axum::Router;
use turbo_serve::{
    models::Models,
    net::{self, Ending, Listener},
};

/// How long answers may take to reach their clients after the last one was computed, before the process ends.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How long it takes at most to tell those who wait that they wait in vain.
const REFUSALS: Duration = Duration::from_millis(200);

/// Serves until told to stop; then answers what was accepted, for at most `grace`.
///
/// # Errors
/// When not all of it was answered.
pub(super) async fn serve(
    models: &Models,
    listeners: Vec<Listener>,
    router: Router,
    mut signals: Signals,
    grace: Duration,
) -> Result<()> {
    let (stopping, stopped) = tokio::sync::oneshot::channel();
    let (hurrying, hurried) = tokio::sync::oneshot::channel();
    let told_to_stop = async move {
        signals.next().await;
        tracing::info!("stopping: accepted requests are answered first");
        // An error would say that nobody waits beside the server, and somebody does.
        let _ = stopping.send(());
        tokio::spawn(async move {
            signals.next().await;
            hurrying.send(())
        });
    };
    let answered = async {
        drop(stopped.await);
        models.stop().await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    let served = async {
        let ending = tokio::select! {
            ending = net::serve(listeners, router, told_to_stop, grace) => ending,
            () = answered => {
                tracing::warn!("clients that had not sent their request, or not read its answer, were cut off");
                Ending::Answered
            }
        };
        if ending == Ending::Answered {
            models.stop().await;
        }
        ending
    };
    let why = tokio::select! {
        Ok(()) = hurried => "told twice to stop".to_owned(),
        ending = served => match ending {
            Ending::Answered => {
                tracing::info!("stopped");
                return Ok(());
            }
            Ending::OutOfTime => format!("requests still ran after {grace:?} of grace"),
        },
    };
    models.abandon();
    // Threads end with the layer or the text that they have begun, and nobody waits longer for them than it takes to
    // write the refusals.
    let stopped = tokio::time::timeout(REFUSALS, models.stop());
    let _ = tokio::join!(tokio::time::sleep(REFUSALS), stopped);
    bail!("{why}: what was not answered was refused");
}

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
