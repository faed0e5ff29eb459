//! Clients that leave before they have their answer. A request whose client has gone leaves the queue.
//!
//! In HTTP/1.1 a closed connection and one with only its writing side closed look the same, and the server takes both
//! clients for gone. So a client that closes a half gets its answer if that is ready by then; otherwise its connection
//! is closed.

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Result;
use tokio::{
    io::AsyncWriteExt,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{PATIENCE, Siege, Trial, raw};
use crate::{fire::Connections, workload};

/// Clients at a time.
const AT_A_TIME: usize = 50;
/// A client stays for at most so many steps before it leaves.
const STEPS: usize = 8;
const STEP: Duration = Duration::from_millis(1);
/// If an answer takes longer than this after all have gone, it had to wait for requests without clients.
const CLEARED: Duration = Duration::from_secs(5);
/// The metric that counts requests whose clients had gone.
const WITHDRAWN: &str = "te_request_failure{err=\"dropped\"}";

/// When and how a client leaves.
#[derive(Clone, Copy)]
enum Way {
    /// It leaves in the midst of its request.
    Midst,
    /// It leaves when it has sent its whole request.
    Asked,
    /// It sends its whole request, closes its writing side, and still listens.
    Half,
}

/// What became of a client.
enum Left {
    Gone,
    Heard(raw::Reply),
}

pub(super) async fn come(siege: &Siege<'_>, trial: &mut Trial) -> Result<()> {
    let address = siege.server.address();
    let count = siege.size.leavers;
    let stays = workload::uniform(&(0..=STEPS), count, 6);
    let before = siege.metric(WITHDRAWN).await?;
    let mut here = JoinSet::new();
    for (index, stay) in stays.into_iter().enumerate() {
        let lens = [siege.size.longest; 8];
        let request = raw::request(&siege.texts.body(&lens, index as u64), "keep-alive");
        let way = [Way::Midst, Way::Asked, Way::Half][index % 3];
        here.spawn(leave(address, request, way, STEP * stay as u32));
        if here.len() >= AT_A_TIME
            && let Some(left) = here.join_next().await
        {
            judge(left?, trial);
        }
    }
    while let Some(left) = here.join_next().await {
        judge(left?, trial);
    }
    let begin = Instant::now();
    let connections = Connections::to(address)?;
    let answer = timeout(PATIENCE, connections.ask(siege.texts.body(&[5], 1), None)).await;
    if !matches!(answer, Ok(Ok(_))) || begin.elapsed() > CLEARED {
        trial.breaks(format!("when all had gone an answer took {:.1?}", begin.elapsed()));
    }
    let withdrawn = siege.metric(WITHDRAWN).await? - before;
    trial.note_many("withdrawn", withdrawn as u64);
    if withdrawn == 0.0 {
        trial.breaks("clients went, and nothing was withdrawn".into());
    }
    Ok(())
}

async fn leave(address: SocketAddr, request: Vec<u8>, way: Way, stay: Duration) -> io::Result<Left> {
    let mut stream = raw::connect(address).await?;
    match way {
        Way::Midst => raw::send(&mut stream, &request[..request.len() / 2]).await?,
        Way::Asked => raw::send(&mut stream, &request).await?,
        Way::Half => {
            raw::send(&mut stream, &request).await?;
            stream.shutdown().await?;
            return Ok(Left::Heard(raw::reply(&mut stream, PATIENCE).await));
        }
    }
    sleep(stay).await;
    Ok(Left::Gone)
}

fn judge(left: io::Result<Left>, trial: &mut Trial) {
    match left {
        Ok(Left::Gone) => trial.note("gone"),
        Ok(Left::Heard(reply)) => {
            trial.note(format!("{reply} to a half-closed one"));
            if !matches!(reply, raw::Reply::Whole(200 | 429) | raw::Reply::Closed) {
                trial.breaks(format!("a half-closed connection got: {reply}"));
            }
        }
        Err(error) => {
            trial.note("no connection, or a broken one");
            trial.breaks(format!("before it went a client's connection broke: {error}"));
        }
    }
}
