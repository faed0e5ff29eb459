//! The regimes, as data: each has a model and work to measure.

use std::{ops::RangeInclusive, time::Duration};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::fire::Trace;

/// A regime: a model and the work to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Regime {
    /// Its name for `--only`.
    pub name: &'static str,
    /// The model, by the name of its folder; weights are random.
    pub model: String,
    /// The work.
    pub work: Work,
}

/// What a regime measures.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Servers in turns under the same requests.
    Contest {
        /// The first is the one that the others are compared with.
        servers: Vec<Kind>,
        /// The requests that they get.
        arrivals: Arrivals,
        /// The time within which an answer is promised.
        promised: Duration,
        /// The capacity that loads are shares of.
        shares: Shares,
    },
    /// The whole server beside the bare engine: many texts of ten tokens, and single texts of these lengths.
    HostPath(Vec<u32>),
    /// Clients that a server has to survive.
    Endurance,
}

/// A server of a contest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// turbo.
    Turbo {
        /// The value of `--batching`.
        batching: String,
        /// The value of `--layout`.
        layout: String,
    },
    /// The paper's baseline: turbo that takes all that waits, pads it to the longest, and promises nothing.
    Paper,
    /// Another engine behind uvicorn, by the name that its script knows.
    Other(String),
}

impl Kind {
    /// Its name in a table, among the servers `among`.
    #[must_use]
    pub fn name(&self, among: &[Self]) -> String {
        let policies = |it: &Self| matches!(it, Self::Turbo { .. });
        match self {
            Self::Turbo { .. } if among.iter().filter(|it| policies(it)).count() < 2 => {
                super::TURBO.to_owned()
            }
            Self::Turbo { batching, .. } => batching.clone(),
            Self::Paper => PAPER.to_owned(),
            Self::Other(name) => name.clone(),
        }
    }
}

/// Name of [`Kind::Paper`].
pub(super) const PAPER: &str = "paper";

/// The requests that servers get.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// Drawn anew for each round: a Poisson process, with lengths uniform in this range.
    Poisson(RangeInclusive<usize>),
    /// Recorded, played at another rate, over and over; each round begins elsewhere.
    Recorded(Trace),
}

impl Arrivals {
    /// The requests of a round, at a rate per second, for so long.
    #[must_use]
    pub fn trace(&self, rate: f64, length: Duration, round: u64) -> Trace {
        match self {
            Self::Poisson(lens) => Trace::poisson(lens, rate, length, round),
            // Fractional parts of multiples of the golden ratio lie as far apart as possible, however many there are.
            Self::Recorded(trace) => trace.at_rate(rate, length, (round as f64 * 0.618_034).fract()),
        }
    }

    /// The lengths of the first `count` requests of a round.
    #[must_use]
    pub fn lens(&self, count: usize, round: u64) -> Vec<u32> {
        // At one request per second, `count` requests take about `count` seconds; a Poisson process has a few more or
        // fewer.
        let trace = self.trace(1.0, Duration::from_secs(2 * count as u64 + 60), round);
        trace.arrivals().iter().map(|it| it.tokens).take(count).collect()
    }

    /// A description.
    #[must_use]
    pub fn title(&self) -> String {
        match self {
            Self::Poisson(lens) => format!("Poisson, {} to {} tokens", lens.start(), lens.end()),
            Self::Recorded(trace) => {
                let lens = || trace.arrivals().iter().map(|it| it.tokens);
                let (least, most) = (lens().min().unwrap_or(0), lens().max().unwrap_or(0));
                format!("{} recorded requests of {least} to {most} tokens", trace.arrivals().len())
            }
        }
    }
}

/// The capacity that loads are shares of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shares {
    /// That of the first server: all get the same requests at the same times.
    OfTheFirst,
    /// Each server's own: all get the same requests, and fast servers get them at a higher rate.
    OfOwn,
}

impl Shares {
    /// The loads, as shares of that capacity.
    #[must_use]
    pub fn loads(self) -> &'static [f64] {
        match self {
            Self::OfTheFirst => &LOADS,
            Self::OfOwn => &CLOSE_LOADS,
        }
    }
}

/// Offered loads, as shares of a capacity.
pub const LOADS: [f64; 4] = [0.5, 0.8, 0.95, 2.0];
/// The same where the best load of each server is looked for. It lies near the capacity: beyond that a server that
/// refuses nothing answers everything late. But a capacity is that of a certain number of clients, and a server that
/// makes larger batches of longer queues has its best load above it.
const CLOSE_LOADS: [f64; 8] = [0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0];
/// Values of `--batching`; the first is the one that is compared with the others.
pub const POLICIES: [&str; 5] = ["dp", "naive", "none", "token-budget", "sorted-window"];
/// Other engines; see `peers/serve_peer.py`.
pub const OTHERS: [&str; 2] = ["ort", "ov"];

const SHORT: RangeInclusive<usize> = 2..=100;
const LONG: RangeInclusive<usize> = 5..=500;
/// Promised times for an answer: a few times the longest time of a batch, which is a tenth of a second, and twice that
/// where a single text is a large part of a batch.
pub(super) const SOON: Duration = Duration::from_millis(250);
pub(super) const LATER: Duration = Duration::from_millis(500);

/// Every regime, in the order in which they run.
///
/// # Errors
/// When the trace that comes with this crate cannot be read.
pub fn all() -> Result<Vec<Regime>> {
    let bursts = Arrivals::Recorded(Trace::parse(include_str!("../../../traces/bursts.csv"))?);
    let (short, long) = (Arrivals::Poisson(SHORT), Arrivals::Poisson(LONG));
    let contest = |servers, arrivals, promised| Work::Contest {
        servers,
        arrivals,
        promised,
        shares: Shares::OfTheFirst,
    };
    let policies = |layout: &str| POLICIES.map(|batching| turbo(batching, layout)).to_vec();
    let beside = |servers: &[Kind], arrivals, promised| Work::Contest {
        servers: [&[turbo("dp", "packed")], servers].concat(),
        arrivals,
        promised,
        shares: Shares::OfOwn,
    };
    let others = OTHERS.map(|it| Kind::Other(it.to_owned()));
    let minilm = |name, work| Regime { name, model: "minilm".to_owned(), work };
    Ok(vec![
        minilm("packed-short", contest(policies("packed"), short.clone(), SOON)),
        minilm("packed-long", contest(policies("packed"), long.clone(), LATER)),
        minilm("packed-bursts", contest(policies("packed"), bursts, LATER)),
        minilm("padded-short", contest(policies("padded"), short.clone(), SOON)),
        minilm("padded-long", contest(policies("padded"), long.clone(), LATER)),
        minilm("paper-long", beside(&[Kind::Paper], long.clone(), LATER)),
        minilm("others-short", beside(&others, short, SOON)),
        minilm("others-long", beside(&others, long, LATER)),
        minilm("host-path", Work::HostPath(vec![10, 40, 128])),
        minilm("endurance", Work::Endurance),
    ])
}

fn turbo(batching: &str, layout: &str) -> Kind {
    Kind::Turbo { batching: batching.to_owned(), layout: layout.to_owned() }
}

impl Regime {
    /// The words by which `--only` may select it: its model and its name.
    #[must_use]
    pub fn words(&self) -> [&str; 2] {
        [&self.model, self.name]
    }

    /// Its name in a progress line.
    #[must_use]
    pub fn title(&self) -> String {
        self.words().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_regimes_are_called_the_same_and_no_two_servers_of_one() {
        let all = all().unwrap();
        let mut titles: Vec<String> = all.iter().map(Regime::title).collect();
        titles.sort();
        titles.dedup();
        assert_eq!(titles.len(), all.len());
        for regime in &all {
            let Work::Contest { servers, .. } = &regime.work else { continue };
            let mut names: Vec<String> = servers.iter().map(|it| it.name(servers)).collect();
            assert!(["dp", "turbo"].contains(&names[0].as_str()), "{names:?}");
            names.sort();
            names.dedup();
            assert_eq!(names.len(), servers.len());
        }
    }

    #[test]
    fn lengths_are_those_of_the_requests() {
        let recorded = Trace::poisson(&(5..=500), 30.0, Duration::from_secs(30), 9);
        for arrivals in [Arrivals::Poisson(5..=500), Arrivals::Recorded(recorded)] {
            let of = |round| {
                let trace = arrivals.trace(20.0, Duration::from_secs(10), round);
                let lens = arrivals.lens(300, round);
                assert_eq!(lens.len(), 300);
                assert!(trace.arrivals().iter().map(|it| it.tokens).zip(&lens).all(|(a, &b)| a == b));
                (trace, lens)
            };
            let [first, second, third] = [0, 1, 2].map(of);
            assert!(
                first != second && second != third && first != third,
                "each round has requests of its own"
            );
        }
    }

    #[test]
    fn a_turbo_among_others_is_called_so_and_policies_by_their_names() {
        let policies = [turbo("dp", "packed"), turbo("naive", "packed")];
        assert_eq!(policies.each_ref().map(|it| it.name(&policies)), ["dp", "naive"]);
        let alone = [turbo("dp", "packed"), Kind::Paper, Kind::Other("ort".to_owned())];
        assert_eq!(alone.each_ref().map(|it| it.name(&alone)), ["turbo", "paper", "ort"]);
    }
}
