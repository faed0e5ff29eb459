//! Servers under the same requests: first what each can do at most, then each load in turns, round after round.

use std::{collections::BTreeMap, rc::Rc, thread::sleep, time::Duration};

use anyhow::{Context, Result, bail};
use hyper::body::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Pace,
    regime::{Arrivals, LOADS, Shares},
};
use crate::{
    figures::{
        agree::{self, Agreement},
        numbers::{Interval, mean, quantile, rounded},
        order::order,
    },
    fire::{
        Connections, Latency, Script, Server, Tally, Texts,
        closed::{Clients, saturate},
        on_this_thread,
        open::Play,
    },
    load::{Ticks, Used},
    progress::Timeline,
};

/// What was found of all servers under the same requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Contest {
    /// The requests, in words.
    pub arrivals: String,
    /// Time for an answer, ms.
    pub promised_ms: f64,
    /// The servers, the one that the others are compared with first.
    pub standings: Vec<Standing>,
}

/// What was found of one server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Standing {
    /// What it is called among the others.
    pub name: String,
    /// Requests a second that it answers when as many clients as wanted ask: the median of the rounds.
    pub capacity: f64,
    /// The same, of each round.
    pub capacities: Vec<f64>,
    /// What became of each load.
    pub points: Vec<Point>,
}

/// What became of one load, in all rounds together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Share of the capacity that loads are shares of.
    pub load: f64,
    /// What was offered, as a share of this server's own capacity (ρ).
    pub rho: f64,
    /// Seconds in which requests were sent that count.
    pub seconds: f64,
    /// Those requests.
    pub offered: u64,
    /// A second.
    pub offered_rate: f64,
    /// Answered, a second.
    pub achieved_rate: f64,
    /// Answered within the time that was promised, a second.
    pub goodput: f64,
    /// The same, of each round.
    pub goodputs: Vec<f64>,
    /// Times of the answers, from when their requests should have been sent.
    pub served: Latency,
    /// Times of the refusals (429).
    pub refused: Latency,
    /// Told that their time was over (504).
    pub expired: u64,
    /// Other statuses.
    pub failed: BTreeMap<u16, u64>,
    /// Without an answer.
    pub dropped: u64,
    /// Share of the machine that neither this server nor the generator used.
    pub foreign_cpu: Option<f64>,
}

/// A server that takes part.
pub(super) struct Present {
    pub name: String,
    pub server: Server,
}

/// What they are asked, and how.
pub(super) struct Terms<'a> {
    pub arrivals: &'a Arrivals,
    pub promised: Duration,
    pub shares: Shares,
    pub texts: &'a Texts,
    pub pace: &'a Pace,
}

/// Requests that a capacity is measured with, over and over.
const BODIES: usize = 512;
/// Between two turns: what the last server still does comes to its end.
const PAUSE: Duration = Duration::from_millis(100);

/// Measures all of them, so many rounds of turns.
///
/// # Errors
/// When a server ends, or answers something else than an answer while its capacity is measured.
pub(super) fn run(
    present: &[Present],
    terms: &Terms<'_>,
    rounds: usize,
    timeline: &mut Timeline,
) -> Result<Contest> {
    let turns = (rounds * present.len() * (1 + LOADS.len())) as f64;
    let capacities = capacities(present, terms, rounds, || timeline.done(1.0 / turns))?;
    let medians: Vec<f64> = capacities.iter().map(|of_rounds| quantile(of_rounds, 0.5)).collect();
    let base = |who: usize| medians[if terms.shares == Shares::OfTheFirst { 0 } else { who }];

    let mut found = vec![vec![Found::default(); LOADS.len()]; present.len()];
    for round in 0..rounds {
        for (index, load) in LOADS.iter().enumerate() {
            for who in order(present.len(), round, index) {
                sleep(PAUSE);
                let turn = turn(&present[who], terms, load * base(who), round)?;
                found[who][index].add(turn);
                timeline.done(1.0 / turns);
            }
        }
    }
    let standings = present.iter().enumerate().map(|(who, Present { name, .. })| {
        let points = LOADS.iter().zip(&found[who]).map(|(&load, found)| found.point(load, medians[who]));
        Standing {
            name: name.clone(),
            capacity: rounded(medians[who]),
            capacities: capacities[who].iter().copied().map(rounded).collect(),
            points: points.collect(),
        }
    });
    Ok(Contest {
        arrivals: terms.arrivals.title(),
        promised_ms: terms.promised.as_secs_f64() * 1e3,
        standings: standings.collect(),
    })
}

/// Requests a second that each server answers at most, of each round.
fn capacities(
    present: &[Present],
    terms: &Terms<'_>,
    rounds: usize,
    mut done: impl FnMut(),
) -> Result<Vec<Vec<f64>>> {
    let lens = terms.arrivals.lens(BODIES);
    let bodies: Vec<Bytes> = (0..).zip(&lens).map(|(seed, &len)| terms.texts.body(&[len], seed)).collect();
    let Pace { clients, ramp, capacity: length, .. } = *terms.pace;
    let mut capacities = vec![Vec::new(); present.len()];
    for round in 0..rounds {
        for who in order(present.len(), round, LOADS.len()) {
            sleep(PAUSE);
            let server = &present[who].server;
            let rate = on_this_thread(async {
                let to = Rc::new(Connections::to(server.address())?);
                saturate(&to, &bodies, Clients { count: clients, ramp, length }).await
            });
            capacities[who].push(rate.with_context(|| format!("{}: its capacity", present[who].name))?);
            done();
        }
    }
    if let Some(who) = capacities.iter().position(|of_rounds| quantile(of_rounds, 0.5) <= 0.0) {
        bail!("{}: expected answers, got none in {length:?}", present[who].name);
    }
    Ok(capacities)
}

/// One load of one round at one server.
fn turn(present: &Present, terms: &Terms<'_>, rate: f64, round: usize) -> Result<(Tally, Used)> {
    let Pace { ramp, turn, .. } = *terms.pace;
    let length = ramp + turn;
    let trace = terms.arrivals.trace(rate, length, round as u64);
    let script = Script::new(&trace, length, terms.texts, round as u64);
    // Whoever refuses nothing works off twice what it can do.
    let play = Play { promised: terms.promised, ramp, patience: 4 * length };
    let ours = [present.server.process_id()];
    let start = Ticks::now(&ours);
    let tally = on_this_thread(async {
        let to = Rc::new(Connections::to(present.server.address())?);
        script.play(&to, play).await
    })?;
    let used = start.zip(Ticks::now(&ours)).map(|(start, end)| end.since(&start));
    Ok((tally, used.unwrap_or_default()))
}

/// What was found of one load, round after round.
#[derive(Clone, Default)]
struct Found {
    all: Tally,
    goodputs: Vec<f64>,
    used: Used,
}

impl Found {
    fn add(&mut self, (tally, used): (Tally, Used)) {
        self.goodputs.push(rounded(tally.goodput()));
        self.all.add(&tally);
        self.used += used;
    }

    fn point(&self, load: f64, capacity: f64) -> Point {
        let Self { all, goodputs, used } = self;
        Point {
            load,
            rho: rounded(all.offered_rate() / capacity),
            seconds: rounded(all.seconds),
            offered: all.offered,
            offered_rate: rounded(all.offered_rate()),
            achieved_rate: rounded(all.achieved_rate()),
            goodput: rounded(all.goodput()),
            goodputs: goodputs.clone(),
            served: all.served.latency(),
            refused: all.refused.latency(),
            expired: all.expired,
            failed: all.failed.clone(),
            dropped: all.dropped,
            foreign_cpu: used.share(),
        }
    }
}

impl Contest {
    /// What was found of the server of this name.
    #[must_use]
    pub fn standing(&self, name: &str) -> Option<&Standing> {
        self.standings.iter().find(|it| it.name == name)
    }
}

impl Standing {
    /// What was found at this load.
    #[must_use]
    pub fn at(&self, load: f64) -> Option<&Point> {
        self.points.iter().find(|point| point.load == load)
    }

    /// The most that was answered in time, at any load.
    #[must_use]
    pub fn best_goodput(&self) -> f64 {
        self.points.iter().map(|point| point.goodput).fold(0.0, f64::max)
    }

    /// What this one answered in time, less what the other did under the same requests, as a share of the other's:
    /// rounds are pairs. `None` where there were fewer than two.
    #[must_use]
    pub fn ahead_of(&self, other: &Self, load: f64) -> Option<Interval> {
        let (own, others) = (&self.at(load)?.goodputs, &other.at(load)?.goodputs);
        let scale = mean(others)?.max(f64::MIN_POSITIVE);
        let differences: Vec<f64> =
            own.iter().zip(others).map(|(own, other)| (own - other) / scale).collect();
        Interval::student(&differences)
    }
}

/// Texts whose vectors are compared.
const COMPARED: [u32; 3] = [37, 11, 5];

/// The vectors of three texts, in one request.
pub(super) fn vectors(server: &Server, texts: &Texts) -> Result<Vec<Vec<f32>>> {
    let answer = on_this_thread(async {
        Connections::to(server.address())?.ask(texts.body(&COMPARED, 0), None).await
    })?;
    let said = || format!("{}: {}: {}", server.name(), answer.status, String::from_utf8_lossy(&answer.body));
    serde_json::from_slice(&answer.body).with_context(said)
}

/// That a server computes what the first one does.
///
/// # Errors
/// When it computes something else.
pub(super) fn agree(expected: &[Vec<f32>], server: &Server, texts: &Texts) -> Result<Agreement> {
    let bound = crate::figures::cpu::Precision::F32.least_cosine();
    agree::judge((server.name(), server.name()), expected, &vectors(server, texts)?, bound)
}
