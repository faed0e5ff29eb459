//! Serves until told to stop, with time limits for clients that never finish a request or never read their answer.

use std::{future::Future, pin::pin, time::Duration};

use axum::Router;
use futures_util::future::join_all;
use tokio::sync::watch;

use super::{Listener, connection::Connections};

/// How long a server waits for clients.
#[derive(Clone, Copy)]
pub(super) struct Waits {
    /// For a connection's next request. Longer than the minute for which load balancers keep an idle connection, so
    /// that they do not send a request into one that is being closed.
    pub(super) head: Duration,
    /// For a client to take another byte of its answer, which stays in memory meanwhile; also for its answer to a ping.
    pub(super) stall: Duration,
    /// For requests that were sent before the client could know that the server is stopping.
    pub(super) moment: Duration,
    /// The same for a connection without a request so far: its client may just have connected, with the first request
    /// on its way.
    pub(super) first: Duration,
    /// For a client without requests to close a connection after the server has announced its end.
    pub(super) farewell: Duration,
    /// For accepted requests after the server was told to stop.
    pub(super) grace: Duration,
}

/// The default time for accepted requests after a server was told to stop.
pub const GRACE: Duration = Duration::from_secs(30);

const WAITS: Waits = Waits {
    head: Duration::from_secs(75),
    stall: Duration::from_secs(30),
    moment: Duration::from_millis(250),
    first: Duration::from_secs(2),
    farewell: Duration::from_secs(5),
    grace: GRACE,
};

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "requests may still be running"]
pub enum Ending {
    /// All accepted requests are answered.
    Answered,
    /// The grace ended with requests still running.
    OutOfTime,
}

/// Answers requests until `shutdown` resolves; then closes the listeners, answers accepted requests for at most
/// `grace`, and returns. Requests that still run then go on for as long as the runtime does. Closing the listeners
/// blocks the thread that polls this for a moment; if this has a thread of its own, they are closed at once, however
/// busy the other threads are. A client that sends no request for 75 seconds, or takes no byte of its answer for 30
/// seconds, is disconnected.
pub async fn serve(
    listeners: impl IntoIterator<Item = Listener>,
    router: Router,
    shutdown: impl Future<Output = ()>,
    grace: Duration,
) -> Ending {
    serve_with(listeners, router, shutdown, Waits { grace, ..WAITS }).await
}

pub(super) async fn serve_with(
    listeners: impl IntoIterator<Item = Listener>,
    router: Router,
    shutdown: impl Future<Output = ()>,
    waits: Waits,
) -> Ending {
    let (stop, stopping) = watch::channel(false);
    let connections = Connections::new(router, waits, stopping);
    let mut listeners: Vec<Listener> = listeners.into_iter().collect();
    let mut shutdown = pin!(shutdown);
    tokio::select! {
        biased;
        () = &mut shutdown => {}
        _ = join_all(listeners.iter_mut().map(|listener| listener.take_in(&connections))) => shutdown.await, // of none
    }
    listeners.into_iter().for_each(|listener| listener.close(&connections));
    drop(connections);
    // Only now, since waking many connections would delay closing the listeners.
    stop.send_replace(true);
    // every connection holds a receiver until it ends
    match tokio::time::timeout(waits.grace, stop.closed()).await {
        Ok(()) => Ending::Answered,
        Err(_) => Ending::OutOfTime,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        io::{Read, Write},
        net::TcpStream as Client,
        pin::Pin,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::{Context, Poll},
        time::Instant,
    };

    use axum::{
        body::{Body, Bytes, HttpBody, to_bytes},
        http::{Request, Response},
        routing::{get, post},
    };
    use hyper::{
        body::{Frame, Incoming},
        client::conn::http2,
    };
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::{net::TcpListener, sync::Notify};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(50);
    const WAITS: Waits =
        Waits { head: LONG, stall: LONG, moment: SHORT, first: SHORT, farewell: LONG, grace: LONG };
    /// Far more than the system buffers.
    const LARGE: usize = 64 << 20;

    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    /// The first bytes of an HTTP/2 client: its preface, and settings that change nothing.
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

    /// Serves while `client` talks to the server on a thread of its own. `begun` is sent before serving begins: the
    /// thread may start later than the server waits.
    fn with_client<T: Send + 'static>(
        router: Router,
        waits: Waits,
        begun: &[u8],
        client: impl FnOnce(Client) -> T + Send + 'static,
    ) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut stream = Client::connect(listener.local_addr().unwrap()).unwrap();
            stream.write_all(begun).unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            let talk = tokio::task::spawn_blocking(move || client(stream));
            tokio::select! {
                _ = serve_with([listener.into()], router, std::future::pending(), waits) => {
                    unreachable!("nobody stops it")
                }
                told = talk => told.unwrap(),
            }
        })
    }

    /// An HTTP/2 client and its server, which ends with the test.
    async fn http2_client(router: Router, waits: Waits) -> http2::SendRequest<Body> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        tokio::spawn(serve_with([listener.into()], router, std::future::pending(), waits));
        let (client, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        client
    }

    async fn ask(client: &mut http2::SendRequest<Body>, path: &str) -> hyper::Result<Response<Incoming>> {
        let request = Request::get(format!("http://turbo{path}")).body(Body::empty()).unwrap();
        client.send_request(request).await
    }

    #[test]
    fn a_client_that_asks_for_nothing_is_cut_off() {
        let waits = Waits { head: SHORT, farewell: SHORT, ..WAITS };
        for begun in [b"".as_slice(), b"PRI * HT", b"GET / HTTP/1.1\r\nx-a: b\r\n", PREFACE] {
            let started = Instant::now();
            let ended =
                with_client(Router::new(), waits, begun, |mut client| client.read_to_end(&mut Vec::new()));
            ended.unwrap();
            assert!(started.elapsed() < LONG / 2, "{begun:?}");
        }
    }

    #[test]
    fn a_request_of_http_1_1_says_once_whom_it_is_for() {
        for (head, expected) in [
            ("GET / HTTP/1.1\r\nhost: x\r\n", "200"),
            ("GET / HTTP/1.0\r\n", "200"),
            ("GET / HTTP/1.1\r\n", "400"),
            ("GET / HTTP/1.1\r\nhost: x\r\nhost: x\r\n", "400"),
        ] {
            let router = Router::new().route("/", get(|| async { "hello" }));
            let request = format!("{head}connection: close\r\n\r\n");
            let answer = with_client(router, WAITS, request.as_bytes(), |mut client| {
                let mut answer = String::new();
                client.read_to_string(&mut answer).map(|_| answer)
            });
            let answer = answer.unwrap();
            assert_eq!(answer.split(' ').nth(1), Some(expected), "{head:?}: {answer}");
        }
    }

    #[test]
    fn a_client_that_never_reads_is_cut_off() {
        let router = Router::new().route("/", get(|| async { vec![0_u8; LARGE] }));
        let received = with_client(router, Waits { stall: SHORT, ..WAITS }, GET, |mut client| {
            std::thread::sleep(20 * SHORT);
            let mut received = Vec::new();
            // Ends early, with an orderly close or a reset.
            let _ = client.read_to_end(&mut received);
            received.len()
        });
        assert!(received < LARGE, "{received} bytes came");
    }

    #[test]
    fn a_client_that_reads_slowly_is_not_cut_off() {
        let router = Router::new().route("/", get(|| async { vec![0_u8; LARGE] }));
        let waits = Waits { head: SHORT, farewell: SHORT, ..WAITS };
        let received = with_client(router, waits, GET, |mut client| {
            std::thread::sleep(10 * SHORT);
            let mut received = Vec::new();
            client.read_to_end(&mut received).unwrap();
            received.len()
        });
        assert!(received > LARGE, "{received} bytes came");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_unix_socket_and_a_port_lead_to_the_same_routes() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("turbo");
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = port.local_addr().unwrap();
        let listeners = [port.into(), Listener::Unix(super::super::UnixSocket::listen(&path).await.unwrap())];
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let router = Router::new().route("/", get(|| async { "hello" }));
        let stopped = async { stopped.await.unwrap() };
        let served = tokio::spawn(serve_with(listeners, router, stopped, WAITS));

        let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let (mut through_port, mut through_socket) = (String::new(), String::new());
        let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
        client.write_all(request).await.unwrap();
        client.read_to_string(&mut through_port).await.unwrap();
        let mut client = tokio::net::UnixStream::connect(&path).await.unwrap();
        client.write_all(request).await.unwrap();
        client.read_to_string(&mut through_socket).await.unwrap();
        for answer in [through_port, through_socket] {
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
        }
        stop.send(()).unwrap();
        assert_eq!(served.await.unwrap(), Ending::Answered);
        assert!(!path.exists());
        assert!(tokio::net::TcpStream::connect(address).await.is_err(), "the port is closed");
    }

    /// A body that never ends.
    struct Endless(Arc<AtomicUsize>);

    impl HttpBody for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; 100_000])))))
        }
    }

    impl Drop for Endless {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_not_read_over_http2_is_given_up_alone() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let count = dropped.clone();
        let router = Router::new()
            .route("/endless", get(async move || Body::new(Endless(count))))
            .route("/large", get(|| async { vec![7_u8; 1 << 20] }));
        let mut client = http2_client(router, Waits { stall: 4 * SHORT, ..WAITS }).await;
        let unread = ask(&mut client, "/endless").await.unwrap();
        let started = Instant::now();
        while dropped.load(Ordering::SeqCst) == 0 {
            assert!(started.elapsed() < LONG / 2, "it is kept");
            let read = ask(&mut client, "/large").await.unwrap().into_body();
            assert_eq!(to_bytes(Body::new(read), LARGE).await.unwrap(), vec![7; 1 << 20]);
        }
        // What was sent arrives, and then an error.
        to_bytes(Body::new(unread.into_body()), LARGE).await.unwrap_err();
        ask(&mut client, "/large").await.unwrap();
    }

    #[tokio::test]
    async fn a_client_that_takes_no_answer_over_http2_and_asks_on_is_cut_off() {
        let router = Router::new()
            .route("/small", get(|| async { "here" }))
            .route("/large", get(|| async { vec![7_u8; 1 << 20] }));
        for path in ["/small", "/large"] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let stream = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let waits = Waits { stall: 4 * SHORT, ..WAITS };
            tokio::spawn(serve_with([listener.into()], router.clone(), std::future::pending(), waits));
            let mut http = http2::Builder::new(TokioExecutor::new());
            let (mut client, connection) =
                http.initial_stream_window_size(0).handshake(TokioIo::new(stream)).await.unwrap();
            let connection = tokio::spawn(connection);
            let (started, mut unread) = (Instant::now(), Vec::new());
            while let Ok(answer) = ask(&mut client, path).await {
                unread.push(answer);
                assert!(started.elapsed() < LONG / 2, "{path}: it is kept");
                tokio::time::sleep(SHORT / 2).await;
            }
            drop(client);
            let _ = connection.await.unwrap(); // in peace or with a reset
        }
    }

    #[tokio::test]
    async fn a_client_that_goes_over_http2_leaves_nothing_behind() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let count = dropped.clone();
        let router = Router::new().route("/endless", get(async move || Body::new(Endless(count))));
        let mut client = http2_client(router, WAITS).await;
        drop(ask(&mut client, "/endless").await.unwrap());
        let started = Instant::now();
        while dropped.load(Ordering::SeqCst) == 0 {
            assert!(started.elapsed() < LONG / 2, "it is kept");
            tokio::time::sleep(SHORT / 10).await;
        }
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
            let waits = Waits { grace: SHORT, ..WAITS };
            let ending = serve_with([listener.into()], router, shutdown, waits).await;
            assert_eq!(ending, Ending::OutOfTime);
            assert!(started.elapsed() < LONG / 2);
        });
    }

    #[tokio::test]
    async fn stopping_answers_what_was_accepted_over_http2() {
        let (arrived, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (notify, wait) = (arrived.clone(), answer.clone());
        let slow = get(async move || {
            notify.notify_one();
            wait.notified().await;
            "late"
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let (client, connection) =
                http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            (client, tokio::spawn(connection))
        };
        let router = Router::new().route("/", slow);
        let shutdown = async move { arrived.notified().await };
        let served = tokio::spawn(serve_with([listener.into()], router, shutdown, WAITS));
        let (mut client, _) = connect().await;
        let (_idle, idle_connection) = connect().await;
        let asked = tokio::spawn(async move { ask(&mut client, "/").await });
        idle_connection.await.unwrap().unwrap(); // told to go while the other is answered
        assert!(!served.is_finished());
        answer.notify_one();
        let body = Body::new(asked.await.unwrap().unwrap().into_body());
        assert_eq!(to_bytes(body, 100).await.unwrap(), "late");
        assert_eq!(served.await.unwrap(), Ending::Answered);
    }

    #[tokio::test]
    async fn whoever_was_let_in_before_the_server_stopped_is_answered() {
        let router = Router::new().route("/", get(|| async { "hello" }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // The kernel has completed their handshakes; the server has not accepted them yet, let alone read requests.
        let mut clients: Vec<Client> = (0..100).map(|_| Client::connect(address).unwrap()).collect();
        let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let (late, early) = clients.split_first_mut().unwrap();
        early.iter_mut().for_each(|client| client.write_all(request).unwrap());
        let waits = Waits { first: LONG, ..WAITS };
        let served = tokio::spawn(serve_with([listener.into()], router, std::future::ready(()), waits));
        while tokio::net::TcpStream::connect(address).await.is_ok() {}
        // This client sends its request after the listener was closed.
        late.write_all(request).unwrap();
        let answers = tokio::task::spawn_blocking(move || {
            let answer = |mut client: Client| {
                let mut answer = String::new();
                client.read_to_string(&mut answer).map(|_| answer)
            };
            clients.into_iter().map(answer).collect::<Vec<_>>()
        });
        for answer in answers.await.unwrap() {
            let answer = answer.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
        }
        assert_eq!(served.await.unwrap(), Ending::Answered);
    }

    /// How often a client that opens one connection after the other, until one is refused, is cut off.
    #[cfg(target_os = "linux")]
    fn times_cut_off(address: std::net::SocketAddr) -> usize {
        use std::io::ErrorKind;
        let mut cut = 0;
        loop {
            let answer = Client::connect(address).and_then(|mut client| {
                client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
                client.read_to_string(&mut String::new())
            });
            match answer {
                Ok(bytes) if bytes > 0 => {}
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => return cut,
                Ok(_) | Err(_) => cut += 1,
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn nobody_is_reset_while_the_listener_closes() {
        // A plain close resets a client every fourth time. One mishap is allowed: a busy machine may delay the kernel
        // itself.
        const CLOSINGS: usize = 20;
        const MISHAPS: usize = 1;
        const CLIENTS: usize = 4;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let mut cut = 0;
        for _ in 0..CLOSINGS {
            let (tell, told) = tokio::sync::oneshot::channel::<()>();
            let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
            let address = listener.local_addr().unwrap();
            let router = Router::new().route("/", get(|| async { "hello" }));
            let shutdown = async { drop(told.await) };
            let served = runtime.spawn(serve_with([listener.into()], router, shutdown, WAITS));
            let clients = [(); CLIENTS].map(|()| std::thread::spawn(move || times_cut_off(address)));
            std::thread::sleep(Duration::from_millis(10));
            tell.send(()).unwrap();
            cut += clients.into_iter().map(|client| client.join().unwrap()).sum::<usize>();
            assert_eq!(runtime.block_on(served).unwrap(), Ending::Answered);
        }
        assert!(cut <= MISHAPS, "{cut} were cut off");
    }

    #[test]
    fn the_listener_closes_at_once_however_much_the_runtime_has_to_do() {
        // Far more than closing takes, even if the last client has to send its SYN twice: one that arrives while the
        // listener closes is dropped, and sent again after a second. And less than the busy runtime needs to poll the
        // listener.
        const SOON: Duration = Duration::from_secs(3);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        for _ in 0..200 {
            runtime.spawn(async {
                loop {
                    std::thread::sleep(Duration::from_millis(150));
                    tokio::task::yield_now().await;
                }
            });
        }
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        let (closed, took) = tokio::sync::oneshot::channel();
        let took = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            std::thread::spawn(move || {
                let _waits_at_the_door = Client::connect(address).unwrap();
                tell.send(()).unwrap();
                let began = Instant::now();
                while Client::connect(address).is_ok() && began.elapsed() < LONG {
                    std::thread::sleep(SHORT / 10); // a full accept queue would delay it by a second
                }
                closed.send(began.elapsed())
            });
            tokio::select! {
                _ = serve_with([listener.into()], Router::new(), async { drop(told.await) }, WAITS) => {
                    unreachable!("who was let in has not asked")
                }
                took = took => took.unwrap(),
            }
        });
        runtime.shutdown_background();
        assert!(took < SOON, "it took {took:?}");
    }

    /// Kinds and contents of the HTTP/2 frames in `bytes`.
    fn frames(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
        let mut frames = Vec::new();
        while let Some((head, rest)) = bytes.split_at_checked(9) {
            let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let (content, rest) = rest.split_at(len);
            frames.push((head[3], content));
            bytes = rest;
        }
        frames
    }

    #[test]
    fn http2_has_bounds() {
        const SETTINGS: u8 = 4;
        const GOAWAY: u8 = 7;
        const ENHANCE_YOUR_CALM: [u8; 4] = [0, 0, 0, 11];
        let router = Router::new().route("/", get(std::future::pending::<()>));
        let bytes = with_client(router, WAITS, b"", |mut client| {
            let mut asked = PREFACE.to_vec();
            for stream in (1..4000_u32).step_by(2) {
                // `GET / HTTP/2` to host `x`, cancelled at once
                asked.extend(b"\0\0\x06\x01\x05");
                asked.extend(stream.to_be_bytes());
                asked.extend(b"\x82\x86\x84\x41\x01x\0\0\x04\x03\0");
                asked.extend(stream.to_be_bytes());
                asked.extend([0, 0, 0, 8]);
            }
            client.write_all(&asked).unwrap();
            let mut received = Vec::new();
            // Ends with an orderly close or a reset.
            let _ = client.read_to_end(&mut received);
            received
        });
        let frames = frames(&bytes);
        let settings =
            frames.iter().find(|(kind, content)| *kind == SETTINGS && !content.is_empty()).unwrap();
        assert!(
            settings.1.chunks(6).any(|setting| setting == [0, 3, 0, 0, 2, 0]),
            "512 streams: {settings:?}"
        );
        let end = frames.iter().rfind(|(kind, _)| *kind == GOAWAY).unwrap();
        assert_eq!(end.1[4..8], ENHANCE_YOUR_CALM);
    }
}
