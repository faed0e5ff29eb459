//! Two thousand open connections that all send a request at once. Each gets an answer: as many as there are slots get
//! their vectors, and the others are told to try again.

use anyhow::{Context, Result, bail};
use hyper::body::Bytes;
use serde::Deserialize;
use tokio::{net::TcpStream, task::JoinSet};

use super::{PATIENCE, Siege, Trial, raw};
use crate::fire::raise_file_limit;

/// Files that this process may have open besides.
const BESIDES: u64 = 100;
/// Connections that are made at a time. If they were more than the system lets wait, the rest would be tried again only
/// after a second.
const AT_A_TIME: usize = 200;

#[derive(Deserialize)]
struct Info {
    max_concurrent_requests: usize,
}

pub(super) async fn come(siege: &Siege<'_>, trial: &mut Trial) -> Result<()> {
    let count = siege.size.crowd;
    let files = raise_file_limit();
    if files < count as u64 + BESIDES {
        bail!("{count} connections: the system allows {files} open files; raise its hard limit (ulimit -Hn)");
    }
    let address = siege.server.address();
    let Info { max_concurrent_requests: slots } =
        serde_json::from_str(&raw::get(address, "/info").await?).context("/info does not tell its slots")?;
    let mut streams = Vec::with_capacity(count);
    for first in (0..count).step_by(AT_A_TIME) {
        let mut connecting = JoinSet::new();
        (first..count.min(first + AT_A_TIME)).for_each(|_| drop(connecting.spawn(raw::connect(address))));
        while let Some(stream) = connecting.join_next().await {
            match stream? {
                Ok(stream) => streams.push(stream),
                Err(error) => trial.breaks(format!("one of {count} connections was not made: {error}")),
            }
        }
    }
    // Twice: first over new connections, then over the same connections, which were kept open.
    for round in 0..2 {
        let asked: Vec<Bytes> = (0..16).map(|seed| siege.texts.body(&[3 + seed as u32 % 8], seed)).collect();
        let mut asking = JoinSet::new();
        for (index, stream) in streams.drain(..).enumerate() {
            asking.spawn(ask(stream, raw::request(&asked[index % asked.len()], "keep-alive")));
        }
        let mut answered = 0;
        while let Some(asked) = asking.join_next().await {
            let (stream, reply) = asked?;
            trial.note(reply);
            match reply {
                raw::Reply::Whole(200) => answered += 1,
                raw::Reply::Whole(429) => {}
                other => trial.breaks(format!("round {round}: one of {count} connections got: {other}")),
            }
            streams.push(stream);
        }
        if answered < slots.min(count) {
            trial.breaks(format!("round {round}: {answered} were answered, where there are {slots} slots"));
        }
    }
    Ok(())
}

async fn ask(mut stream: TcpStream, request: Vec<u8>) -> (TcpStream, raw::Reply) {
    // If the connection is broken, `reply` says so.
    drop(raw::send(&mut stream, &request).await);
    let reply = raw::reply(&mut stream, PATIENCE).await;
    (stream, reply)
}
