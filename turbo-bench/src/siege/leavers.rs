//! Clients that go before they have their answer: what nobody waits for leaves the queue.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::{io::AsyncWriteExt, task::JoinSet, time::sleep};

use super::{PATIENCE, Siege, Trial, raw};
use crate::{fire::Connections, workload};

/// Clients at a time.
const AT_A_TIME: usize = 50;
/// A client stays for so many steps at most before it goes.
const STEPS: usize = 8;
const STEP: Duration = Duration::from_millis(1);
/// An answer that comes later than this after all have gone had to wait for what nobody wants.
const CLEARED: Duration = Duration::from_secs(5);

pub(super) async fn come(siege: &Siege<'_>, trial: &mut Trial) -> Result<()> {
    let address = siege.server.address();
    let count = siege.size.leavers;
    let stays = workload::uniform(&(0..=STEPS), count, 6);
    let mut here = JoinSet::new();
    for (index, stay) in stays.into_iter().enumerate() {
        let lens = [siege.size.longest; 8];
        let request = raw::request(&siege.texts.body(&lens, index as u64), "keep-alive");
        here.spawn(async move {
            let mut stream = raw::connect(address).await?;
            match index % 3 {
                // In the midst of its request.
                0 => stream.write_all(&request[..request.len() / 2]).await?,
                1 => stream.write_all(&request).await?,
                // It has said all, and still listens.
                _ => {
                    stream.write_all(&request).await?;
                    stream.shutdown().await?;
                    return std::io::Result::Ok(raw::reply(&mut stream, PATIENCE).await.to_string());
                }
            }
            sleep(STEP * stay as u32).await;
            Ok("gone".to_owned())
        });
        if here.len() >= AT_A_TIME
            && let Some(left) = here.join_next().await
        {
            trial.note(left?.unwrap_or_else(|_| "closed".into()));
        }
    }
    while let Some(left) = here.join_next().await {
        trial.note(left?.unwrap_or_else(|_| "closed".into()));
    }
    if trial.answers.contains_key("silence") {
        trial.broken.push(format!("a half-closed connection was left open for {PATIENCE:?}"));
    }
    let begin = Instant::now();
    let answer = Connections::to(address)?.ask(siege.texts.body(&[5], 1), None).await;
    if answer.is_err() || begin.elapsed() > CLEARED {
        trial.broken.push(format!("when all had gone an answer took {:?}", begin.elapsed()));
    }
    Ok(())
}
