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
    serve_with_grace(listener, router, shutdown, GRACE).await
}

async fn serve_with_grace(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
    grace: Duration,
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
        tokio::time::sleep(grace).await;
    };
    tokio::select! {
        ended = server => ended,
        () = grace_over => {
            tracing::warn!(?grace, "requests were still running when their time was over");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, sync::Arc};

    use axum::{
        body::{Body, to_bytes},
        routing::post,
    };
    use tokio::sync::Notify;

    use super::*;

    #[test]
    fn a_client_that_never_ends_its_body_does_not_keep_the_server() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let arrived = Arc::new(Notify::new());
            let notify = arrived.clone();
            let handler = post(async move |body: Body| {
                notify.notify_one();
                drop(to_bytes(body, 100).await);
            });
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            client.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf").unwrap();
            let shutdown = async move { arrived.notified().await };
            let router = Router::new().route("/", handler);
            let serving = serve_with_grace(listener, router, shutdown, Duration::from_millis(20));
            tokio::time::timeout(Duration::from_secs(10), serving).await.expect("it ends").unwrap();
        });
    }
}
