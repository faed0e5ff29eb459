//! As many connections as the system allows, all open, all asking at once, each an answer.

use anyhow::{Result, bail};
use hyper::body::Bytes;
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet};

use super::{PATIENCE, Siege, Trial, raw};
use crate::fire::raise_file_limit;

/// Files that this process has open besides.
const BESIDES: u64 = 100;
/// Connections that are made at a time: more than the system lets wait would be tried again in a second.
const AT_A_TIME: usize = 200;

pub(super) async fn come(siege: &Siege<'_>, trial: &mut Trial) -> Result<()> {
    let count = siege.size.crowd;
    let files = raise_file_limit();
    if files < count as u64 + BESIDES {
        bail!("{count} connections: the system allows {files} open files; raise its hard limit (ulimit -Hn)");
    }
    let address = siege.server.address();
    let mut streams = Vec::with_capacity(count);
    while streams.len() < count {
        let mut connecting = JoinSet::new();
        for _ in 0..AT_A_TIME.min(count - streams.len()) {
            connecting.spawn(raw::connect(address));
        }
        while let Some(stream) = connecting.join_next().await {
            streams.push(stream??);
        }
    }
    // Twice: first while nobody has asked yet, then over connections that were kept.
    for round in 0..2 {
        let asked: Vec<Bytes> = (0..16).map(|seed| siege.texts.body(&[3 + seed as u32 % 8], seed)).collect();
        let mut asking = JoinSet::new();
        for (index, stream) in streams.drain(..).enumerate() {
            asking.spawn(ask(stream, raw::request(&asked[index % asked.len()], "keep-alive")));
        }
        while let Some(asked) = asking.join_next().await {
            let (stream, reply) = asked?;
            trial.note(&reply);
            if !matches!(reply, raw::Reply::Whole(200 | 429)) {
                trial.broken.push(format!("round {round}: one of {count} connections got: {reply}"));
            }
            streams.push(stream);
        }
    }
    trial.broken.truncate(8);
    Ok(())
}

async fn ask(mut stream: TcpStream, request: Vec<u8>) -> (TcpStream, raw::Reply) {
    // Where the connection is broken, there is no reply.
    drop(stream.write_all(&request).await);
    let reply = raw::reply(&mut stream, PATIENCE).await;
    (stream, reply)
}
