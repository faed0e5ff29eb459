//! Invalid requests: each gets an answer that says so, or its connection is closed.

use std::time::Duration;

use anyhow::Result;
use hyper::body::Bytes;
use tokio::task::JoinSet;

use super::{PATIENCE, Siege, Trial, raw};
use crate::workload;

/// Requests at a time.
const AT_A_TIME: usize = 32;
/// How long to stay on a connection on which the server waits for the rest of a request that never comes.
const UNFINISHED: Duration = Duration::from_millis(200);
/// Bytes of a body that is longer than the default limit.
const TOO_LONG: usize = 3_000_000;

/// A request, and whether a server can see that it is whole.
struct Hostile {
    bytes: Vec<u8>,
    is_whole: bool,
}

pub(super) async fn come(siege: &Siege<'_>, trial: &mut Trial) -> Result<()> {
    let address = siege.server.address();
    let written = written();
    let mut asking = JoinSet::new();
    let mut next = 0..siege.size.hostile;
    loop {
        if asking.len() < AT_A_TIME
            && let Some(index) = next.next()
        {
            let Hostile { bytes, is_whole } = match written.get(index) {
                Some(make) => make(),
                None => damaged(siege, index as u64),
            };
            asking.spawn(async move {
                let patience = if is_whole { PATIENCE } else { UNFINISHED };
                let reply = raw::say(address, &bytes, patience).await;
                (index, is_whole, reply)
            });
            continue;
        }
        let Some(answered) = asking.join_next().await else { break };
        let (index, is_whole, reply) = answered?;
        trial.note(reply);
        let is_answered = matches!(reply, raw::Reply::Whole(_));
        if is_whole && !is_answered || matches!(reply, raw::Reply::NoConnection(_)) {
            trial.breaks(format!("request {index} got: {reply}"));
        }
    }
    Ok(())
}

/// A valid request, with some bytes of its body changed, removed or inserted, or the body cut off.
fn damaged(siege: &Siege<'_>, seed: u64) -> Hostile {
    let lens: Vec<u32> = workload::uniform(&(2..=siege.size.longest as usize), 1 + seed as usize % 4, seed)
        .into_iter()
        .map(|it| it as u32)
        .collect();
    let mut body = siege.texts.body(&lens, seed).to_vec();
    let draws = workload::uniform(&(0..=usize::MAX >> 1), 12, seed ^ 0xbad);
    for draw in draws.chunks_exact(3).take(1 + seed as usize % 4) {
        if body.len() < 2 {
            break;
        }
        let (at, value) = (draw[0] % body.len(), (draw[1] % 256) as u8);
        match draw[2] % 4 {
            0 => body[at] = value,
            1 => drop(body.remove(at)),
            2 => body.insert(at, value),
            _ => body.truncate(at.max(1)),
        }
    }
    embed(body)
}

/// A request for vectors with this body, and a head that gives its length.
fn embed(body: impl Into<Bytes>) -> Hostile {
    Hostile { bytes: raw::request(&body.into(), "close"), is_whole: true }
}

fn whole(bytes: impl Into<Vec<u8>>) -> Hostile {
    Hostile { bytes: bytes.into(), is_whole: true }
}

fn unfinished(bytes: impl Into<Vec<u8>>) -> Hostile {
    Hostile { bytes: bytes.into(), is_whole: false }
}

/// The requests that are written by hand.
fn written() -> Vec<fn() -> Hostile> {
    vec![
        // Not JSON.
        || embed(""),
        || embed("{"),
        || embed("null"),
        || embed("[]"),
        || embed("{\"inputs\""),
        || embed("{\"inputs\": \"a\"} {}"),
        || embed(&b"{\"inputs\": \"\xff\xfe\"}"[..]),
        || embed(vec![0; 1000]),
        || embed("\u{feff}{\"inputs\": \"a\"}"),
        || embed("[".repeat(100_000)),
        || embed("{\"inputs\":".repeat(50_000)),
        || embed(format!("{{\"inputs\": {}}}", "[".repeat(100_000) + &"]".repeat(100_000))),
        // JSON without valid inputs.
        || embed("{\"inputs\": null}"),
        || embed("{\"inputs\": {}}"),
        || embed("{\"inputs\": []}"),
        || embed("{\"inputs\": [[]]}"),
        || embed("{\"inputs\": [\"a\", 1]}"),
        || embed("{\"inputs\": [[1, \"a\"]]}"),
        || embed("{\"inputs\": 1e999}"),
        || embed("{\"inputs\": [-1]}"),
        || embed("{\"inputs\": [4294967295]}"),
        || embed("{\"inputs\": [99999999999999999999]}"),
        || embed("{\"inputs\": [1.5]}"),
        || embed("{\"inputs\": \"\"}"),
        || embed("{\"inputs\": \"\\ud800\"}"),
        || embed("{\"inputs\": \"\\u0000\"}"),
        || embed("{\"inputs\": \"a\", \"inputs\": \"b\"}"),
        || embed("{\"inputs\": \"a\", \"truncate\": \"yes\"}"),
        || embed("{\"inputs\": \"a\", \"dimensions\": -1}"),
        || embed("{\"inputs\": \"a\", \"dimensions\": 1e30}"),
        || embed(format!("{{\"{}\": 1}}", "x".repeat(100_000))),
        // Too many, too long.
        || embed(format!("{{\"inputs\": [{}\"a\"]}}", "\"a\",".repeat(10_000))),
        || embed(format!("{{\"inputs\": \"{}\"}}", "a".repeat(1_000_000))),
        || embed(format!("{{\"inputs\": \"{}\"}}", "a ".repeat(500_000))),
        || embed(format!("{{\"inputs\": \"{}\"}}", "\u{1f600}\u{200d}".repeat(100_000))),
        || embed(format!("{{\"inputs\": [{}1]}}", "1,".repeat(500_000))),
        || embed(format!("{{\"inputs\": \"{}\"}}", "a".repeat(TOO_LONG))),
        || embed(vec![b' '; TOO_LONG]),
        // Heads that are wrong.
        || whole("GET /embed HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
        || whole("POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
        || {
            whole(
                "POST /embed/../../etc/passwd HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            )
        },
        || whole("POST /embed%00 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
        || whole("POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"),
        || {
            whole(
                "POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-request-deadline-ms: soon\r\n\
                 content-length: 15\r\nconnection: close\r\n\r\n{\"inputs\": \"a\"}",
            )
        },
        || whole("POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\nconnection: close\r\n\r\n"),
        || whole("POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n"),
        || whole("POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}"),
        || whole("POST /embed HTTP/9.9\r\nhost: x\r\n\r\n"),
        || whole("POST /embed\r\n\r\n"),
        || whole("hello\r\n\r\n"),
        || whole(format!("GET /{} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", "a".repeat(200_000))),
        || {
            whole(format!(
                "GET / HTTP/1.1\r\nhost: x\r\n{}connection: close\r\n\r\n",
                "x-a: b\r\n".repeat(5_000)
            ))
        },
        || {
            whole(format!(
                "GET / HTTP/1.1\r\nhost: x\r\nx-a: {}\r\nconnection: close\r\n\r\n",
                "b".repeat(1_000_000)
            ))
        },
        || whole(&b"GET / HTTP/1.1\r\nhost: x\r\nx-a: \x00\x01\r\nconnection: close\r\n\r\n"[..]),
        // Requests that never end.
        || unfinished("POST /embed HTTP/1.1\r\nhost: x\r\n"),
        || unfinished(raw::head(100, "close") + "{\"inputs\": "),
        || unfinished("POST /embed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"inp\r\n"),
        || {
            unfinished(
                "POST /embed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            )
        },
        || {
            unfinished(
                "POST /embed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
            )
        },
        // Other protocols.
        || unfinished("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        || unfinished(&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x04\x00\x00\x00\x00\x00"[..]),
        || unfinished(&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..]),
        || unfinished(vec![0xff; 4096]),
    ]
}
