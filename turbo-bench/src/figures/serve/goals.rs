//! What is wanted of each regime, and whether it was found.

use std::time::Duration;

use super::{
    Report, Rows, Section, TURBO,
    contest::{Contest, Point, Standing},
    host_path::HostPath,
    regime::{LATER, LOADS, POLICIES, SOON},
};
use crate::{
    figures::verdict::{Kind, Verdict},
    siege::{Trial, memory::MAY_GROW},
};

/// The model that goals are set for.
const MODEL: &str = "minilm";
/// The load that no server keeps up with.
const OVERLOAD: f64 = LOADS[LOADS.len() - 1];
/// The policy that is compared with the others, and the simplest of those.
const DP: &str = POLICIES[0];
const NAIVE: &str = POLICIES[1];
/// Traces of the packed layout.
pub(super) const TRACES: [&str; 3] = ["packed-short", "packed-long", "packed-bursts"];

/// All of them, in the order of the regimes.
#[must_use]
pub fn verdicts(report: &Report) -> Vec<Verdict> {
    let contest = |name: &str| contest(report, name);
    let mut all: Vec<Verdict> = TRACES.into_iter().flat_map(|name| policies(name, contest(name))).collect();
    for (name, promised) in [("packed-short", SOON), ("packed-long", LATER)] {
        all.extend(overload(name, promised, contest(name)));
    }
    for (name, wanted) in [("padded-short", 1.15), ("padded-long", 1.3)] {
        all.push(verdict(name, "times naive's capacity", Kind::Ratio, wanted, contest(name).and_then(peak)));
    }
    let both = contest("packed-long").zip(contest("padded-long"));
    let found = both.and_then(|(packed, padded)| {
        Some(packed.standing(DP)?.best_goodput() / padded.standing(NAIVE)?.best_goodput())
    });
    all.push(verdict("packed-long", "times the best goodput of naive, padded", Kind::Ratio, 1.8, found));
    for name in ["others-short", "others-long"] {
        let found = contest(name).and_then(beside_others);
        all.push(verdict(name, "times the best goodput of the best other", Kind::Ratio, 1.5, found));
    }
    all.extend(host_path(section(report, "host-path")));
    all.extend(endurance(section(report, "endurance")));
    all
}

/// The section of a regime.
pub(super) fn section<'a>(report: &'a Report, name: &str) -> Option<&'a Section> {
    let of_name = |model: &str| report.rows.iter().find(|it| it.name == name && it.model == model);
    of_name(MODEL).or_else(|| report.rows.iter().find(|it| it.name == name))
}

/// What a regime found of servers beside each other.
pub(super) fn contest<'a>(report: &'a Report, name: &str) -> Option<&'a Contest> {
    match &section(report, name)?.rows {
        Rows::Contest(contest) => Some(contest),
        _ => None,
    }
}

fn verdict(regime: &str, what: &'static str, kind: Kind, wanted: f64, found: Option<f64>) -> Verdict {
    Verdict { regime: regime.to_owned(), what, kind, wanted, found }
}

/// `dp` is the best, or what it lacks is within the interval of the pairs: at no load any other is ahead for sure.
fn policies(name: &str, contest: Option<&Contest>) -> Vec<Verdict> {
    let found = contest.and_then(|contest| {
        let dp = contest.standing(DP)?;
        let others = contest.standings.iter().filter(|it| it.name != DP);
        let pairs =
            others.flat_map(|other| dp.points.iter().map(move |point| dp.ahead_of(other, point.load)));
        let intervals: Option<Vec<_>> = pairs.collect();
        Some(intervals?.iter().filter(|it| it.is_negative()).count() as f64)
    });
    vec![verdict(name, "loads at which another policy's goodput is ahead for sure", Kind::Count, 0.0, found)]
}

/// What happens at twice the capacity.
fn overload(name: &str, promised: Duration, contest: Option<&Contest>) -> Vec<Verdict> {
    let dp = contest.and_then(|it| it.standing(DP));
    let of = |value: fn(&Standing, &Point) -> f64| dp.and_then(|dp| Some(value(dp, dp.at(OVERLOAD)?)));
    let refused = |value: fn(&Point) -> f64| {
        let point = dp.and_then(|dp| dp.at(OVERLOAD));
        point.filter(|point| point.refused.count > 0).map(value)
    };
    let promised = promised.as_secs_f64() * 1e3;
    let one = |what, kind, wanted, found| {
        verdict(&format!("{name}, twice the capacity"), what, kind, wanted, found)
    };
    vec![
        one("of the capacity in goodput", Kind::Share, 0.95, of(|dp, point| point.goodput / dp.capacity)),
        one("p99 of the served", Kind::Millis, promised, of(|_, point| point.served.p99_ms)),
        one("median of a refusal", Kind::Millis, 5.0, refused(|point| point.refused.p50_ms)),
        one("p99 of a refusal", Kind::Millis, 25.0, refused(|point| point.refused.p99_ms)),
    ]
}

/// Capacity of `dp` over that of `naive`.
fn peak(contest: &Contest) -> Option<f64> {
    Some(contest.standing(DP)?.capacity / contest.standing(NAIVE)?.capacity)
}

/// turbo's best goodput over the best of the others'.
pub(super) fn beside_others(contest: &Contest) -> Option<f64> {
    let others = contest.standings.iter().filter(|it| it.name != TURBO);
    let best = others.map(Standing::best_goodput).reduce(f64::max)?;
    Some(contest.standing(TURBO)?.best_goodput() / best)
}

fn host_path(section: Option<&Section>) -> Vec<Verdict> {
    let found = section.and_then(|section| match &section.rows {
        Rows::HostPath(found) => Some(found),
        _ => None,
    });
    let added = |found: &HostPath| found.idle.iter().map(|it| it.added() * 1e3).reduce(f64::max);
    vec![
        verdict(
            "host-path, 32 texts of 10 tokens",
            "of the bare engine's rate at its best",
            Kind::Share,
            0.85,
            found.map(|found| found.rate.share()),
        ),
        verdict(
            "host-path, one text, idle",
            "more than the bare engine takes, at the worst length",
            Kind::Micros,
            300.0,
            found.and_then(added),
        ),
    ]
}

fn endurance(section: Option<&Section>) -> Vec<Verdict> {
    let trials: Option<&[Trial]> = section.and_then(|section| match &section.rows {
        Rows::Endurance(trials) => Some(&trials[..]),
        _ => None,
    });
    let broken = trials.map(|trials| trials.iter().map(|it| it.broken.len()).sum::<usize>() as f64);
    let grown = trials.and_then(|trials| trials.iter().find_map(|it| it.grown_mb));
    vec![
        verdict("endurance", "promises that were broken", Kind::Count, 0.0, broken),
        verdict("endurance, 10,000 mixed requests", "growth", Kind::MegaBytes, MAY_GROW / 1e6, grown),
    ]
}
