//! The closed loop: a number of clients, each of which sends its next request as soon as it has its answer.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use hyper::body::Bytes;
use tokio::task::JoinSet;

use super::Connections;

/// The clients that keep a server busy.
#[derive(Clone, Copy, Debug)]
pub struct Clients {
    /// Number of clients, each with one request at a time.
    pub count: usize,
    /// Time at the beginning that does not count.
    pub ramp: Duration,
    /// Time after that, which counts.
    pub length: Duration,
}

/// How much a server answers per second while it is kept busy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Capacity {
    /// Requests.
    pub requests: f64,
    /// Tokens of these requests.
    pub tokens: f64,
}

/// Measures the capacity of a server. `bodies`, with their numbers of tokens, are sent in turn, over and over.
///
/// Clients never pause, so their rate of answers is their number over the time of an answer (Little's law). An answer
/// counts by the share of its time that lies within the counted time. A mere count of the answers in that time would be
/// a multiple of the batch size where a server answers a whole batch at once: with 32 answers every 0.9 s it would be
/// 96 or 128 in three seconds.
///
/// # Errors
/// When anything but an answer comes back, because the number would then mean nothing.
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

    /// At the end of each span, answers the 32 requests that have waited longest.
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

    /// With one ramp three bursts come in the counted time, with the other four. The capacity is that of three and a
    /// third in both.
    #[test]
    fn a_capacity_is_no_multiple_of_a_batch() {
        // if other processes hold the cores, single tries may fail
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
