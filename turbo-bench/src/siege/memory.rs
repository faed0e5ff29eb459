//! Requests of all lengths and sizes. The server must keep nothing of them, or no more than its cache may take.

use std::{ops::Range, rc::Rc};

use anyhow::Result;
use hyper::body::Bytes;
use tokio::{task::JoinSet, time::timeout};

use super::{PATIENCE, Siege, Size, Stage, Trial, folder, start};
use crate::{
    fire::{Connections, client::Answer},
    workload,
};

/// Clients at a time.
const CLIENTS: usize = 8;
/// Bytes by which a server may grow that keeps no answers.
pub const MAY_GROW: f64 = 5e6;
/// Bytes of the cache, where there is one.
const BUDGET: u64 = 8 << 20;
/// The metric that counts answers that were evicted for others.
const EVICTED: &str = "turbo_cache_evictions{tier=\"memory\"}";

/// A mix of requests: the most texts of each, and the range of their tokens.
pub(super) struct Mixed {
    texts: usize,
    tokens: Range<u32>,
}

impl Mixed {
    /// Texts of all lengths, as few at a time as people send.
    pub(super) fn of_all_lengths(size: &Size) -> Self {
        Self { texts: 2, tokens: 3..size.longest + 1 }
    }

    /// Many texts that are soon computed, and long enough never to be drawn twice.
    pub(super) const DISTINCT: Self = Self { texts: 16, tokens: 8..14 };

    /// Tokens of a request, on average.
    pub(super) fn mean(&self) -> f64 {
        let texts = (1 + self.texts) as f64 / 2.0;
        texts * f64::from(self.tokens.start + self.tokens.end - 1) / 2.0
    }

    /// The body for a seed; each seed has another one.
    fn body(&self, siege: &Siege<'_>, seed: u64) -> Bytes {
        let lens = self.tokens.start as usize..=self.tokens.end as usize - 1;
        let lens = workload::uniform(&lens, 1 + seed as usize % self.texts, seed);
        // The texts of a body have consecutive seeds.
        siege
            .texts
            .body(&lens.into_iter().map(|len| len as u32).collect::<Vec<_>>(), seed * self.texts as u64)
    }
}

/// The trial of a server without a cache.
pub(super) async fn look(siege: &Siege<'_>, trial: &mut Trial) -> Result<()> {
    let Size { warm_up, requests, .. } = siege.size;
    grow(siege, trial, &Mixed::of_all_lengths(&siege.size), [warm_up, requests], MAY_GROW).await
}

/// The trial of a server with a cache. There are more answers than it may keep.
pub(super) fn fill(stage: &impl Stage, size: Size) -> Result<Trial> {
    let mut trial = Trial::default();
    let costs = folder()?;
    let server = start(stage, costs.path(), &[format!("--cache-bytes={BUDGET}")])?;
    let siege = Siege::lay(&server, stage.texts(), size)?;
    siege.hold(&mut trial, async |siege, trial| {
        grow(siege, trial, &Mixed::DISTINCT, [size.kept / 10, size.kept], BUDGET as f64).await?;
        let evicted = siege.metric(EVICTED).await?;
        trial.note_many("evicted", evicted as u64);
        if evicted == 0.0 {
            trial.breaks(format!("the cache was never full: {} requests were too few", size.kept));
        }
        Ok(())
    })?;
    Ok(trial)
}

/// Sends `warm_up` requests, and then `requests` more, during which the server may grow by `may_grow` bytes.
async fn grow(
    siege: &Siege<'_>,
    trial: &mut Trial,
    mixed: &Mixed,
    [warm_up, requests]: [usize; 2],
    may_grow: f64,
) -> Result<()> {
    let connections = Rc::new(Connections::to(siege.server.address())?);
    ask(siege, trial, &connections, (mixed, 0..warm_up)).await?;
    let before = siege.server.resident_bytes()?;
    ask(siege, trial, &connections, (mixed, warm_up..warm_up + requests)).await?;
    let grown = siege.server.resident_bytes()? as f64 - before as f64;
    trial.grown_mb = Some((grown / 1e4).round() / 100.0);
    if grown > may_grow {
        trial.breaks(format!(
            "it grew by {:.1} MB over {requests} requests, from {:.1} MB; expected {:.1} MB at most",
            grown / 1e6,
            before as f64 / 1e6,
            may_grow / 1e6
        ));
    }
    Ok(())
}

/// Sends the requests of these numbers.
async fn ask(
    siege: &Siege<'_>,
    trial: &mut Trial,
    connections: &Rc<Connections>,
    (mixed, numbers): (&Mixed, Range<usize>),
) -> Result<()> {
    let mut asking = JoinSet::new();
    for number in numbers {
        let (connections, body) = (Rc::clone(connections), mixed.body(siege, number as u64));
        asking.spawn_local(async move {
            let answer = timeout(PATIENCE, connections.ask(body, None)).await;
            answer.map_or_else(|_| Err("silence".into()), |it| it.map_err(|error| format!("{error:#}")))
        });
        if asking.len() >= CLIENTS
            && let Some(answer) = asking.join_next().await
        {
            judge(answer?, trial);
        }
    }
    while let Some(answer) = asking.join_next().await {
        judge(answer?, trial);
    }
    Ok(())
}

/// Judges an answer: with so few clients there is no reason to refuse one.
fn judge(answer: Result<Answer, String>, trial: &mut Trial) {
    match answer {
        Ok(answer) => {
            trial.note(answer.status.as_u16());
            if answer.status.as_u16() != 200 {
                trial.breaks(format!("one of {CLIENTS} clients got {}", answer.status));
            }
        }
        Err(why) => {
            trial.note("no answer");
            trial.breaks(format!("one of {CLIENTS} clients got no answer: {why}"));
        }
    }
}
