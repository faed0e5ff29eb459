//! A server that gets a signal to stop under load, and one that is killed.

use std::{
    cell::RefCell,
    io::ErrorKind,
    net::{SocketAddr, TcpStream},
    path::Path,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use hyper::body::Bytes;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{NO_ANSWERS, PATIENCE, Siege, Size, Stage, Trial, folder, raw, start};
use crate::fire::{Connections, server::Signal};

/// How long the clients send requests before the signal.
const BEFORE: Duration = Duration::from_millis(500);
/// If the listener is still open so long after the signal, it was not closed first.
const CLOSED: Duration = Duration::from_millis(250);
/// How often the listener may stay open for too long, or a client may be reset while it connects. A busy machine may
/// keep any thread from its cores, the system's own too. A server that is itself at fault fails each time.
const MISHAPS: usize = 2;
/// How long to look whether the listener closes at all.
const LOOKED: Duration = Duration::from_secs(2);
/// The time between two looks.
const LOOK: Duration = Duration::from_millis(5);
/// Texts of each request in the trial that kills the server.
const TEXTS: usize = 4;
/// Number of answers that are compared afterwards.
const COMPARED: usize = 100;
/// The metrics for how many answers the folder holds, and how many were found there.
const HELD: &str = "turbo_cache_entries{tier=\"folder\"}";
const FOUND: &str = "turbo_cache_hits{tier=\"folder\"}";

/// SIGTERM while clients come and go: the listener closes first, and every accepted connection is answered.
pub(super) fn stop(stage: &impl Stage, size: Size) -> Result<Trial> {
    let mut mishaps = Vec::new();
    loop {
        let (mut trial, mishap) = stop_once(stage, size)?;
        let Some(mishap) = mishap else { return Ok(trial) };
        mishaps.push(mishap);
        if mishaps.len() > MISHAPS {
            trial.breaks(format!("each time it was told to stop: {}", mishaps.join("; ")));
        }
        if !trial.broken.is_empty() {
            return Ok(trial);
        }
    }
}

/// Runs the trial once. Returns it, and a mishap that a busy machine may have caused, if there was one.
fn stop_once(stage: &impl Stage, size: Size) -> Result<(Trial, Option<String>)> {
    let mut trial = Trial::default();
    let costs = folder()?;
    let mut server = start(stage, costs.path(), &[NO_ANSWERS])?;
    let siege = Siege::lay(&server, stage.texts(), size)?;
    let mut mishap = None;
    siege.within_limit(&mut trial, async |siege, trial| {
        mishap = ask_while_it_stops(siege, trial).await?;
        Ok(())
    })?;
    match server.wait(PATIENCE) {
        Ok(status) if status.success() => {}
        Ok(status) => trial.breaks(format!("{status}, although everything was answered")),
        Err(error) => trial.breaks(format!("{error:#}")),
    }
    trial.judge(&server, &[503, 504]);
    Ok((trial, mishap))
}

async fn ask_while_it_stops(siege: &Siege<'_>, trial: &mut Trial) -> Result<Option<String>> {
    let address = siege.server.address();
    let mut clients = JoinSet::new();
    for client in 0..siege.size.asking {
        // Texts are short, so that clients spend most of their time connecting.
        let body = siege.texts.body(&[3 + client as u32 % 8], client as u64);
        clients.spawn(until_refused(address, raw::request(&body, "close")));
    }
    // This client has been accepted. It sends half of its request before the signal, and the rest when no client is
    // accepted any more.
    let body = siege.texts.body(&[9], 0);
    let request = raw::request(&body, "close");
    let (early, late) = request.split_at(request.len() - body.len() / 2);
    let mut halfway = raw::connect(address).await?;
    raw::send(&mut halfway, early).await?;
    sleep(BEFORE).await;
    siege.server.signal(Signal::TERM)?;
    let told = Instant::now();
    // On another thread, because the clients run on this one.
    let closed = tokio::task::spawn_blocking(move || closed(address, told)).await?;
    trial.note(format!("closed to others within {} ms", rounded(closed)));
    // The accepted client must still be answered now.
    drop(raw::send(&mut halfway, late).await);
    let reply = raw::reply(&mut halfway, PATIENCE).await;
    trial.note(format!("{reply} to who was halfway"));
    if !matches!(reply, raw::Reply::Whole(200 | 503)) {
        trial.breaks(format!("who was halfway through a request got: {reply}"));
    }
    let mut mishap =
        (closed > CLOSED).then(|| format!("somebody was let in for {closed:?}, expected {CLOSED:?} at most"));
    let mut answered = [0; 2];
    while let Some(replies) = clients.join_next().await {
        for (when, reply) in replies? {
            trial.note(reply);
            let is_after = when > told;
            let expected = match reply {
                raw::Reply::Whole(200 | 429) => true,
                raw::Reply::Whole(503) | raw::Reply::NoConnection(ErrorKind::ConnectionRefused) => is_after,
                // The system had accepted the connection, or was about to.
                raw::Reply::Broken(ErrorKind::ConnectionReset)
                | raw::Reply::NoConnection(ErrorKind::ConnectionReset) => {
                    mishap = Some(format!("a client was reset before its request was read: {reply}"));
                    is_after
                }
                _ => false,
            };
            if !expected {
                let when = if is_after { "after" } else { "before" };
                trial.breaks(format!("{when} the signal somebody got: {reply}"));
            }
            answered[usize::from(is_after)] += u64::from(matches!(reply, raw::Reply::Whole(_)));
        }
    }
    if answered.contains(&0) {
        trial.breaks(format!("expected answers before and after the signal, got {answered:?}"));
    }
    Ok(mishap)
}

/// The time from the signal until a connection was refused. The wait ends after [`LOOKED`] at the latest. A client that
/// connects while the listener closes is refused only a second later.
fn closed(address: SocketAddr, told: Instant) -> Duration {
    let is_refused = || {
        let connected = TcpStream::connect_timeout(&address, LOOKED);
        connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    loop {
        let came = told.elapsed();
        if is_refused() || came > LOOKED {
            return came;
        }
        std::thread::sleep(LOOK);
    }
}

/// Milliseconds, rounded up to tens, so that runs share a label.
fn rounded(time: Duration) -> u128 {
    time.as_millis().div_ceil(10) * 10
}

/// Sends the request again and again, each time over a new connection, until there is no connection. Returns the
/// replies and their times.
async fn until_refused(address: SocketAddr, request: Vec<u8>) -> Vec<(Instant, raw::Reply)> {
    let mut replies = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        let reply = raw::say(address, &request, PATIENCE).await;
        replies.push((Instant::now(), reply));
        if matches!(reply, raw::Reply::NoConnection(_)) {
            break;
        }
    }
    replies
}

/// SIGKILL under load: the next server starts from the costs and answers that the last one kept, and answers the same.
pub(super) fn kill(stage: &impl Stage, size: Size) -> Result<Trial> {
    let mut trial = Trial::default();
    let (costs, answers) = (folder()?, folder()?);
    let kept = [format!("--cache-dir={}", answers.path().display())];
    let begin = |costs: &Path| start(stage, costs, &kept);
    let mut server = begin(costs.path())?;
    let siege = Siege::lay(&server, stage.texts(), size)?;
    let expected = siege.expected.clone();
    let mut answered = Vec::new();
    siege.within_limit(&mut trial, async |siege, trial| {
        answered = ask_while_it_is_killed(siege, trial).await?;
        Ok(())
    })?;
    if let Err(error) = server.wait(PATIENCE) {
        trial.breaks(format!("killed: {error:#}"));
    }
    trial.judge(&server, &[504]);

    let server = match begin(costs.path()) {
        Ok(server) => server,
        Err(error) => {
            trial.breaks(format!("it does not start again: {error:#}"));
            return Ok(trial);
        }
    };
    let siege = Siege { server: &server, texts: stage.texts(), size, expected };
    siege.hold(&mut trial, async |siege, trial| compare(siege, trial, &answered).await)?;
    let log = server.log();
    if !log.contains("costs of batches are those of the last run") {
        trial.breaks("the costs of the last run were lost".into());
    }
    if let Some(line) = log.lines().find(|line| line.contains("WARN")) {
        trial.breaks(format!("what the last one left is damaged: {line}"));
    }
    Ok(trial)
}

type Answered = Vec<(Bytes, Bytes)>;

/// Kills the server when it has answered for a while and kept some answers. Returns the requests and answers.
async fn ask_while_it_is_killed(siege: &Siege<'_>, trial: &mut Trial) -> Result<Answered> {
    let answered: Rc<RefCell<Answered>> = Rc::default();
    let mut clients = JoinSet::new();
    for client in 0..siege.size.asking as u64 {
        let bodies: Vec<Bytes> = (0..COMPARED as u64)
            .map(|seed| siege.texts.body(&[20; TEXTS], TEXTS as u64 * (seed + client * COMPARED as u64)))
            .collect();
        let (to, answered) = (Connections::to(siege.server.address())?, Rc::clone(&answered));
        clients.spawn_local(async move {
            for body in bodies.iter().cycle() {
                match timeout(PATIENCE, to.ask(body.clone(), None)).await {
                    Ok(Ok(answer)) if answer.status.as_u16() == 200 => {
                        answered.borrow_mut().push((body.clone(), answer.body));
                    }
                    // It was refused: there are more clients than slots.
                    Ok(Ok(_)) => sleep(LOOK).await,
                    Ok(Err(_)) | Err(_) => break,
                }
            }
        });
    }
    let begin = Instant::now();
    sleep(BEFORE).await;
    while siege.metric(HELD).await? == 0.0 && begin.elapsed() < PATIENCE {
        sleep(LOOK).await;
    }
    siege.server.signal(Signal::KILL)?;
    let count = answered.borrow().len();
    while clients.join_next().await.is_some() {}
    trial.note_many("200 before it was killed", count as u64);
    if count == 0 {
        trial.breaks("nothing was answered before it was killed".into());
    }
    Ok(answered.take())
}

/// Sends some of the requests again. The answers must be the same, and some must come from the folder.
async fn compare(siege: &Siege<'_>, trial: &mut Trial, answered: &Answered) -> Result<()> {
    let to = Connections::to(siege.server.address())?;
    // The first answers were surely written.
    for (body, expected) in answered.iter().take(COMPARED) {
        match timeout(PATIENCE, to.ask(body.clone(), None)).await.context("silence").flatten() {
            Ok(answer) if answer.body == *expected => trial.note("the same afterwards"),
            Ok(answer) => trial.breaks(format!("{}, and another answer than before", answer.status)),
            Err(error) => trial.breaks(format!("the next server: {error:#}")),
        }
    }
    if siege.metric(FOUND).await? == 0.0 {
        trial.breaks("no answer of the last run was found".into());
    }
    Ok(())
}
