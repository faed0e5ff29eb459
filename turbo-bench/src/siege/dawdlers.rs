//! Clients that send their head, or their body, or read their answer a byte now and then: everybody else is served.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{PATIENCE, Siege, Trial, raw};
use crate::fire::Connections;

/// Between two bytes.
const STEP: Duration = Duration::from_millis(100);
/// The server's patience with a head; whoever still is at it later should have been cut off.
const HEAD: Duration = Duration::from_secs(75);

/// What a dawdler dawdles over.
#[derive(Clone, Copy)]
enum Over {
    Head,
    Body,
    Answer,
}

pub(super) async fn come(siege: &Siege<'_>, trial: &mut Trial) -> Result<()> {
    let mut dawdlers = JoinSet::new();
    let address = siege.server.address();
    let end = Instant::now() + siege.size.dawdling;
    let body = siege.texts.body(&[40; 8], 5);
    for index in 0..siege.size.dawdlers {
        let over = [Over::Head, Over::Body, Over::Answer][index % 3];
        let request = raw::request(&body, "close");
        let head = request.len() - body.len();
        dawdlers.spawn(async move {
            let mut stream = raw::connect(address).await?;
            let from = match over {
                Over::Head => 0,
                Over::Body => head,
                Over::Answer => request.len(),
            };
            stream.write_all(&request[..from]).await?;
            // What was begun is not finished: the last byte is never sent.
            let mut rest = request[from..].iter().take((request.len() - from).saturating_sub(1));
            while Instant::now() < end {
                sleep(STEP).await;
                let ended = match over {
                    Over::Answer => stream.read_u8().await.is_err(),
                    _ => {
                        let sent = match rest.next() {
                            Some(&byte) => stream.write_u8(byte).await.is_err(),
                            None => false,
                        };
                        sent || is_closed(&mut stream).await
                    }
                };
                if ended {
                    return Ok((over, true));
                }
            }
            std::io::Result::Ok((over, false))
        });
    }

    let polite = Connections::to(address)?;
    while Instant::now() < end {
        let answer = timeout(PATIENCE, polite.ask(siege.texts.body(&[11], 3), None)).await;
        match answer {
            Ok(Ok(answer)) if answer.status.as_u16() == 200 => trial.note("200 to others"),
            Ok(Ok(answer)) => trial.broken.push(format!("somebody else got {}", answer.status)),
            Ok(Err(error)) => trial.broken.push(format!("somebody else got no answer: {error:#}")),
            Err(_) => trial.broken.push(format!("somebody else got no answer within {PATIENCE:?}")),
        }
        sleep(STEP).await;
    }
    while let Some(ended) = dawdlers.join_next().await {
        let (over, cut_off) = ended??;
        trial.note(if cut_off { "cut off" } else { "kept" });
        if matches!(over, Over::Head) && !cut_off && siege.size.dawdling > HEAD + Duration::from_secs(10) {
            trial.broken.push("a head that took longer than 75 s was waited for".into());
        }
    }
    trial.broken.truncate(8);
    Ok(())
}

/// Whether the server has closed the connection: nothing is to be read from one that is open.
async fn is_closed(stream: &mut tokio::net::TcpStream) -> bool {
    matches!(timeout(Duration::ZERO, stream.read_u8()).await, Ok(Err(_)))
}
