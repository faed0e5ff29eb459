//! Servers under the same requests: in each round what each can do at most, then each load in turns.

use std::{borrow::Cow, collections::BTreeMap, rc::Rc, thread::sleep, time::Duration};

use anyhow::{Context, Result};
use hyper::body::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Pace,
    paired::Paired,
    regime::{Arrivals, Shares},
};
use crate::{
    figures::{
        agree::{self, Agreement},
        numbers::{Interval, mean, quantile, rounded},
        order::order,
    },
    fire::{
        Connections, Latency, Script, Server, Tally, Texts,
        closed::{Capacity, Clients, saturate},
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
    /// Clients while a capacity was measured.
    pub clients: usize,
    /// The servers, the one that the others are compared with first.
    pub standings: Vec<Standing>,
}

/// What was found of one server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Standing {
    /// What it is called among the others.
    pub name: String,
    /// Requests a second that it answers when clients ask as soon as they have an answer: the median of the rounds.
    pub capacity: f64,
    /// The same, of each round.
    pub capacities: Vec<f64>,
    /// Tokens of those, a second, of each round; of none in a record that was measured in an earlier way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub token_capacities: Vec<f64>,
    /// What became of each load.
    pub points: Vec<Point>,
}

/// What became of one load, in all rounds together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Share of the capacity that loads are shares of.
    pub load: f64,
    /// What was offered, as a share of this server's own capacity in the same round (ρ): the mean of the rounds.
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
    /// Tokens of those, a second.
    pub good_tokens: f64,
    /// The same, of each round; of none in a record that was measured in an earlier way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub token_goodputs: Vec<f64>,
    /// Times of the answers, from when their requests should have been sent.
    pub served: Latency,
    /// Times of the refusals (429).
    pub refused: Latency,
    /// Answered that their time was over (504).
    pub expired: u64,
    /// Other statuses.
    pub failed: BTreeMap<u16, u64>,
    /// Without an answer.
    pub dropped: u64,
    /// How late the generator was to send the requests.
    pub late: Latency,
    /// How far the server's predictions of its batches were off, in parts of what they took: the median of the last
    /// hundred batches of each round, of which this is the median; `None` of a server that predicts nothing.
    pub cost_error: Option<f64>,
    /// Share of the machine that neither this server nor the generator used.
    pub foreign_cpu: Option<f64>,
}

/// A server that takes part.
pub(super) struct Present {
    pub name: String,
    pub server: Server,
    /// Whether requests say how long a client still waits.
    pub is_told: bool,
}

/// The requests that all servers get.
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

/// Measures all of them, so many rounds of turns. A round begins with what each can do, and its loads are shares of that:
/// a machine that is slower for some minutes is so for both.
///
/// # Errors
/// When a server ends, or answers something else than an answer while its capacity is measured.
pub(super) fn run(
    present: &[Present],
    terms: &Terms<'_>,
    rounds: usize,
    timeline: &mut Timeline,
) -> Result<Contest> {
    let loads = terms.shares.loads();
    let turns = (rounds * present.len() * (1 + loads.len())) as f64;
    let mut found: Vec<Findings> = present.iter().map(|_| Findings::new(loads.len())).collect();
    for round in 0..rounds {
        let mut capacities = vec![0.0; present.len()];
        for who in order(present.len(), round, loads.len()) {
            let Capacity { requests, tokens } = capacity(&present[who], terms, round)?;
            capacities[who] = requests;
            found[who].capacities.push(rounded(requests));
            found[who].token_capacities.push(rounded(tokens));
            timeline.done(1.0 / turns);
        }
        let base = |who: usize| capacities[if terms.shares == Shares::OfTheFirst { 0 } else { who }];
        for (index, load) in loads.iter().enumerate() {
            for who in order(present.len(), round, index) {
                let turn = turn(&present[who], terms, load * base(who), round)?;
                found[who].loads[index].add(turn, capacities[who]);
                timeline.done(1.0 / turns);
            }
        }
    }
    let standings = present.iter().zip(found).map(|(present, found)| found.standing(present, loads));
    Ok(Contest {
        arrivals: terms.arrivals.title(),
        promised_ms: terms.promised.as_secs_f64() * 1e3,
        clients: terms.pace.clients,
        standings: standings.collect(),
    })
}

/// What a server answers a second at most, in one round.
fn capacity(present: &Present, terms: &Terms<'_>, round: usize) -> Result<Capacity> {
    let lens = terms.arrivals.lens(BODIES, round as u64);
    let seeds = (round as u64) << 20..;
    let body = |(seed, &len): (u64, &u32)| (len, terms.texts.body(&[len], seed));
    let bodies: Vec<(u32, Bytes)> = seeds.zip(&lens).map(body).collect();
    let Pace { clients, ramp, capacity: length, .. } = *terms.pace;
    sleep(PAUSE);
    let found = on_this_thread(async {
        let to = Rc::new(Connections::to(present.server.address())?);
        saturate(&to, &bodies, Clients { count: clients, ramp, length }).await
    });
    found.with_context(|| format!("{}: its capacity", present.name))
}

/// How long the last answers of a turn are waited for at least, however short it is: a machine stands still for seconds
/// when others have it. Four times the turn is for a server that refuses nothing at twice its capacity.
const PATIENCE: Duration = Duration::from_secs(20);

/// One load of one round at one server.
fn turn(present: &Present, terms: &Terms<'_>, rate: f64, round: usize) -> Result<Turn> {
    sleep(PAUSE);
    let Pace { ramp, turn, .. } = *terms.pace;
    let length = ramp + turn;
    let trace = terms.arrivals.trace(rate, length, round as u64);
    let script = Script::new(&trace, length, terms.texts, round as u64);
    let patience = PATIENCE.max(4 * length);
    let play = Play { promised: terms.promised, is_told: present.is_told, ramp, patience };
    let ours = [present.server.process_id()];
    let start = Ticks::now(&ours);
    let (tally, used, cost_error) = on_this_thread(async {
        let to = Rc::new(Connections::to(present.server.address())?);
        let tally = script.play(&to, play).await?;
        let used = start.zip(Ticks::now(&ours)).map(|(start, end)| end.since(&start));
        Ok((tally, used.unwrap_or_default(), to.gauge(COST_ERROR).await?))
    })?;
    Ok(Turn { tally, used, cost_error })
}

/// What became of one load of one round.
struct Turn {
    tally: Tally,
    used: Used,
    cost_error: Option<f64>,
}

/// The metric that tells how far predictions are off.
const COST_ERROR: &str = "turbo_batch_cost_error_median";

/// What was found of one server, round after round.
struct Findings {
    capacities: Vec<f64>,
    token_capacities: Vec<f64>,
    loads: Vec<Found>,
}

impl Findings {
    /// Nothing yet, of so many loads.
    fn new(loads: usize) -> Self {
        let (capacities, token_capacities) = (Vec::new(), Vec::new());
        Self { capacities, token_capacities, loads: vec![Found::default(); loads] }
    }

    fn standing(self, present: &Present, loads: &[f64]) -> Standing {
        Standing {
            name: present.name.clone(),
            capacity: rounded(quantile(&self.capacities, 0.5)),
            points: loads.iter().zip(&self.loads).map(|(&load, found)| found.point(load)).collect(),
            capacities: self.capacities,
            token_capacities: self.token_capacities,
        }
    }
}

/// What was found of one load, round after round.
#[derive(Clone, Default)]
struct Found {
    all: Tally,
    goodputs: Vec<f64>,
    token_goodputs: Vec<f64>,
    /// What was offered, as shares of what the server could do in the same round.
    rhos: Vec<f64>,
    used: Used,
    cost_errors: Vec<f64>,
}

impl Found {
    fn add(&mut self, Turn { tally, used, cost_error }: Turn, capacity: f64) {
        self.goodputs.push(rounded(tally.goodput()));
        self.token_goodputs.push(rounded(tally.token_goodput()));
        self.rhos.push(tally.offered_rate() / capacity);
        self.all.add(&tally);
        self.used += used;
        self.cost_errors.extend(cost_error);
    }

    fn point(&self, load: f64) -> Point {
        let Self { all, goodputs, token_goodputs, rhos, used, cost_errors } = self;
        Point {
            load,
            rho: mean(rhos).unwrap_or_default(),
            seconds: rounded(all.seconds),
            offered: all.offered,
            offered_rate: rounded(all.offered_rate()),
            achieved_rate: rounded(all.achieved_rate()),
            goodput: rounded(all.goodput()),
            goodputs: goodputs.clone(),
            good_tokens: rounded(all.token_goodput()),
            token_goodputs: token_goodputs.clone(),
            served: all.served.latency(),
            refused: all.refused.latency(),
            expired: all.expired,
            failed: all.failed.clone(),
            dropped: all.dropped,
            late: all.late.latency(),
            cost_error: (!cost_errors.is_empty()).then(|| rounded(quantile(cost_errors, 0.5))),
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

    /// The load at which most was answered in time, in tokens: a server that refuses long texts answers more requests
    /// than it could of all lengths.
    #[must_use]
    pub fn best(&self) -> Option<&Point> {
        self.points.iter().max_by(|a, b| a.good_tokens.total_cmp(&b.good_tokens))
    }

    /// What was answered in time, as a share of what it could do in the same round, in tokens.
    #[must_use]
    pub fn of_capacity(&self, load: f64) -> Option<Paired> {
        // At the least load no request is refused: its requests are as long as those of a capacity.
        let of_requests = self.points.first().map_or(0.0, Point::mean_tokens);
        let capacities = in_tokens(&self.token_capacities, &self.capacities, of_requests);
        Paired::of(&self.at(load)?.tokens_of_rounds(), &capacities)
    }

    /// What this one answered in time, less what the other did under the same requests, as a share of the other's:
    /// rounds are pairs. `None` where there were fewer than two, or the other answered nothing in time.
    #[must_use]
    pub fn ahead_of(&self, other: &Self, load: f64) -> Option<Interval> {
        let (own, others) = (&self.at(load)?.goodputs, &other.at(load)?.goodputs);
        let scale = mean(others).filter(|mean| *mean > 0.0)?;
        let differences: Vec<f64> =
            own.iter().zip(others).map(|(own, other)| (own - other) / scale).collect();
        Interval::student(&differences)
    }
}

impl Point {
    /// Tokens that were answered in time, a second, of each round.
    #[must_use]
    pub fn tokens_of_rounds(&self) -> Cow<'_, [f64]> {
        in_tokens(&self.token_goodputs, &self.goodputs, self.mean_tokens())
    }

    /// Of a request that was answered in time.
    fn mean_tokens(&self) -> f64 {
        if self.goodput > 0.0 { self.good_tokens / self.goodput } else { 0.0 }
    }
}

/// Tokens of each round. Records that were measured in an earlier way have requests of each round alone: these count as
/// many tokens as in the mean of all rounds.
fn in_tokens<'a>(tokens: &'a [f64], requests: &[f64], mean_tokens: f64) -> Cow<'a, [f64]> {
    if !tokens.is_empty() {
        return tokens.into();
    }
    requests.iter().map(|requests| requests * mean_tokens).collect()
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
