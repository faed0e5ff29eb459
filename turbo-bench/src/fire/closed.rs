//! The closed loop: so many clients, each of which sends its next request as soon as it has its answer.

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
    /// This first time does not count.
    pub ramp: Duration,
    /// Time that does.
    pub length: Duration,
}

/// What a server answers a second while it is kept busy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Capacity {
    /// Requests.
    pub requests: f64,
    /// Tokens of those.
    pub tokens: f64,
}

/// What comes back of bodies of so many tokens, which are sent in turn, over and over.
///
/// Clients never pause, so what they get a second is their number over the time of an answer (Little's law): an answer
/// counts by the share of its time that lies in the time that counts. Answers that come in it would be a multiple of a
/// batch where a server answers a batch at once: of 32 each 0.9 s there are 96 or 128 in three seconds.
///
/// # Errors
/// When anything but an answer comes back: then the number would mean nothing.
pub async fn saturate(to: &Rc<Connections>, bodies: &[(u32, Bytes)], clients: Clients) -> Result<Capacity> {
    let (next, answered) = (Rc::new(Cell::new(0_usize)), Rc::new(Cell::new(Capacity::default())));
    let begin = Instant::now() + clients.ramp;
    let end = begin + clients.length;
    let bodies: Rc<[(u32, Bytes)]> = bodies.into();
    let mut asking = JoinSet::new();
    for _ in 0..clients.count {
        let (to, bodies) = (Rc::clone(to), Rc::clone(&bodies));
        let (next, answered) = (Rc::clone(&next), Rc::clone(&answered));
        asking.spawn_local(async move {
            let mut asked = Instant::now();
            while asked < end {
                let (tokens, body) = bodies[next.replace(next.get() + 1) % bodies.len()].clone();
                let answer = to.ask(body, None).await?;
                if answer.status.as_u16() != 200 {
                    bail!("{}: {}", answer.status, String::from_utf8_lossy(&answer.body));
                }
                let now = Instant::now();
                let counted = now.min(end).saturating_duration_since(asked.max(begin));
                let share = counted.as_secs_f64() / (now - asked).as_secs_f64();
                let mut sum = answered.get();
                sum.requests += share;
                sum.tokens += share * f64::from(tokens);
                answered.set(sum);
                asked = now;
            }
            Ok(())
        });
    }
    while let Some(ended) = asking.join_next().await {
        ended??;
    }
    let (Capacity { requests, tokens }, seconds) = (answered.get(), clients.length.as_secs_f64());
    Ok(Capacity { requests: requests / seconds, tokens: tokens / seconds })
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        sync::Semaphore,
        task::spawn_local,
        time,
    };

    use super::*;
    use crate::fire::on_this_thread;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// Answers 32 at once, those that have waited longest, at the end of each span.
    async fn answer_in_bursts(listener: TcpListener, span: Duration) {
        let turns = Rc::new(Semaphore::new(0));
        let given = Rc::clone(&turns);
        spawn_local(async move {
            let mut ends = time::interval_at(time::Instant::now() + span, span);
            loop {
                ends.tick().await;
                given.add_permits(32);
            }
        });
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let turns = Rc::clone(&turns);
            spawn_local(async move {
                let mut request = Vec::new();
                while stream.read_buf(&mut request).await.unwrap() > 0 {
                    if request.ends_with(b"{}") {
                        request.clear();
                        turns.acquire().await.unwrap().forget();
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]";
                        stream.write_all(answer).await.unwrap();
                    }
                }
            });
        }
    }

    /// Three bursts come in the one time and four in the other: each is three and a third.
    #[test]
    fn a_capacity_is_no_multiple_of_a_batch() {
        // where others hold the cores, single tries may fail
        const TRIES: usize = 20;
        let span = MS(60);
        let of_expected = |ramp| {
            let found = on_this_thread(async {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                let to = Rc::new(Connections::to(listener.local_addr()?)?);
                spawn_local(answer_in_bursts(listener, span));
                let bodies = [3_u32, 5].map(|tokens| (tokens, Bytes::from_static(b"{}")));
                saturate(&to, &bodies, Clients { count: 64, ramp: MS(ramp), length: MS(200) }).await
            });
            let Capacity { requests, tokens } = found.unwrap();
            let expected = 32.0 / span.as_secs_f64();
            [requests / expected, tokens / (4.0 * expected)]
        };
        for ramp in [67, 110] {
            let is_near = |_| of_expected(ramp).iter().all(|found| (found - 1.0).abs() < 0.03);
            assert!((0..TRIES).any(is_near), "none of {TRIES} tries, ramp {ramp} ms");
        }
    }
}
