//! What the whole server adds to the bare engine: tokenizing, queue, JSON, sockets, and the client on the same cores.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::Result;
use hyper::body::Bytes;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::Pace;
use crate::{
    figures::numbers::{quantile, rounded},
    fire::{
        Connections, Plain, Server, Texts,
        closed::{Clients, saturate},
        on_this_thread,
    },
    progress::Timeline,
    rival::Rival,
};

/// The server beside its bare engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostPath {
    /// Under load.
    pub rate: Rate,
    /// One request at a time.
    pub idle: Vec<Idle>,
}

/// Rates in texts per second.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rate {
    /// Texts of a request.
    pub texts: usize,
    /// Tokens of a text.
    pub tokens: u32,
    /// Clients that send requests to the server.
    pub clients: usize,
    /// Rates of the bare engine, by the number of texts in its batches: medians of rounds.
    pub engine: Vec<(usize, f64)>,
    /// Rate of the server.
    pub server: f64,
    /// The server's rate over the engine's best rate, of each round.
    pub shares: Vec<f64>,
    /// Share of the machine that the clients used meanwhile.
    pub client_cpu: f64,
}

/// One text at a time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Idle {
    /// Its tokens.
    pub tokens: u32,
    /// Median of the bare engine, ms.
    pub engine_ms: f64,
    /// Median of the server, from the first byte sent to the last one read, ms.
    pub server_ms: f64,
    /// Their difference in each round, ms.
    pub added_ms: Vec<f64>,
}

const TEXTS: usize = 32;
const TOKENS: u32 = 10;
/// Clients that keep the server busy: while one batch is computed, other requests are parsed and other answers written.
const CLIENTS: usize = 8;
/// Texts of the engine's batches: those of one request, and of several together, as a server may compute them.
const BATCHES: [usize; 4] = [TEXTS, 2 * TEXTS, 4 * TEXTS, 8 * TEXTS];
/// Runs of a turn.
const RUNS: usize = 40;
/// Single texts of a turn, sent one at a time.
const SINGLES: usize = 100;
/// The first of these, which do not count.
const WARM_UP: usize = 5;
/// Number of different requests.
const BODIES: u64 = 256;

/// Measures rate and idle times, in so many rounds of turns.
///
/// # Errors
/// When one of them ends.
pub(super) fn run(
    (engine, server): (&mut Rival, &Server),
    (texts, lens): (&Texts, &[u32]),
    pace: &Pace,
    rounds: usize,
    timeline: &mut Timeline,
) -> Result<HostPath> {
    let body = |seed: u64| (TOKENS * TEXTS as u32, texts.body(&[TOKENS; TEXTS], seed << 20));
    let asked: Vec<(u32, Bytes)> = (0..BODIES).map(body).collect();
    let cores = std::thread::available_parallelism()?.get() as f64;
    let mut engines: Vec<(usize, Vec<f64>)> = BATCHES.map(|batch| (batch, Vec::new())).to_vec();
    let (mut servers, mut shares, mut client_cpu) = (Vec::new(), Vec::new(), Vec::new());
    let nothing = |&tokens: &u32| Idle { tokens, engine_ms: 0.0, server_ms: 0.0, added_ms: Vec::new() };
    let mut idle: Vec<Idle> = lens.iter().map(nothing).collect();
    let mut times = vec![(Vec::new(), Vec::new()); lens.len()];
    for round in 0..rounds {
        for (batch, rates) in &mut engines {
            let ms = engine.time(&[vec![TOKENS; *batch]], 2, RUNS)?;
            rates.push(*batch as f64 / quantile(&ms[0], 0.5) * 1e3);
        }
        let clients = Clients { count: CLIENTS, ramp: pace.ramp, length: pace.capacity };
        let (begin, used) = (Instant::now(), cpu_time());
        let capacity = on_this_thread(async {
            saturate(&Rc::new(Connections::to(server.address())?), &asked, clients).await
        })?;
        client_cpu.push((cpu_time() - used).as_secs_f64() / begin.elapsed().as_secs_f64() / cores);
        let rate = capacity.requests * TEXTS as f64;
        servers.push(rate);
        let best = engines.iter().filter_map(|(_, rates)| rates.last().copied()).fold(0.0, f64::max);
        shares.push(rounded(rate / best));
        timeline.done(0.7 / rounds as f64);

        for ((idle, times), &tokens) in idle.iter_mut().zip(&mut times).zip(lens) {
            // Texts that no earlier round had.
            let seed = (u64::from(tokens) << 40) + ((round * SINGLES) as u64);
            let asked = (seed..).take(SINGLES).map(|seed| texts.body(&[tokens], seed)).collect::<Vec<_>>();
            let (of_engine, of_server) = side_by_side(engine, server, tokens, &asked)?;
            idle.added_ms.push(rounded(quantile(&of_server, 0.5) - quantile(&of_engine, 0.5)));
            times.0.extend(of_engine);
            times.1.extend(of_server);
        }
        timeline.done(0.3 / rounds as f64);
    }
    for (idle, (engine, server)) in idle.iter_mut().zip(&times) {
        (idle.engine_ms, idle.server_ms) = (rounded(quantile(engine, 0.5)), rounded(quantile(server, 0.5)));
    }
    let engine = engines.iter().map(|(batch, rates)| (*batch, rounded(quantile(rates, 0.5)))).collect();
    let server = rounded(quantile(&servers, 0.5));
    let client_cpu = rounded(quantile(&client_cpu, 0.5));
    let rate = Rate { texts: TEXTS, tokens: TOKENS, clients: CLIENTS, engine, server, shares, client_cpu };
    Ok(HostPath { rate, idle })
}

/// Milliseconds of the engine and of the server for a text of so many tokens, one request after the other. The two take
/// turns, so each finds its threads asleep and the caches full of the other's data, as a request to an idle server
/// does.
fn side_by_side(
    engine: &mut Rival,
    server: &Server,
    tokens: u32,
    asked: &[Bytes],
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut of_engine, mut of_server) = (Vec::new(), Vec::new());
    let mut client = Plain::to(server.address())?;
    for (turn, body) in asked.iter().enumerate() {
        let engine = engine.time(&[vec![tokens]], 0, 1)?.concat();
        let server = client.time(body)?.as_secs_f64() * 1e3;
        // The first ones meet what ran before.
        if turn >= WARM_UP {
            of_engine.extend(engine);
            of_server.push(server);
        }
    }
    Ok((of_engine, of_server))
}

/// The processor time of all threads of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Rate {
    /// The server's rate over the engine's best rate: the median of the rounds.
    #[must_use]
    pub fn share(&self) -> f64 {
        quantile(&self.shares, 0.5)
    }
}

impl Idle {
    /// What the server adds, ms: the median of the rounds.
    #[must_use]
    pub fn added(&self) -> f64 {
        quantile(&self.added_ms, 0.5)
    }
}
