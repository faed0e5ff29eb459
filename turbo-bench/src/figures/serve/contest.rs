//! Servers under the same requests. Each round measures the capacity of each server, and then each load, in turns.

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

/// What was found for all servers under the same requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Contest {
    /// A description of the requests.
    pub arrivals: String,
    /// Milliseconds within which an answer is promised.
    pub promised_ms: f64,
    /// Number of clients while a capacity was measured.
    pub clients: usize,
    /// The servers; the first is the one that the others are compared with.
    pub standings: Vec<Standing>,
}

/// What was found for one server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Standing {
    /// Its name among the others.
    pub name: String,
    /// Requests per second that it answers when clients ask as soon as they have an answer: the median of the rounds.
    pub capacity: f64,
    /// The same, of each round.
    pub capacities: Vec<f64>,
    /// Tokens of those requests per second, of each round. Empty in a record that was measured in an earlier way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub token_capacities: Vec<f64>,
    /// What was found at each load.
    pub points: Vec<Point>,
}

/// What was found at one load, over all rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// The load, as a share of a capacity ([`Shares`] says of which).
    pub load: f64,
    /// The offered load as a share of this server's own capacity in the same round (ρ): the mean of the rounds.
    pub rho: f64,
    /// Seconds in which counted requests were sent.
    pub seconds: f64,
    /// Number of counted requests.
    pub offered: u64,
    /// Counted requests per second.
    pub offered_rate: f64,
    /// Requests answered per second.
    pub achieved_rate: f64,
    /// Requests answered within the promised time, per second.
    pub goodput: f64,
    /// The same, of each round.
    pub goodputs: Vec<f64>,
    /// Tokens per second of the requests in `goodput`.
    pub good_tokens: f64,
    /// The same, of each round. Empty in a record that was measured in an earlier way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub token_goodputs: Vec<f64>,
    /// Times of the answers, counted from when their requests should have been sent.
    pub served: Latency,
    /// Times of the refusals (429).
    pub refused: Latency,
    /// Requests whose answer was that their time was over (504).
    pub expired: u64,
    /// Requests with other statuses, by status.
    pub failed: BTreeMap<u16, u64>,
    /// Requests without an answer.
    pub dropped: u64,
    /// How late the generator sent the requests.
    pub late: Latency,
    /// Error of the server's predictions of its batches' times, as a share of these times. Each round gives the median
    /// of its last hundred batches; this is the median of the rounds. `None` for a server that predicts nothing.
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

/// Number of different requests with which a capacity is measured, over and over.
const BODIES: usize = 512;
/// The pause between two turns, in which the last server finishes its work.
const PAUSE: Duration = Duration::from_millis(100);

/// Measures all servers in so many rounds of turns. A round begins with the capacities, and its loads are shares of
/// them: a machine that is slower for some minutes is slower for both.
///
/// # Errors
/// When a server ends, or answers a request with anything but a result while its capacity is measured.
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

/// The capacity of a server in one round.
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

/// The least time to wait for the last answers of a turn, however short the turn is: a machine stands still for seconds
/// when others use it. The wait is four times the turn if that is longer, for a server that refuses nothing at twice
/// its capacity.
const PATIENCE: Duration = Duration::from_secs(20);

/// Measures one load at one server, in one round.
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

/// What was found at one load in one round.
struct Turn {
    tally: Tally,
    used: Used,
    cost_error: Option<f64>,
}

/// The metric for the error of predictions.
const COST_ERROR: &str = "turbo_batch_cost_error_median";

/// What was found for one server, round by round.
struct Findings {
    capacities: Vec<f64>,
    token_capacities: Vec<f64>,
    loads: Vec<Found>,
}

impl Findings {
    /// Nothing yet, for so many loads.
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

/// What was found at one load, round by round.
#[derive(Clone, Default)]
struct Found {
    all: Tally,
    goodputs: Vec<f64>,
    token_goodputs: Vec<f64>,
    /// Offered loads, as shares of the server's capacity in the same round.
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
    /// What was found for the server of this name.
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

    /// The load at which most tokens were answered in time. Requests would not do, since a server that refuses long
    /// texts answers more requests than it could of all lengths.
    #[must_use]
    pub fn best(&self) -> Option<&Point> {
        self.points.iter().max_by(|a, b| a.good_tokens.total_cmp(&b.good_tokens))
    }

    /// The tokens answered in time, as a share of the server's capacity in the same round.
    #[must_use]
    pub fn of_capacity(&self, load: f64) -> Option<Paired> {
        // At the lowest load no request is refused, so its requests are as long as those of a capacity.
        let of_requests = self.points.first().map_or(0.0, Point::mean_tokens);
        let capacities = in_tokens(&self.token_capacities, &self.capacities, of_requests);
        Paired::of(&self.at(load)?.tokens_of_rounds(), &capacities)
    }

    /// This server's goodput minus the other's under the same requests, as a share of the other's; rounds are pairs.
    /// `None` if there were fewer than two rounds, or the other answered nothing in time.
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
    /// Tokens answered in time per second, of each round.
    #[must_use]
    pub fn tokens_of_rounds(&self) -> Cow<'_, [f64]> {
        in_tokens(&self.token_goodputs, &self.goodputs, self.mean_tokens())
    }

    /// Mean tokens of a request that was answered in time.
    fn mean_tokens(&self) -> f64 {
        if self.goodput > 0.0 { self.good_tokens / self.goodput } else { 0.0 }
    }
}

/// Tokens of each round. Records that were measured in an earlier way have only the requests of each round; each
/// request then counts as the mean number of tokens over all rounds.
fn in_tokens<'a>(tokens: &'a [f64], requests: &[f64], mean_tokens: f64) -> Cow<'a, [f64]> {
    if !tokens.is_empty() {
        return tokens.into();
    }
    requests.iter().map(|requests| requests * mean_tokens).collect()
}

/// Tokens of the texts whose vectors are compared.
const COMPARED: [u32; 3] = [37, 11, 5];

/// The vectors of the compared texts, from one request.
pub(super) fn vectors(server: &Server, texts: &Texts) -> Result<Vec<Vec<f32>>> {
    let answer = on_this_thread(async {
        Connections::to(server.address())?.ask(texts.body(&COMPARED, 0), None).await
    })?;
    let said = || format!("{}: {}: {}", server.name(), answer.status, String::from_utf8_lossy(&answer.body));
    serde_json::from_slice(&answer.body).with_context(said)
}

/// Checks that a server computes the same as the first one.
///
/// # Errors
/// When it computes something else.
pub(super) fn agree(expected: &[Vec<f32>], server: &Server, texts: &Texts) -> Result<Agreement> {
    let bound = crate::figures::cpu::Precision::F32.least_cosine();
    agree::judge((server.name(), server.name()), expected, &vectors(server, texts)?, bound)
}
