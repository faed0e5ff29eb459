//! Clients that ask for nothing, read slowly or not at all, go, or ask for too much.

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
    Router,
    body::{Body, Bytes, HttpBody, to_bytes},
    routing::get,
};
use hyper::{body::Frame, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::{LONG, SHORT, WAITS, ask, listening};
use crate::net::serve::{Waits, serve_with};

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
        let (listener, address) = listening().await;
        let mut stream = Client::connect(address).unwrap();
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
    let (listener, address) = listening().await;
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    tokio::spawn(serve_with([listener.into()], router, std::future::pending(), waits));
    let (client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    client
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
        let (listener, address) = listening().await;
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
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
    let settings = frames.iter().find(|(kind, content)| *kind == SETTINGS && !content.is_empty()).unwrap();
    assert!(settings.1.chunks(6).any(|setting| setting == [0, 3, 0, 0, 2, 0]), "512 streams: {settings:?}");
    let end = frames.iter().rfind(|(kind, _)| *kind == GOAWAY).unwrap();
    assert_eq!(end.1[4..8], ENHANCE_YOUR_CALM);
}
