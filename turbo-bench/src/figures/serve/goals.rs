//! The goals of each regime, and whether they were reached.

use std::time::Duration;

use super::{
    Report, Rows, Section, TURBO,
    contest::{Contest, Point, Standing},
    paired::{Paired, known},
    regime::{LATER, LOADS, OTHERS, PAPER, POLICIES, SOON},
};
use crate::{
    figures::{
        numbers::Interval,
        verdict::{Kind, Verdict},
    },
    siege::{Trial, memory::MAY_GROW},
};

/// The model that goals are set for.
const MODEL: &str = "minilm";
/// The load that no server can keep up with.
const OVERLOAD: f64 = LOADS[LOADS.len() - 1];
/// The policy that is compared with the others, and the simplest of the others.
const DP: &str = POLICIES[0];
const NAIVE: &str = POLICIES[1];
/// The largest half-width of an interval for a verdict on which policy is ahead, as a share of the goodput. Where two
/// policies may be further apart, there is no verdict.
const SURE: f64 = 0.05;
/// Suffix of the name of a goal that the rounds do not decide.
pub(super) const NOT_SURE: &str = "not sure";
/// Traces of the packed layout.
pub(super) const TRACES: [&str; 3] = ["packed-short", "packed-long", "packed-bursts"];

/// All verdicts, in the order of the regimes.
#[must_use]
pub fn verdicts(report: &Report) -> Vec<Verdict> {
    let contest = |name: &str| contest(report, name);
    let mut all: Vec<Verdict> = TRACES.into_iter().map(|name| policies(name, contest(name))).collect();
    for (name, promised) in [("packed-short", SOON), ("packed-long", LATER)] {
        all.extend(overload(name, promised, contest(name)));
    }
    for (name, wanted) in [("padded-short", 1.15), ("padded-long", 1.3)] {
        all.push(ratio(name, "times naive's capacity", wanted, contest(name).and_then(peak)));
    }
    let found = contest("paper-long").and_then(|it| best(it.standing(TURBO)?, it.standing(PAPER)?));
    all.push(ratio("paper-long", "times the best goodput of the paper's naive, in tokens", 1.8, found));
    for name in ["others-short", "others-long"] {
        let found = contest(name).and_then(beside_others);
        all.push(ratio(name, "times the best goodput of the best other, in tokens", 1.5, found));
    }
    all.push(lost(report));
    all.push(cost_error(report));
    all.extend(host_path(section(report, "host-path")));
    all.extend(endurance(section(report, "endurance")));
    all
}

/// The section of a regime.
pub(super) fn section<'a>(report: &'a Report, name: &str) -> Option<&'a Section> {
    let of_name = |model: &str| report.rows.iter().find(|it| it.name == name && it.model == model);
    of_name(MODEL).or_else(|| report.rows.iter().find(|it| it.name == name))
}

/// The contest that a regime measured.
pub(super) fn contest<'a>(report: &'a Report, name: &str) -> Option<&'a Contest> {
    match &section(report, name)?.rows {
        Rows::Contest(contest) => Some(contest),
        _ => None,
    }
}

fn verdict(regime: &str, what: &'static str, kind: Kind, wanted: f64, found: Option<f64>) -> Verdict {
    Verdict { regime: regime.to_owned(), what, kind, wanted, found }
}

/// A verdict on a ratio of numbers of the same rounds. How well the ratio is known stands beside the regime. If the
/// goal lies within the ratio's interval, or the ratio has none, there is no verdict.
fn paired(regime: &str, what: &'static str, kind: Kind, wanted: f64, found: Option<Paired>) -> Verdict {
    let Some(found) = found else { return verdict(regime, what, kind, wanted, None) };
    let regime = format!("{regime}{}", found.known(kind));
    if found.tells(wanted) {
        return verdict(&regime, what, kind, wanted, Some(found.mean));
    }
    let regime = format!("{regime}: {}, {NOT_SURE}", kind.show(found.mean));
    verdict(&regime, what, kind, wanted, None)
}

fn ratio(regime: &str, what: &'static str, wanted: f64, found: Option<Paired>) -> Verdict {
    paired(regime, what, Kind::Ratio, wanted, found)
}

/// Counts the loads at which another policy is ahead of `dp` for sure, that is, by more than the interval of the pairs.
/// There is no verdict if `dp` might be behind by more than [`SURE`] without that being seen.
fn policies(name: &str, contest: Option<&Contest>) -> Verdict {
    let one = |regime: &str, found| {
        let what = "loads at which another policy's goodput is ahead for sure";
        verdict(regime, what, Kind::Count, 0.0, found)
    };
    let Some((rounds, pairs)) = contest.and_then(pairs) else { return one(name, None) };
    let ahead = pairs.iter().filter(|pair| pair.is_negative()).count();
    // If dp is ahead for sure, it does not matter by how much.
    let undecided = pairs.iter().filter(|pair| !pair.is_negative() && pair.mean - pair.half <= 0.0);
    let widest = undecided.map(|pair| pair.half).fold(0.0, f64::max);
    let is_sure = ahead > 0 || widest <= SURE;
    let regime = format!("{name}{}", known(rounds, Some(widest), Kind::Share));
    let regime = if is_sure { regime } else { format!("{regime}: {NOT_SURE}") };
    one(&regime, is_sure.then_some(ahead as f64))
}

/// The number of rounds, and the lead of `dp` over every other policy, at every load at which that one answered
/// anything in time.
fn pairs(contest: &Contest) -> Option<(usize, Vec<Interval>)> {
    let dp = contest.standing(DP)?;
    let others = POLICIES[1..].iter().filter_map(|name| contest.standing(name));
    let pairs = others.flat_map(|other| {
        let points = other.points.iter().filter(|point| point.goodput > 0.0);
        points.map(move |point| dp.ahead_of(other, point.load))
    });
    let pairs: Vec<Interval> = pairs.collect::<Option<_>>()?;
    (!pairs.is_empty()).then_some((dp.capacities.len(), pairs))
}

/// The goals at twice the capacity.
fn overload(name: &str, promised: Duration, contest: Option<&Contest>) -> Vec<Verdict> {
    let name = format!("{name}, twice the capacity");
    let dp = contest.and_then(|it| it.standing(DP));
    let at = dp.and_then(|dp| dp.at(OVERLOAD));
    let refused = at.filter(|point| point.refused.count > 0).map(|point| &point.refused);
    let served = at.filter(|point| point.served.count > 0).map(|point| &point.served);
    let share = dp.and_then(|dp| dp.of_capacity(OVERLOAD));
    let millis = |what, wanted, found| verdict(&name, what, Kind::Millis, wanted, found);
    vec![
        paired(&name, "of the capacity in goodput, in tokens", Kind::Share, 0.95, share),
        millis("p99 of the served", promised.as_secs_f64() * 1e3, served.map(|it| it.p99_ms)),
        millis("median of a refusal", 5.0, refused.map(|it| it.p50_ms)),
        millis("p99 of a refusal", 25.0, refused.map(|it| it.p99_ms)),
    ]
}

/// The capacity of `dp` over that of `naive`.
fn peak(contest: &Contest) -> Option<Paired> {
    Paired::of(&contest.standing(DP)?.capacities, &contest.standing(NAIVE)?.capacities)
}

/// The best goodput of one over that of another, each at its best load, in tokens.
fn best(one: &Standing, other: &Standing) -> Option<Paired> {
    Paired::of(&one.best()?.tokens_of_rounds(), &other.best()?.tokens_of_rounds())
}

/// turbo's best goodput over the best one of the others.
fn beside_others(contest: &Contest) -> Option<Paired> {
    let turbo = contest.standing(TURBO)?;
    let of_best = |it: &&Standing| it.best().map_or(0.0, |point| point.good_tokens);
    let others = contest.standings.iter().filter(|it| it.name != TURBO);
    best(turbo, others.max_by(|a, b| of_best(a).total_cmp(&of_best(b)))?)
}

/// Counts the requests to turbo that got neither a result nor a 429 or 504, over all contests.
fn lost(report: &Report) -> Verdict {
    let contests = report.rows.iter().filter_map(|section| match &section.rows {
        Rows::Contest(contest) => Some(contest),
        _ => None,
    });
    let ours = contests.flat_map(|it| &it.standings).filter(|it| !OTHERS.contains(&it.name.as_str()));
    let lost = |point: &Point| point.failed.values().sum::<u64>() + point.dropped;
    let found = ours.map(|it| it.points.iter().map(lost).sum::<u64>() as f64).reduce(|a, b| a + b);
    verdict("all contests", "requests that failed or got no answer", Kind::Count, 0.0, found)
}

/// The error of predictions of turbo with its defaults (`dp`, packed), at the load at which they were worst.
fn cost_error(report: &Report) -> Verdict {
    let names = TRACES.into_iter().chain(["paper-long", "others-short", "others-long"]);
    let ours = names
        .filter_map(|name| contest(report, name))
        .filter_map(|it| it.standing(DP).or_else(|| it.standing(TURBO)));
    let found = ours.flat_map(|it| &it.points).filter_map(|point| point.cost_error).reduce(f64::max);
    let what = "median error of a batch's predicted cost, at the worst load";
    verdict("all contests, dp, packed", what, Kind::Cost, 0.15, found)
}

fn host_path(section: Option<&Section>) -> Vec<Verdict> {
    let found = section.and_then(|section| match &section.rows {
        Rows::HostPath(found) => Some(found),
        _ => None,
    });
    let added = |is_meant: fn(u32) -> bool| {
        let meant = found?.idle.iter().filter(|it| is_meant(it.tokens));
        meant.map(|it| it.added() * 1e3).reduce(f64::max)
    };
    vec![
        verdict(
            "host-path, 32 texts of 10 tokens",
            "of the bare engine's rate at its best",
            Kind::Share,
            0.85,
            found.map(|found| found.rate.share()),
        ),
        verdict(
            "host-path, one text of 10 tokens, idle",
            "more than the bare engine takes",
            Kind::Micros,
            300.0,
            added(|tokens| tokens == 10),
        ),
        verdict(
            "host-path, one longer text, idle",
            "more than the bare engine takes, at the worst length",
            Kind::Micros,
            300.0,
            added(|tokens| tokens > 10),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        figures::serve::{page::page, report},
        fire::Latency,
    };

    /// A point whose requests have ten tokens.
    fn point(load: f64, goodputs: &[f64]) -> Point {
        let latency = Latency::default;
        let goodput = goodputs.iter().sum::<f64>() / goodputs.len() as f64;
        Point {
            load,
            rho: load,
            seconds: 1.0,
            offered: 100,
            offered_rate: 100.0,
            achieved_rate: 0.0,
            goodput,
            goodputs: goodputs.to_vec(),
            good_tokens: 10.0 * goodput,
            token_goodputs: goodputs.iter().map(|goodput| 10.0 * goodput).collect(),
            served: latency(),
            refused: latency(),
            expired: 0,
            failed: [].into(),
            dropped: 0,
            late: latency(),
            cost_error: None,
            foreign_cpu: None,
        }
    }

    /// Servers by name, with a capacity of 100 in each round, and their goodputs at a load.
    fn met(load: f64, servers: &[(&str, &[f64])]) -> Contest {
        let standings = servers.iter().map(|(name, goodputs)| Standing {
            name: (*name).to_owned(),
            capacity: 100.0,
            capacities: vec![100.0; 3],
            token_capacities: vec![1000.0; 3],
            points: vec![point(load, goodputs)],
        });
        let (arrivals, standings) = (String::new(), standings.collect());
        Contest { arrivals, promised_ms: 250.0, clients: 64, standings }
    }

    #[test]
    fn the_best_policy_is_told_where_it_can_be_told() {
        let judged = |dp: &[f64], naive: &[f64]| {
            let contest = met(OVERLOAD, &[(DP, dp), (NAIVE, naive)]);
            let verdict = policies("here", Some(&contest));
            (verdict.reached(), verdict.regime)
        };
        for (dp, naive, expected, known) in [
            ([100.0, 101.0, 102.0], [100.0, 101.0, 102.0], Some(true), "here (3 rounds, ± 0.0 %)"),
            ([100.0, 101.0, 102.0], [100.0, 102.0, 102.0], Some(true), "here (3 rounds, ± 1.4 %)"),
            ([100.0, 101.0, 102.0], [110.0, 111.0, 112.0], Some(false), "here (3 rounds, ± 0.0 %)"),
            // dp may be 9 % behind or 14 % ahead.
            ([100.0, 101.0, 110.0], [100.0, 101.0, 102.0], None, "here (3 rounds, ± 11.4 %): not sure"),
            // It does not matter by how much it is ahead.
            ([150.0, 160.0, 170.0], [100.0, 101.0, 102.0], Some(true), "here (3 rounds, ± 0.0 %)"),
            ([100.0, 101.0, 102.0], [0.0; 3], None, "here"),
        ] {
            assert_eq!(judged(&dp, &naive), (expected, known.to_owned()), "{dp:?} {naive:?}");
        }
        assert_eq!(judged(&[100.0], &[100.0]), (None, "here".to_owned()), "one round tells nothing");
    }

    #[test]
    fn who_answers_nothing_reaches_nothing() {
        let reached = |contest: &Contest| -> Vec<Option<bool>> {
            overload("here", SOON, Some(contest)).iter().map(Verdict::reached).collect()
        };
        let nothing = met(OVERLOAD, &[(DP, &[0.0; 3])]);
        assert_eq!(reached(&nothing), [Some(false), None, None, None]);
        let mut much = met(OVERLOAD, &[(DP, &[97.0, 98.0, 99.0])]);
        much.standings[0].points[0].served = Latency { count: 9, p99_ms: 251.0, ..Latency::default() };
        assert_eq!(reached(&much), [Some(true), Some(false), None, None]);
        let beside = |other: &[f64]| beside_others(&met(1.0, &[(TURBO, &[90.0; 3]), ("ort", other)]));
        assert_eq!(beside(&[0.0; 3]), None, "nothing is not beaten by infinity");
        assert_eq!(beside(&[60.0; 3]).map(|it| it.mean), Some(1.5));
    }

    #[test]
    fn who_answers_short_texts_alone_reaches_no_capacity() {
        let reached = |contest: &Contest| overload("here", SOON, Some(contest))[0].reached();
        let mut short = met(OVERLOAD, &[(DP, &[100.0; 3])]);
        assert_eq!(reached(&short), Some(true));
        let standing = &mut short.standings[0];
        (standing.points[0].good_tokens, standing.points[0].token_goodputs) = (500.0, vec![500.0; 3]);
        standing.points.insert(0, point(0.8, &[80.0; 3]));
        assert_eq!(standing.best().map(|it| it.load), Some(0.8), "80 of all lengths are more");
        assert_eq!(reached(&short), Some(false));
        // As in a record that was measured in an earlier way.
        short.standings[0].token_capacities.clear();
        short.standings[0].points.iter_mut().for_each(|it| it.token_goodputs.clear());
        assert_eq!(short.standings[0].of_capacity(OVERLOAD).map(|it| it.mean), Some(0.5));
        assert_eq!(reached(&short), Some(false));
    }

    #[test]
    fn what_rounds_do_not_tell_is_not_reached() {
        let judged = |turbo: &[f64]| {
            let paper = met(1.0, &[(TURBO, turbo), (PAPER, &[90.0; 3])]);
            let report = report(vec![("paper-long", Rows::Contest(paper))]);
            let reached = verdicts(&report).iter().find(|it| it.regime.starts_with("paper-long"))?.reached();
            Some((reached, page(&report, "")))
        };
        // The other goal that is reached is that nothing was lost.
        let (reached, shown) = judged(&[180.0; 3]).unwrap();
        assert!(reached == Some(true) && shown.contains("2 of 2 are reached"), "{shown}");
        for (turbo, known) in [
            (&[100.0, 180.0, 260.0][..], "(3 rounds, ± 2.21 ×): 2.00 ×, not sure |"),
            (&[180.0][..], "(one round): 2.00 ×, not sure |"),
        ] {
            let (reached, shown) = judged(turbo).unwrap();
            assert!(reached.is_none() && shown.contains("1 of 2 are reached"), "{shown}");
            let row = shown.lines().find(|line| line.contains(known));
            assert!(row.is_some_and(|row| row.ends_with("| ≥ 1.80 × | – | not sure |")), "{shown}");
        }
    }

    #[test]
    fn what_turbo_lost_and_how_far_it_was_off_counts_everywhere() {
        let mut paper = met(1.0, &[(TURBO, &[180.0; 3]), (PAPER, &[90.0; 3])]);
        paper.standings[0].points.push(Point { cost_error: Some(0.2), dropped: 2, ..point(2.0, &[90.0; 3]) });
        let mut others = met(1.0, &[(TURBO, &[90.0; 3]), ("ort", &[60.0; 3])]);
        others.standings[0].points[0].failed = [(500, 3)].into();
        others.standings[0].points[0].cost_error = Some(0.1);
        others.standings[1].points[0].dropped = 40;
        let rows = vec![("paper-long", Rows::Contest(paper)), ("others-long", Rows::Contest(others))];
        let all = verdicts(&report(rows));
        let found = |what: &str| all.iter().find(|it| it.what.starts_with(what) && it.found.is_some());
        let padded = found("times the best goodput of the paper").unwrap();
        assert_eq!((padded.found, &padded.regime[..]), (Some(2.0), "paper-long (3 rounds, ± 0.00 ×)"));
        assert_eq!(found("requests that failed").unwrap().found, Some(5.0));
        let off = found("median error").unwrap();
        assert_eq!((off.found, off.reached()), (Some(0.2), Some(false)));
    }
}
