//! Clients that disconnect, servers that stop.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use axum::{body::Body, http::Request};
use serde_json::json;
use tower::ServiceExt;
use turbo_serve::{
    engine::Health,
    net::{InFlightLimits, bounded},
};

use crate::{
    fake::{Fake, Running, Server, assert_tei, logged, routes, wait_until},
    statuses::from_hex,
};

/// The bytes of a request to embed.
pub(crate) fn request(body: &str) -> String {
    let length = body.len();
    format!(
        "POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

#[test]
fn a_client_that_goes_withdraws_its_request() {
    let server = Server::start();
    let mut client = TcpStream::connect(server.address).unwrap();
    client.write_all(request(r#"{"inputs":"wait"}"#).as_bytes()).unwrap();
    wait_until("the request", || server.engine.waiting.load(Ordering::SeqCst) == 1);
    assert_eq!(server.engine.withdrawn.load(Ordering::SeqCst), 0);
    drop(client);
    wait_until("its withdrawal", || server.engine.withdrawn.load(Ordering::SeqCst) == 1);
    assert_eq!(server.post("/embed", r#"{"inputs":"a"}"#).status, 200);
}

#[test]
fn a_client_that_goes_withdraws_all_parts_of_its_request() {
    let server = Server::start();
    // The fake takes eight at a time, and waits if the first of them says so; two parts run at a time.
    let input = [["wait"; 8], ["wait"; 8], ["wait"; 8]].concat();
    let body = json!({ "input": input }).to_string();
    let length = body.len();
    let mut client = TcpStream::connect(server.address).unwrap();
    let head = format!(
        "POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    client.write_all((head + &body).as_bytes()).unwrap();
    wait_until("two parts", || server.engine.waiting.load(Ordering::SeqCst) == 2);
    drop(client);
    wait_until("their withdrawal", || server.engine.withdrawn.load(Ordering::SeqCst) == 2);
    assert_eq!(server.engine.waiting.load(Ordering::SeqCst), 2, "the third part was not asked");
}

#[test]
fn a_client_that_goes_in_the_middle_of_its_body_harms_nobody() {
    let server = Server::start();
    let whole = request(r#"{"inputs":"a text"}"#);
    for cut in [1, 20, whole.len() - 5] {
        let mut client = TcpStream::connect(server.address).unwrap();
        client.write_all(&whole.as_bytes()[..cut]).unwrap();
    }
    assert_eq!(server.post("/embed", r#"{"inputs":"a"}"#).status, 200);
    assert!(server.engine.withdrawn.load(Ordering::SeqCst) == 0);
}

#[test]
fn one_connection_carries_good_and_bad_requests() {
    let server = Server::start();
    let mut client = TcpStream::connect(server.address).unwrap();
    let mut answers = String::new();
    for body in [r#"{"inputs":"a"}"#, "{", r#"{"inputs":[]}"#, r#"{"inputs":"b"}"#] {
        client.write_all(request(body).as_bytes()).unwrap();
        let mut buffer = [0; 4096];
        let read = client.read(&mut buffer).unwrap();
        answers.push_str(std::str::from_utf8(&buffer[..read]).unwrap().lines().next().unwrap());
        answers.push('\n');
    }
    let expected = ["200 OK", "400 Bad Request", "400 Bad Request", "200 OK"];
    let expected: String = expected.map(|status| format!("HTTP/1.1 {status}\n")).concat();
    assert_eq!(answers, expected);
}

#[test]
fn one_who_asks_before_sending_too_much_is_told_not_to() {
    let server = Server::start();
    let mut client = TcpStream::connect(server.address).unwrap();
    let head = "POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99999999\r\nexpect: 100-continue\r\n\r\n";
    let start = Instant::now();
    client.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains(r#""error_type":"Validation""#), "{answer}");
    assert!(start.elapsed() < Duration::from_secs(1), "took {:?}", start.elapsed());
}

#[test]
fn one_who_was_told_to_go_on_is_read_to_the_end() {
    let server = Server::start();
    let mut client = TcpStream::connect(server.address).unwrap();
    let head = "POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n";
    client.write_all(head.as_bytes()).unwrap();
    let mut told = [0; 25];
    client.read_exact(&mut told).unwrap();
    assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 20, "a".repeat(1 << 20));
    for _ in 0..20 {
        client.write_all(chunk.as_bytes()).unwrap();
    }
    client.write_all(b"0\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[test]
fn the_limit_holds_for_bodies_of_unannounced_length() {
    let server = Server::start();
    let head = "POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("{:x}\r\n{}\r\n", 4000, "a".repeat(4000));
    for (chunks, expected) in [(2, "HTTP/1.1 200 "), (3, "HTTP/1.1 413 "), (3000, "HTTP/1.1 413 ")] {
        let mut client = TcpStream::connect(server.address).unwrap();
        client.write_all(head.as_bytes()).unwrap();
        client.write_all(b"b\r\n{\"inputs\":\"\r\n").unwrap();
        for _ in 0..chunks {
            client.write_all(chunk.as_bytes()).unwrap();
        }
        client.write_all(b"2\r\n\"}\r\n0\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(expected), "{chunks} chunks: {answer}");
    }
}

/// Two clients whose bodies have nearly arrived when there is no room for another. The requests that probe for room
/// take some as well, so a client may itself be refused; it reconnects.
fn two_that_leave_no_room(server: SocketAddr, begun: &[u8], is_full: impl Fn() -> bool) -> [TcpStream; 2] {
    let begin = || {
        let mut client = TcpStream::connect(server).unwrap();
        client.write_all(begun).unwrap();
        client.set_nonblocking(true).unwrap();
        client
    };
    let mut clients = [begin(), begin()];
    let waits =
        |client: &TcpStream| client.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    wait_until("the limit", || {
        clients.iter_mut().filter(|client| !waits(client)).for_each(|client| *client = begin());
        // the probe may have been refused together with a client, whose refusal arrives a little later
        let was_full = is_full();
        std::thread::sleep(Duration::from_millis(if was_full { 200 } else { 0 }));
        was_full && clients.iter().all(waits) && is_full()
    });
    clients.iter().for_each(|client| client.set_nonblocking(false).unwrap());
    clients
}

#[test]
fn what_all_clients_send_together_is_bounded() {
    let engine = Arc::new(Fake::new(Health::Ready));
    let limits = InFlightLimits { bodies: 20_000, answers: usize::MAX };
    let server = Running::start(bounded(routes(engine), limits));
    let body = |bytes: usize| format!(r#"{{"inputs":"{}"}}"#, "a".repeat(bytes));
    let whole = request(&body(9_000));
    let (begun, rest) = whole.as_bytes().split_at(whole.len() - 2);
    let ask = |bytes| server.post("/embed", body(bytes));
    let clients = two_that_leave_no_room(server.address, begun, || ask(5_000).status == 429);
    let refused = ask(5_000);
    assert_tei("beyond", &refused, 429, "Overloaded", "(`--max-body-bytes-in-flight`): retry in 1 s");
    assert_eq!((refused.header("retry-after"), refused.header("retry-after-ms")), ("1", "1000"));
    assert_eq!(ask(500).status, 200, "for which there is room");
    for mut client in clients {
        client.write_all(rest).unwrap();
        let mut head = [0; 12];
        client.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
    }
    wait_until("room", || ask(5_000).status == 200);
}

#[test]
fn a_body_counts_until_it_is_answered_whatever_its_head_says() {
    let limits = InFlightLimits { bodies: 15_000, answers: usize::MAX };
    for (path, content_type) in [
        ("/embed", "application/json"),
        ("/embed", "application/grpc+json"),
        ("/v2/models/fake/infer", "application/grpc"),
    ] {
        let body = |text: &str| {
            let tensor = json!({ "name": "text", "datatype": "BYTES", "shape": [1], "data": [text] });
            let inputs = if path == "/embed" { json!(text) } else { json!([tensor]) };
            format!("{:9000}", json!({ "inputs": inputs }).to_string())
        };
        let engine = Arc::new(Fake::new(Health::Ready));
        let server = Running::start(bounded(routes(engine.clone()), limits));
        let ask = || server.send("POST", path, &[("content-type", content_type)], body("a"));
        let mut waiting = TcpStream::connect(server.address).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {content_type}\r\ncontent-length: 9000\r\n\r\n"
        );
        waiting.write_all((head + &body("wait")).as_bytes()).unwrap();
        wait_until("the one that waits", || engine.waiting.load(Ordering::SeqCst) == 1);
        let refused = ask();
        assert_eq!(refused.status, 429, "{path}, {content_type}: {}", refused.text());
        assert_eq!(refused.header("retry-after"), "1", "{path}, {content_type}");
        drop(waiting);
        wait_until("room", || ask().status == 200);
    }
}

/// `{"inputs":"aaa…"}` of 9000 letters as gzip.
const PACKED: &str = "1f8b0800000000000203edc1b10d00100004c05d7e0cdb2835224125763788bb3b697dec3553520100000000000000e003b90fb1805c0335230000";

#[test]
fn what_packed_bodies_unpack_to_is_bounded_together() {
    let engine = Arc::new(Fake::new(Health::Ready));
    let limits = InFlightLimits { bodies: 20_000, answers: usize::MAX };
    let server = Running::start(bounded(routes(engine), limits));
    let packed = from_hex(PACKED);
    let headers = [("content-type", "application/json"), ("content-encoding", "gzip")];
    let ask = || server.send("POST", "/embed", &headers, &packed);
    assert_eq!(ask().status, 200, "alone");
    let length = packed.len();
    let head = format!(
        "POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: {length}\r\n\r\n"
    );
    let (begun, rest) = packed.split_at(length - 8); // all but the checksum
    let begun = [head.as_bytes(), begun].concat();
    let clients = two_that_leave_no_room(server.address, &begun, || ask().status == 429);
    assert_tei("beyond", &ask(), 429, "Overloaded", "(`--max-body-bytes-in-flight`): retry in 1 s");
    for mut client in clients {
        client.write_all(rest).unwrap();
        let mut head = [0; 12];
        client.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
    }
    wait_until("room", || ask().status == 200);
}

/// Otherwise a client that keeps connections would send its next request on one that closes, or have it read as the
/// rest of the last body.
#[test]
fn an_answer_says_that_its_connection_ends_where_it_does() {
    let server = Server::start();
    let (one, packed) = (br#"{"inputs":"a"}"#.to_vec(), from_hex(PACKED));
    let length = |body: &[u8]| format!("content-length: {}\r\n", body.len());
    let chunked = |body: &[u8]| [format!("{:x}\r\n", body.len()).as_bytes(), body, b"\r\n0\r\n\r\n"].concat();
    let (json, expects) = ("content-type: application/json\r\n", "expect: 100-continue\r\n");
    let (gzip, in_chunks) = ("content-encoding: gzip\r\n", "transfer-encoding: chunked\r\n");
    let not_packed = vec![b'a'; 8 << 20];
    // after `expect: 100-continue` a client may send the body or the next request: the server cannot tell which
    for (head, body, status, ends) in [
        (format!("POST /nowhere HTTP/1.1\r\n{}{expects}", length(&one)), vec![], 404, true),
        (format!("POST /embed HTTP/1.1\r\n{}{expects}", length(&one)), vec![], 415, true),
        (format!("POST /embed HTTP/1.1\r\n{json}content-length: 99999999\r\n{expects}"), vec![], 413, true),
        (format!("GET /health HTTP/1.1\r\n{}{expects}", length(&one)), vec![], 200, true),
        (format!("POST /embed HTTP/1.1\r\n{json}{}", length(&one)), one.clone(), 200, false),
        (format!("POST /embed HTTP/1.1\r\n{json}{in_chunks}"), chunked(&one), 200, false),
        (format!("POST /nowhere HTTP/1.1\r\n{}", length(&one)), one.clone(), 404, false),
        (format!("POST /embed HTTP/1.1\r\n{json}{gzip}{}", length(&packed)), packed.clone(), 200, false),
        (format!("POST /embed HTTP/1.1\r\n{json}{gzip}{in_chunks}"), chunked(&packed), 200, false),
        (
            format!("POST /embed HTTP/1.1\r\n{json}{gzip}{}", length(&not_packed)),
            not_packed.clone(),
            400,
            false,
        ),
        (format!("POST /embed HTTP/1.1\r\n{json}{gzip}{in_chunks}"), chunked(&not_packed), 400, false),
        (format!("POST /embed HTTP/1.1\r\n{gzip}{}", length(&not_packed)), not_packed.clone(), 415, false),
        (
            format!("POST /nowhere HTTP/1.1\r\n{json}{gzip}{}", length(&not_packed)),
            not_packed.clone(),
            404,
            false,
        ),
        (format!("POST /embed HTTP/1.1\r\n{json}{in_chunks}"), b"no size\r\n".to_vec(), 400, true),
        (
            format!("POST /nowhere HTTP/1.0\r\nconnection: keep-alive\r\n{}{expects}", length(&one)),
            vec![],
            404,
            true,
        ),
        ("GET /health HTTP/1.1\r\n".to_owned(), vec![], 200, false),
    ] {
        let mut client = TcpStream::connect(server.address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.write_all(format!("{head}host: x\r\n\r\n").as_bytes()).unwrap();
        client.write_all(&body).unwrap_or_else(|why| panic!("{head}: the body is not read: {why}"));
        let said = answer_head(&client);
        assert_eq!(said.split(' ').nth(1), Some(status.to_string().as_str()), "{head}: {said}");
        assert_eq!(said.to_ascii_lowercase().contains("connection: close\r\n"), ends, "{head}: {said}");
        if !ends {
            let next = "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            client.write_all(next.as_bytes()).unwrap();
        }
        let mut rest = String::new();
        client.read_to_string(&mut rest).unwrap();
        assert_eq!(rest.contains("HTTP/1.1 200 "), !ends, "{head}: the next request is answered: {rest}");
    }
}

/// The head of the answer that comes next.
fn answer_head(mut client: &TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    String::from_utf8(head).unwrap()
}

#[test]
fn a_request_that_is_given_up_has_a_line_in_the_log() {
    logged(async |said| {
        let asked = Request::post("/embed").header("content-type", "application/json");
        let asked = asked.header("x-request-id", "mine").body(Body::from(r#"{"inputs":"wait"}"#)).unwrap();
        let answer = routes(Arc::new(Fake::new(Health::Ready))).oneshot(asked);
        assert!(tokio::time::timeout(Duration::from_millis(50), answer).await.is_err());
        assert!(said(&["given up", r#"method=POST path="/embed" id="mine""#]));
    });
}

#[test]
fn stopping_answers_what_was_accepted() {
    let mut server = Server::start();
    let mut client = TcpStream::connect(server.address).unwrap();
    client.write_all(request(r#"{"inputs":"slow"}"#).as_bytes()).unwrap();
    wait_until("the request", || server.engine.seen.lock().unwrap().is_some());
    let idle = TcpStream::connect(server.address).unwrap();
    server.stop();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.contains("\r\n\r\n[["), "{answer}");
    server.join();
    assert!(TcpStream::connect(server.address).is_err(), "the port is closed");
    drop(idle);
}

#[test]
fn a_body_that_nobody_asked_for_does_not_cost_the_answer() {
    let server = Server::start();
    for path in ["/openapi.json", "/health", "/metrics", "/v2/models/fake", "/models/fake/info"] {
        let mut client = TcpStream::connect(server.address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let asked = format!("GET {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n");
        // A connection that is closed on bytes that were not read is reset, and takes the answer with it.
        for _ in 0..2 {
            client.write_all(asked.as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            client.write_all(b"{}").unwrap();
            let mut answer = BufReader::new(&client);
            let (mut head, mut length) = (String::new(), 0);
            while !head.ends_with("\r\n\r\n") {
                let start = head.len();
                assert!(answer.read_line(&mut head).unwrap() > 0, "{path}: {head}");
                if let Some(said) = head[start..].strip_prefix("content-length: ") {
                    length = said.trim().parse().unwrap();
                }
            }
            assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
            let mut body = vec![0; length];
            answer.read_exact(&mut body).unwrap();
        }
    }
}
