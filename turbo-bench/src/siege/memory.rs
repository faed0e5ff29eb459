//! Requests of all lengths and sizes: what does the server keep of them?

use std::rc::Rc;

use anyhow::Result;
use hyper::body::Bytes;
use tokio::task::JoinSet;

use super::{Siege, Trial};
use crate::{fire::Connections, workload};

/// Clients that ask.
const CLIENTS: usize = 8;
/// Texts of a request, at most.
const TEXTS: usize = 8;
/// What a server may grow by, bytes.
pub const MAY_GROW: f64 = 5e6;

pub(super) async fn look(siege: &Siege<'_>, trial: &mut Trial) -> Result<()> {
    let connections = Rc::new(Connections::to(siege.server.address())?);
    ask(siege, trial, &connections, 0..siege.size.warm_up).await?;
    let before = siege.server.resident_bytes()?;
    let rest = siege.size.warm_up..siege.size.warm_up + siege.size.requests;
    ask(siege, trial, &connections, rest).await?;
    let after = siege.server.resident_bytes()?;
    let grown = after as f64 - before as f64;
    trial.grown_mb = Some((grown / 1e4).round() / 100.0);
    if grown > MAY_GROW {
        trial.broken.push(format!(
            "it grew by {:.1} MB over {} requests, from {:.1} MB",
            grown / 1e6,
            siege.size.requests,
            before as f64 / 1e6
        ));
    }
    Ok(())
}

/// Sends the requests of these numbers.
async fn ask(
    siege: &Siege<'_>,
    trial: &mut Trial,
    connections: &Rc<Connections>,
    numbers: std::ops::Range<usize>,
) -> Result<()> {
    let mut asking = JoinSet::new();
    for number in numbers {
        let (connections, body) = (Rc::clone(connections), mixed(siege, number as u64));
        asking.spawn_local(async move { connections.ask(body, None).await });
        if asking.len() >= CLIENTS
            && let Some(answer) = asking.join_next().await
        {
            trial.note(answer??.status.as_u16());
        }
    }
    while let Some(answer) = asking.join_next().await {
        trial.note(answer??.status.as_u16());
    }
    Ok(())
}

/// Some texts of lengths that differ.
fn mixed(siege: &Siege<'_>, seed: u64) -> Bytes {
    let count = 1 + seed as usize % TEXTS;
    let lens = workload::uniform(&(3..=siege.size.longest as usize), count, seed);
    siege.texts.body(&lens.into_iter().map(|len| len as u32).collect::<Vec<_>>(), seed)
}
