//! When to stop, and how: SIGTERM or SIGINT once stops gracefully, twice at once.
//!
//! ```text
//! signal ─▶ the listeners close ─▶ accepted requests are answered ─▶ the engines stop ─▶ 0
//!                                    │ the grace is over, or a second signal comes, at any time
//!                                    └─▶ waiting requests are refused ─▶ 1
//! ```

use std::{io, time::Duration};

use anyhow::{Result, bail};
use axum::Router;
use tokio::sync::mpsc;
use turbo_serve::{
    models::Models,
    net::{self, Ending, Listener},
};

/// How long answers may take to reach their clients after the last one was computed, before the process ends.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// When a process that was told twice has ended at the latest: refusals, the last spans and the last lines of the log take
/// some three seconds at most.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Most time for refusing the requests that wait.
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
        // An error would mean that nothing waits beside the server, and this task does.
        let _ = stopping.send(());
        tokio::spawn(async move {
            signals.next().await;
            hurrying.send(())
        });
    };
    let answered = async {
        drop(stopped.await);
        tracing::info!("stopping: accepted requests are answered first");
        models.stop().await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    let served = async {
        let ending = tokio::select! {
            // First the listeners close: even a line of the log may have to wait for its reader.
            biased;
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
    // Threads end with the layer or the text that they have begun; they are waited for no longer than it takes to write
    // the refusals.
    let stopped = tokio::time::timeout(REFUSALS, models.stop());
    let _ = tokio::join!(tokio::time::sleep(REFUSALS), stopped);
    bail!("{why}: what was not answered was refused");
}

/// The signals that ask a process to stop, received by a thread that does nothing else: the runtime of a busy server would
/// notice them late.
pub(super) struct Signals(mpsc::UnboundedReceiver<()>);

impl Signals {
    /// From now on the signals do not end the process by themselves.
    ///
    /// # Errors
    /// When the system refuses to deliver signals.
    pub(super) fn listen() -> io::Result<Self> {
        let (told, heard) = mpsc::unbounded_channel();
        let mut signals = 0;
        on_signal(move || {
            signals += 1;
            if signals == 2 {
                end_after(AT_ONCE);
            }
            told.send(()).is_ok()
        })?;
        Ok(Self(heard))
    }

    /// Waits for the next of them.
    pub(super) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending().await
        }
    }
}

/// Ends the process when it has not ended by itself in this time, whatever its other threads wait for.
fn end_after(time: Duration) {
    let end = move || {
        std::thread::sleep(time);
        std::process::exit(1)
    };
    // no thread is to be had: then it ends by itself, or by a stronger signal
    let _ = std::thread::Builder::new().name("turbo-end".into()).spawn(end);
}

/// From now on a file that reaches its greatest length (`ulimit -f`) is an error for whoever writes it, as a full disk is.
/// The signal for it would end a process that does not listen.
#[cfg(unix)]
pub(super) fn outlive_long_files() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    const SIGXFSZ: SignalKind = SignalKind::from_raw(25);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _on = runtime.enter();
    signal(SIGXFSZ).map(drop)
}

/// Calls `hear` at each signal that asks the process to stop, on a thread of its own, until it returns
/// false. From now on these signals do not end the process by themselves.
///
/// # Errors
/// When the system refuses to deliver signals.
pub(super) fn on_signal(mut hear: impl FnMut() -> bool + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let mut system = {
        let _on = runtime.enter();
        system::Signals::listen()?
    };
    let listens = async move {
        loop {
            system.next().await;
            if !hear() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("turbo-signals".into()).spawn(move || runtime.block_on(listens))?;
    Ok(())
}

#[cfg(unix)]
mod system {
    use std::io;

    use tokio::signal::unix::{Signal, SignalKind, signal};

    pub(super) struct Signals {
        terminate: Signal,
        interrupt: Signal,
    }

    impl Signals {
        /// Must be called on a runtime.
        pub(super) fn listen() -> io::Result<Self> {
            Ok(Self {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
            })
        }

        pub(super) async fn next(&mut self) {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
            }
        }
    }
}

#[cfg(not(unix))]
mod system {
    use std::io;

    /// Ctrl-C.
    pub(super) struct Signals;

    impl Signals {
        pub(super) fn listen() -> io::Result<Self> {
            Ok(Self)
        }

        pub(super) async fn next(&mut self) {
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending().await
            }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::{
        sync::mpsc,
        time::{Duration, Instant},
    };

    use super::*;

    /// Far more than a thread needs to be woken, and less than the runtime of the test needs for one round.
    const SOON: Duration = Duration::from_secs(1);

    #[test]
    fn a_signal_is_heard_while_the_runtime_has_a_lot_to_do() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (began, is_busy) = mpsc::channel();
        for _ in 0..200 {
            let began = began.clone();
            runtime.spawn(async move {
                loop {
                    let _ = began.send(());
                    std::thread::sleep(Duration::from_millis(40));
                    tokio::task::yield_now().await;
                }
            });
        }
        let took = runtime.block_on(async {
            let mut signals = Signals::listen().unwrap();
            is_busy.recv().unwrap();
            let told = Instant::now();
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
            signals.next().await;
            told.elapsed()
        });
        runtime.shutdown_background();
        assert!(took < SOON, "it took {took:?}");
    }
}
