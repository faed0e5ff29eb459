//! A server that is told to stop: whom it answers, how long it waits, and when its listeners close.

use std::{
    io::{Read, Write},
    net::TcpStream as Client,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    routing::{get, post},
};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::Notify;

use super::{LONG, SHORT, WAITS, ask, listening};
use crate::net::serve::{Ending, Waits, serve_with};

/// A whole request, whose connection ends with its answer.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

#[cfg(unix)]
#[tokio::test]
async fn a_unix_socket_and_a_port_lead_to_the_same_routes() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use crate::net::{Listener, UnixSocket};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("turbo");
    let (port, address) = listening().await;
    let listeners = [port.into(), Listener::Unix(UnixSocket::listen(&path).await.unwrap())];
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let router = Router::new().route("/", get(|| async { "hello" }));
    let stopped = async { stopped.await.unwrap() };
    let served = tokio::spawn(serve_with(listeners, router, stopped, WAITS));

    let (mut through_port, mut through_socket) = (String::new(), String::new());
    let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
    client.write_all(REQUEST).await.unwrap();
    client.read_to_string(&mut through_port).await.unwrap();
    let mut client = tokio::net::UnixStream::connect(&path).await.unwrap();
    client.write_all(REQUEST).await.unwrap();
    client.read_to_string(&mut through_socket).await.unwrap();
    for answer in [through_port, through_socket] {
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
    }
    stop.send(()).unwrap();
    assert_eq!(served.await.unwrap(), Ending::Answered);
    assert!(!path.exists());
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "the port is closed");
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
        let (listener, address) = listening().await;
        let mut client = Client::connect(address).unwrap();
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
    let (listener, address) = listening().await;
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
    let (listener, address) = listening().await;
    // The kernel has completed their handshakes; the server has not accepted them yet, let alone read requests.
    let mut clients: Vec<Client> = (0..100).map(|_| Client::connect(address).unwrap()).collect();
    let (late, early) = clients.split_first_mut().unwrap();
    early.iter_mut().for_each(|client| client.write_all(REQUEST).unwrap());
    let waits = Waits { first: LONG, ..WAITS };
    let served = tokio::spawn(serve_with([listener.into()], router, std::future::ready(()), waits));
    while tokio::net::TcpStream::connect(address).await.is_ok() {}
    // This client sends its request after the listener was closed.
    late.write_all(REQUEST).unwrap();
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
            client.write_all(REQUEST)?;
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
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut cut = 0;
    for _ in 0..CLOSINGS {
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        let (listener, address) = runtime.block_on(listening());
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
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
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
        let (listener, address) = listening().await;
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
