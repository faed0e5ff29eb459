//! Listening until told to stop.

use std::{
    future::{Future, IntoFuture},
    io,
    time::Duration,
};

use axum::{Router, serve::ListenerExt};
use tokio::{net::TcpListener, sync::oneshot};

/// How long accepted requests may still take after the server was told to stop: a client that sends its body a byte
/// at a time must not keep the process alive.
const GRACE: Duration = Duration::from_secs(30);

/// Answers requests until `shutdown` resolves; then takes no more, answers those accepted (for at most 30 seconds)
/// and returns.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    // small answers must not wait for the acknowledgement of earlier ones
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY is not set");
        }
    });
    let (stopping, stopped) = oneshot::channel();
    let shutdown = async move {
        shutdown.await;
        let _ = stopping.send(()); // nobody listens when the listener failed before
    };
    let server = axum::serve(listener, router).with_graceful_shutdown(shutdown).into_future();
    let grace_over = async move {
        if stopped.await.is_err() {
            std::future::pending::<()>().await; // `shutdown` was dropped with a server that failed
        }
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        ended = server => ended,
        () = grace_over => {
            tracing::warn!(grace_s = GRACE.as_secs(), "requests were still running when their time was over");
            Ok(())
        }
    }
}
