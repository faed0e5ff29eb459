//! Listening until told to stop, to clients of every kind: those that never finish asking, and those that never read
//! what they asked for.

use std::{future::Future, pin::pin, time::Duration};

use axum::{Router, serve::Listener};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpStream};

use super::stall::StallLimit;

/// How long a server waits for others.
#[derive(Clone, Copy)]
struct Waits {
    /// For the head of a connection's next request. Longer than the minute for which load balancers keep an idle
    /// connection: they must not send into one that is being closed.
    head: Duration,
    /// For a client to take another byte of its answer, which is kept in memory as long.
    stall: Duration,
    /// For accepted requests after the server was told to stop.
    grace: Duration,
}

/// The usual time for accepted requests after a server was told to stop.
pub const GRACE: Duration = Duration::from_secs(30);

const WAITS: Waits = Waits { head: Duration::from_secs(75), stall: Duration::from_secs(30), grace: GRACE };

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "requests may still be running"]
pub enum Ending {
    /// What was accepted is answered.
    Answered,
    /// Requests still run: their time was over.
    OutOfTime,
}

/// Answers requests until `shutdown` resolves; then takes no more, answers those accepted, for at most `grace`, and
/// returns. Requests that still run then go on as long as the runtime does. A client that takes longer than 75 seconds
/// over the head of a request, or takes no byte of its answer for 30 seconds, is cut off.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
    grace: Duration,
) -> Ending {
    serve_with(listener, router, shutdown, Waits { grace, ..WAITS }).await
}

async fn serve_with(
    mut listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
    waits: Waits,
) -> Ending {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(waits.head);
    let connections = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        // axum's `accept` waits a second where the process has no file descriptor left, and goes on.
        let (stream, _) = tokio::select! {
            accepted = Listener::accept(&mut listener) => accepted,
            () = &mut shutdown => break,
        };
        let service = TowerToHyperService::new(router.clone());
        let io = TokioIo::new(StallLimit::new(without_delay(stream), waits.stall));
        let connection = connections.watch(http.serve_connection(io, service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection broke");
            }
        });
    }
    drop(listener);
    match tokio::time::timeout(waits.grace, connections.shutdown()).await {
        Ok(()) => Ending::Answered,
        Err(_) => Ending::OutOfTime,
    }
}

/// Small answers must not wait for the acknowledgement of earlier ones.
fn without_delay(stream: TcpStream) -> TcpStream {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY is not set");
    }
    stream
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpStream as Client,
        sync::Arc,
        time::Instant,
    };

    use axum::{
        body::{Body, to_bytes},
        routing::{get, post},
    };
    use tokio::sync::Notify;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(50);
    const WAITS: Waits = Waits { head: LONG, stall: LONG, grace: LONG };

    /// Serves while `client` talks to the address on a thread of its own.
    fn with_client<T: Send + 'static>(
        router: Router,
        waits: Waits,
        client: impl FnOnce(Client) -> T + Send + 'static,
    ) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let stream = Client::connect(listener.local_addr().unwrap()).unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            let talk = tokio::task::spawn_blocking(move || client(stream));
            tokio::select! {
                _ = serve_with(listener, router, std::future::pending(), waits) => unreachable!("nobody stops it"),
                told = talk => told.unwrap(),
            }
        })
    }

    #[test]
    fn a_client_that_never_ends_its_head_is_cut_off() {
        for begun in ["", "GET / HTTP/1.1\r\nx-a: b\r\n"] {
            let read = with_client(Router::new(), Waits { head: SHORT, ..WAITS }, |mut client| {
                client.write_all(begun.as_bytes()).unwrap();
                client.read(&mut [0; 100])
            });
            assert_eq!(read.unwrap(), 0, "{begun:?}");
        }
    }

    #[test]
    fn a_client_that_never_reads_is_cut_off() {
        let size = 64 << 20; // far more than the system buffers
        let router = Router::new().route("/", get(move || async move { vec![0_u8; size] }));
        let received = with_client(router, Waits { stall: SHORT, ..WAITS }, |mut client| {
            client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            std::thread::sleep(20 * SHORT);
            let mut received = Vec::new();
            // Ends early, in peace or with a reset.
            let _ = client.read_to_end(&mut received);
            received.len()
        });
        assert!(received < size, "{received} bytes came");
    }

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
            let mut client = Client::connect(listener.local_addr().unwrap()).unwrap();
            client.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf").unwrap();
            let shutdown = async move { arrived.notified().await };
            let router = Router::new().route("/", handler);
            let started = Instant::now();
            let ending = serve_with(listener, router, shutdown, Waits { grace: SHORT, ..WAITS }).await;
            assert_eq!(ending, Ending::OutOfTime);
            assert!(started.elapsed() < LONG / 2);
        });
    }
}
