//! The closed loop: so many clients, each of which asks again as soon as it has its answer.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use hyper::body::Bytes;
use tokio::task::JoinSet;

use super::Connections;

/// How a server is kept busy.
#[derive(Clone, Copy, Debug)]
pub struct Clients {
    /// How many ask at a time.
    pub count: usize,
    /// Answers of this first time do not count.
    pub ramp: Duration,
    /// Time in which they do.
    pub length: Duration,
}

/// Answers a second, to bodies that are sent in turn, over and over.
///
/// # Errors
/// When anything but an answer comes back: then nobody knows what was measured.
pub async fn saturate(to: &Rc<Connections>, bodies: &[Bytes], clients: Clients) -> Result<f64> {
    let (next, answered) = (Rc::new(Cell::new(0_usize)), Rc::new(Cell::new(0_u64)));
    let begin = Instant::now() + clients.ramp;
    let end = begin + clients.length;
    let bodies: Rc<[Bytes]> = bodies.into();
    let mut asking = JoinSet::new();
    for _ in 0..clients.count {
        let (to, bodies) = (Rc::clone(to), Rc::clone(&bodies));
        let (next, answered) = (Rc::clone(&next), Rc::clone(&answered));
        asking.spawn_local(async move {
            while Instant::now() < end {
                let body = bodies[next.replace(next.get() + 1) % bodies.len()].clone();
                let answer = to.ask(body, None).await?;
                if answer.status.as_u16() != 200 {
                    bail!("{}: {}", answer.status, String::from_utf8_lossy(&answer.body));
                }
                if (begin..end).contains(&Instant::now()) {
                    answered.set(answered.get() + 1);
                }
            }
            Ok(())
        });
    }
    while let Some(ended) = asking.join_next().await {
        ended??;
    }
    Ok(answered.get() as f64 / clients.length.as_secs_f64())
}
