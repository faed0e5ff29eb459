//! A server that is told to stop while everybody asks, and one that is killed.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{PATIENCE, Siege, Size, Stage, Trial, folder, raw};
use crate::fire::{Server, on_this_thread, server::Signal};

/// How long everybody asks before the signal.
const BEFORE: Duration = Duration::from_millis(500);
/// A listener that is still open so long after the signal was not closed first.
const CLOSED: Duration = Duration::from_secs(1);

/// SIGTERM while clients come and go: the listener closes first, and every connection that was accepted is answered.
pub(super) fn stop(stage: &impl Stage, size: Size) -> Result<Trial> {
    let begin = Instant::now();
    let mut trial = Trial { name: "stop".into(), ..Trial::default() };
    let costs = folder()?;
    let mut server = Server::start("turbo", &mut stage.command(costs.path()), PATIENCE)?;
    let siege = Siege::lay(&server, stage.texts(), size)?;
    on_this_thread(ask_while_it_stops(&siege, &mut trial))?;
    let status = server.wait(PATIENCE)?;
    if !status.success() {
        trial.broken.push(format!("{status}, although everything was answered"));
    }
    trial.judge(&server);
    trial.broken.truncate(8);
    trial.seconds = begin.elapsed().as_secs_f64().round();
    Ok(trial)
}

async fn ask_while_it_stops(siege: &Siege<'_>, trial: &mut Trial) -> Result<()> {
    let address = siege.server.address();
    let mut clients = JoinSet::new();
    for client in 0..siege.size.asking {
        // Short texts: most of the time clients are on their way in.
        let body = siege.texts.body(&[3 + client as u32 % 8], client as u64);
        clients.spawn(until_refused(address, raw::request(&body, "close")));
    }
    // It has been accepted, and says half of what it wants before the signal and the rest when nobody is let in any more.
    let body = siege.texts.body(&[9], 0);
    let request = raw::request(&body, "close");
    let (early, late) = request.split_at(request.len() - body.len() / 2);
    let mut halfway = raw::connect(address).await?;
    halfway.write_all(early).await?;
    sleep(BEFORE).await;
    siege.server.signal(Signal::TERM)?;
    let told = Instant::now();
    while let Some(replies) = clients.join_next().await {
        for reply in replies? {
            trial.note(&reply);
            if !matches!(reply, raw::Reply::Whole(200 | 429 | 503)) {
                trial.broken.push(format!("a connection that was accepted got: {reply}"));
            }
        }
        if told.elapsed() > PATIENCE {
            break;
        }
    }
    let refused = timeout(CLOSED, TcpStream::connect(address)).await;
    if !matches!(refused, Ok(Err(_))) {
        trial.broken.push(format!("after {:.1?} somebody was let in", told.elapsed()));
    }
    halfway.write_all(late).await.ok();
    let reply = raw::reply(&mut halfway, PATIENCE).await;
    trial.note(format!("{reply} to who was halfway"));
    if !matches!(reply, raw::Reply::Whole(200 | 503)) {
        trial.broken.push(format!("who was halfway through a request got: {reply}"));
    }
    Ok(())
}

/// Asks over a new connection each time, until there is none to be had; what came back.
async fn until_refused(address: SocketAddr, request: Vec<u8>) -> Vec<raw::Reply> {
    let mut replies = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        match raw::say(address, &request, PATIENCE).await {
            Ok(reply) => replies.push(reply),
            Err(_) => break,
        }
    }
    replies
}

/// SIGKILL under load: the next server starts from what the last one kept, and answers the same.
pub(super) fn kill(stage: &impl Stage, size: Size) -> Result<Trial> {
    let begin = Instant::now();
    let mut trial = Trial { name: "kill".into(), ..Trial::default() };
    let costs = folder()?;
    let start = || Server::start("turbo", &mut stage.command(costs.path()), PATIENCE);
    let mut server = start()?;
    let siege = Siege::lay(&server, stage.texts(), size)?;
    let expected = siege.expected.clone();
    on_this_thread(async {
        let address = server.address();
        let mut clients = JoinSet::new();
        for client in 0..siege.size.asking {
            let body = siege.texts.body(&[siege.size.longest; 4], client as u64);
            clients.spawn(until_refused(address, raw::request(&body, "close")));
        }
        sleep(BEFORE).await;
        server.signal(Signal::KILL)?;
        while let Some(replies) = clients.join_next().await {
            replies?.iter().for_each(|reply| trial.note(reply));
        }
        Ok(())
    })?;
    server.wait(PATIENCE)?;

    let server = start().context("it does not start again")?;
    let siege = Siege { server: &server, texts: stage.texts(), size, expected };
    match siege.ask() {
        Ok(answer) if answer == siege.expected => trial.note("the same afterwards"),
        Ok(_) => trial.broken.push("the next server has another vector for the same text".into()),
        Err(error) => trial.broken.push(format!("the next server: {error:#}")),
    }
    let log = server.log();
    if !log.contains("costs of batches are those of the last run") {
        trial.broken.push("the costs of the last run were lost".into());
    }
    trial.judge(&server);
    trial.seconds = begin.elapsed().as_secs_f64().round();
    Ok(trial)
}
