//! Clients that send their head or their body a byte now and then, or do not read their answers. All others are served
//! meanwhile. A slow client that finishes within the server's patience is answered; any other one is cut off.

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Result;
use hyper::body::Bytes;
use tokio::{
    io::AsyncWriteExt,
    task::JoinSet,
    time::{sleep, sleep_until, timeout},
};

use super::{PATIENCE, Siege, Trial, raw};
use crate::fire::Connections;

/// The time between two requests of a client that does not dawdle.
const STEP: Duration = Duration::from_millis(100);
/// The server's patience with a head.
const HEAD: Duration = Duration::from_secs(75);
/// The server's patience with a slow body, and with a client that reads nothing.
const STALL: Duration = Duration::from_secs(30);
/// A client that dawdles so much longer than the patience should have been cut off.
const LATER: Duration = Duration::from_secs(10);
/// Clients that do not read. Each requests answers that no other client wants.
const READERS: usize = 4;
/// The route with the largest answers: rows of all tokens.
const LARGE: &str = "/embed_all";
/// Bytes of answers that such a client requests and does not read: more than the system buffers for it.
const ASKED: usize = 8 << 20;
/// Bytes by which answers may differ, because their heads give times with more digits or fewer.
const HEADS_DIFFER: usize = 100;
/// Bytes of its own receive buffer.
const ROOM: u32 = 64 << 10;

/// What a dawdler is slow with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Over {
    Head,
    Body,
    Answers,
}

/// How a dawdler ended: whether it got all that it had requested.
type Ended = (Over, Result<(), String>);

pub(super) async fn come(siege: &Siege<'_>, trial: &mut Trial) -> Result<()> {
    let mut dawdlers: JoinSet<Ended> = JoinSet::new();
    let address = siege.server.address();
    let end = Instant::now() + siege.size.dawdling;
    // All of them finish at the same time, and there is a slot for each.
    let body = siege.texts.body(&[40], 5);
    for index in 0..siege.size.dawdlers {
        let over = [Over::Head, Over::Body][index % 2];
        let request = raw::request(&body, "close");
        let head = request.len() - body.len();
        let slow = match over {
            Over::Head => 0..head - 1,
            _ => head..request.len() - 1,
        };
        dawdlers.spawn(async move { (over, write_slowly(address, &request, slow, end).await) });
    }
    let large = siege.texts.body(&[siege.size.longest; 8], 7);
    for _ in 0..READERS {
        let large = large.clone();
        dawdlers.spawn(async move { (Over::Answers, read_late(address, &large, end).await) });
    }

    let polite = Connections::to(address)?;
    while Instant::now() < end {
        let answer = timeout(PATIENCE, polite.ask(siege.texts.body(&[11], 3), None)).await;
        match answer {
            Ok(Ok(answer)) if answer.status.as_u16() == 200 => trial.note("200 to others"),
            Ok(Ok(answer)) => trial.breaks(format!("somebody else got {}", answer.status)),
            Ok(Err(error)) => trial.breaks(format!("somebody else got no answer: {error:#}")),
            Err(_) => trial.breaks(format!("somebody else got no answer within {PATIENCE:?}")),
        }
        sleep(STEP).await;
    }
    while let Some(ended) = dawdlers.join_next().await {
        let (over, ended) = ended?;
        trial.note(if ended.is_ok() { "answered late" } else { "cut off" });
        if let Some(broken) = judge(over, ended, siege.size.dawdling) {
            trial.breaks(broken);
        }
    }
    Ok(())
}

/// What was wrong, if anything, about how a client ended that had dawdled for so long.
fn judge(over: Over, ended: Result<(), String>, dawdling: Duration) -> Option<String> {
    let patience = match over {
        Over::Head => HEAD,
        Over::Body | Over::Answers => STALL,
    };
    match ended {
        Err(how) if dawdling < patience => Some(format!("{over:?}: after {dawdling:?} one got {how}")),
        Ok(()) if dawdling > patience.saturating_add(LATER) => {
            Some(format!("{over:?}: the server still waited after {dawdling:?}"))
        }
        _ => None,
    }
}

/// Sends the bytes before `slow` at once, those of `slow` one by one so that they last until `end`, and then the rest.
async fn write_slowly(
    address: SocketAddr,
    request: &[u8],
    slow: std::ops::Range<usize>,
    end: Instant,
) -> Result<(), String> {
    let broke = |error: io::Error| format!("a broken connection: {error}");
    let mut stream = raw::connect(address).await.map_err(broke)?;
    raw::send(&mut stream, &request[..slow.start]).await.map_err(broke)?;
    for sent in slow.clone() {
        let left = end.saturating_duration_since(Instant::now());
        sleep(left / (slow.end - sent) as u32).await;
        stream.write_u8(request[sent]).await.map_err(broke)?;
    }
    raw::send(&mut stream, &request[slow.end..]).await.map_err(broke)?;
    match raw::reply(&mut stream, PATIENCE).await {
        raw::Reply::Whole(200) => Ok(()),
        other => Err(other.to_string()),
    }
}

/// Requests more than the system buffers, and reads none of it until `end`.
async fn read_late(address: SocketAddr, body: &Bytes, end: Instant) -> Result<(), String> {
    let broke = |error: io::Error| format!("a broken connection: {error}");
    let mut stream = raw::connect_narrow(address, ROOM).await.map_err(broke)?;
    let request = raw::request_to(LARGE, body, "keep-alive");
    raw::send(&mut stream, &request).await.map_err(broke)?;
    let answer = raw::whole_answer(&mut stream).await.map_err(broke)?;
    let count = ASKED.div_ceil(answer);
    for _ in 1..count {
        raw::send(&mut stream, &request).await.map_err(broke)?;
    }
    raw::send(&mut stream, &raw::request_to(LARGE, body, "close")).await.map_err(broke)?;
    sleep_until(end.into()).await;
    let (expected, came) = (count * answer, raw::drain(&mut stream).await.map_err(broke)?);
    if came + count * HEADS_DIFFER >= expected { Ok(()) } else { Err(format!("{came} of {expected} bytes")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: fn(u64) -> Duration = Duration::from_secs;

    /// The server would not have the patience for a long pause at the end.
    #[test]
    fn what_is_sent_slowly_lasts_until_the_end() {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut came, mut bytes, mut widest) = (Instant::now(), 0, Duration::ZERO);
            while bytes < 40 {
                bytes += stream.read(&mut [0; 64]).unwrap();
                widest = widest.max(came.elapsed());
                came = Instant::now();
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            widest
        });
        let end = Instant::now() + Duration::from_millis(600);
        let sent =
            crate::fire::on_this_thread(async { Ok(write_slowly(address, &[b' '; 40], 10..39, end).await) });
        assert_eq!(sent.unwrap(), Ok(()));
        assert!(Instant::now() >= end);
        let widest = server.join().unwrap();
        assert!(widest < Duration::from_millis(300), "a pause of {widest:?} in 600 ms");
    }

    #[test]
    fn patience_is_kept_and_comes_to_an_end() {
        let cut = || Err("closed".to_owned());
        for (over, dawdling, answered_is_right, cut_is_right) in [
            (Over::Head, 3, true, false),
            (Over::Head, 80, true, true),
            (Over::Head, 90, false, true),
            (Over::Body, 3, true, false),
            (Over::Body, 41, false, true),
            (Over::Answers, 3, true, false),
            (Over::Answers, 41, false, true),
        ] {
            let right = |ended| judge(over, ended, SECONDS(dawdling)).is_none();
            assert_eq!(
                [right(Ok(())), right(cut())],
                [answered_is_right, cut_is_right],
                "{over:?} {dawdling}"
            );
        }
    }
}
