//! The open loop: requests are sent at their times, whatever has become of the earlier ones.

use std::{
    cell::RefCell,
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use hyper::body::Bytes;
use tokio::{
    sync::mpsc::{self, UnboundedSender},
    task::JoinSet,
    time::timeout,
};

use super::{Arrival, Connections, Tally, Texts, Trace};

/// Requests and their times. All bodies are made before the first request is sent.
#[derive(Clone, Debug)]
pub struct Script {
    requests: Vec<(Arrival, Bytes)>,
    length: Duration,
}

/// How a script is played.
#[derive(Clone, Copy, Debug)]
pub struct Play {
    /// The time within which an answer is promised.
    pub promised: Duration,
    /// Whether a request carries a deadline: the part of `promised` that is left when it is sent.
    pub is_told: bool,
    /// Requests within this time from the beginning do not count, because queues still fill up.
    pub ramp: Duration,
    /// How long to wait for answers after the last request.
    pub patience: Duration,
}

/// Time for the clock thread to get ready.
const LEAD: Duration = Duration::from_millis(20);

impl Script {
    /// Makes the requests of a trace of this length; their texts depend on the seed.
    #[must_use]
    pub fn new(trace: &Trace, length: Duration, texts: &Texts, seed: u64) -> Self {
        let of = |(index, it): (u64, &Arrival)| (*it, texts.body(&[it.tokens], seed ^ index << 20));
        Self { requests: (0..).zip(trace.arrivals()).map(of).collect(), length }
    }

    /// Sends every request at its time, and waits for the answers.
    ///
    /// # Errors
    /// When the clock thread does not start.
    pub async fn play(&self, to: &Rc<Connections>, play: Play) -> Result<Tally> {
        let start = Instant::now() + LEAD;
        let (tell, mut due) = mpsc::unbounded_channel();
        let times: Vec<Duration> = self.requests.iter().map(|(it, _)| it.at).collect();
        let clock =
            thread::Builder::new().name("clock".into()).spawn(move || keep_time(start, &times, &tell));
        clock.context("cannot start a thread")?;

        let tally = Rc::new(RefCell::new(Tally {
            seconds: (self.length - play.ramp).as_secs_f64(),
            ..Tally::default()
        }));
        let mut under_way = JoinSet::new();
        while let Some(index) = due.recv().await {
            let (Arrival { at, tokens }, body) = self.requests[index].clone();
            let (to, tally, begin) = (Rc::clone(to), Rc::clone(&tally), start + at);
            under_way.spawn_local(async move {
                let late = begin.elapsed();
                if at >= play.ramp {
                    tally.borrow_mut().late.note(late);
                }
                let left = play.promised.saturating_sub(late);
                let answer = to.ask(body, play.is_told.then_some(left)).await;
                if at >= play.ramp {
                    let status = answer.ok().map(|answer| answer.status.as_u16());
                    tally.borrow_mut().note(tokens, status, begin.elapsed(), play.promised);
                }
            });
            while under_way.try_join_next().is_some() {}
        }
        let rest = async { while under_way.join_next().await.is_some() {} };
        let late = timeout(play.patience, rest).await.is_err();
        under_way.shutdown().await;
        let mut tally = tally.take();
        if late {
            let counted = self.requests.iter().filter(|(it, _)| it.at >= play.ramp).count() as u64;
            tally.dropped += counted - tally.offered;
            tally.offered = counted;
        }
        Ok(tally)
    }
}

/// Sends the index of each request when it is due. This is a thread because a thread wakes within tens of microseconds,
/// and a timer of the runtime within milliseconds.
fn keep_time(start: Instant, times: &[Duration], tell: &UnboundedSender<usize>) {
    for (index, &at) in times.iter().enumerate() {
        thread::sleep((start + at).saturating_duration_since(Instant::now()));
        if tell.send(index).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::fire::on_this_thread;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// A server that takes so long for each request, one at a time, and answers with `status`.
    fn slow(time: Duration, status: &'static str, requests: usize) -> std::net::SocketAddr {
        use std::io::{Read, Write};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for _ in 0..requests {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = [0; 4096];
                let read = stream.read(&mut head).unwrap();
                assert!(String::from_utf8_lossy(&head[..read]).contains("x-request-deadline-ms: "));
                thread::sleep(time);
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n[]");
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    fn played(status: &'static str, count: u64, answered: usize) -> Tally {
        let address = slow(MS(30), status, answered);
        let arrival = |i| Arrival { at: MS(10 * i), tokens: 3 };
        let requests = (0..count).map(|i| (arrival(i), Bytes::from_static(b"{}"))).collect();
        let script = Script { requests, length: MS(10 * count) };
        let play = Play { promised: MS(50), is_told: true, ramp: MS(0), patience: MS(400) };
        on_this_thread(async { script.play(&Rc::new(Connections::to(address)?), play).await }).unwrap()
    }

    /// Ten requests, one every 10 ms, each of which takes 30 ms. The last one ends 300 ms after the beginning, which is
    /// 210 ms after its time.
    #[test]
    fn who_waits_for_others_is_late() {
        let tally = played("200 OK", 10, 10);
        let latency = tally.served.latency();
        assert_eq!((tally.offered, latency.count), (10, 10));
        assert!((105.0..250.0).contains(&latency.p50_ms), "30 ms, 50 ms, …, 210 ms: {latency:?}");
        assert!(latency.max_ms >= 205.0, "{latency:?}");
        assert!(tally.good <= 2, "{}", tally.good);
        assert_eq!(tally.offered_rate(), 100.0);
        let late = tally.late.latency();
        assert!(late.count == 10 && late.p50_ms < 30.0, "a slow server does not hold up who asks: {late:?}");
    }

    #[test]
    fn refusals_have_times_of_their_own_and_silence_is_a_drop() {
        let tally = played("429 Too Many Requests", 3, 3);
        assert_eq!((tally.refused.latency().count, tally.served.latency().count), (3, 0));
        let tally = played("200 OK", 4, 1);
        assert_eq!((tally.offered, tally.served.latency().count, tally.dropped), (4, 1, 3));
    }

    #[test]
    fn a_script_is_the_trace_in_bytes() {
        let model =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data/tiny-sentence");
        let texts = Texts::open(&model).unwrap();
        let trace = Trace::poisson(&(3..=9), 100.0, MS(500), 4);
        let script = Script::new(&trace, MS(500), &texts, 4);
        for (arrival, (sent, body)) in trace.arrivals().iter().zip(&script.requests) {
            let body: serde_json::Value = serde_json::from_slice(body).unwrap();
            let words = body["inputs"][0].as_str().unwrap().split(' ').count();
            assert_eq!((sent, arrival.tokens as usize), (arrival, words + 2));
        }
    }
}
