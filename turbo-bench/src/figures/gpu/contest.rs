//! Turns on a device that works asynchronously: in a turn a contestant enqueues many runs and waits for the last one.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::figures::{
    numbers::{digits, quantile, rounded},
    order::order,
};

/// The contestant that computes as turbo does by default.
pub const TURBO: &str = "turbo";

/// How long turns are, and how many each contestant has.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    /// Microseconds of a turn, unless one run takes longer.
    pub us: f64,
    /// Turns of each contestant.
    pub rounds: usize,
}

/// The times of one contestant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// Its name.
    pub who: String,
    /// Median over turns of the mean of their runs, µs.
    pub median_us: f64,
    /// 10th percentile of the turns, µs.
    pub p10_us: f64,
    /// 90th percentile of the turns, µs.
    pub p90_us: f64,
    /// Number of turns.
    pub turns: usize,
    /// Runs of each turn.
    pub runs: usize,
}

impl Timed {
    /// How far turns lie from their median, as a share of it.
    #[must_use]
    pub fn spread(&self) -> f64 {
        (self.p90_us - self.p10_us) / 2.0 / self.median_us
    }
}

/// The times of `who`.
pub fn of<'a>(times: &'a [Timed], who: &str) -> Option<&'a Timed> {
    times.iter().find(|timed| timed.who == who)
}

/// The fastest of `others`.
pub fn best<'a>(times: &'a [Timed], others: &[&str]) -> Option<&'a Timed> {
    let these = times.iter().filter(|timed| others.contains(&timed.who.as_str()));
    these.min_by(|a, b| a.median_us.total_cmp(&b.median_us))
}

/// Times in words: `turbo 93.1 µs, eager 160 µs`.
pub fn list(times: &[Timed]) -> String {
    let of = |timed: &Timed| format!("{} {} µs", timed.who, digits(timed.median_us));
    times.iter().map(of).collect::<Vec<_>>().join(", ")
}

/// The most runs of a turn.
const MOST_RUNS: f64 = 10_000.0;
/// Runs that are timed to see how many fill a turn.
const LOOK: usize = 3;

/// Times each of `names` at item `index`, in an order that is drawn anew for each round. `turn(name, runs)` runs number
/// `name` of `names` so many times, and returns the microseconds of one run.
///
/// # Errors
/// When `turn` fails.
pub fn contest(
    names: &[String],
    turns: Turns,
    index: usize,
    mut turn: impl FnMut(usize, usize) -> Result<f64>,
) -> Result<Vec<Timed>> {
    let mut runs = Vec::new();
    for who in 0..names.len() {
        turn(who, 1)?; // whatever the first run costs alone
        let us = turn(who, LOOK)?;
        runs.push((turns.us / us.max(1e-3)).clamp(1.0, MOST_RUNS) as usize);
    }
    let mut times = vec![Vec::new(); names.len()];
    for round in 0..turns.rounds {
        for who in order(names.len(), round, index) {
            times[who].push(turn(who, runs[who])?);
        }
    }
    let timed = |((who, us), runs): ((&String, &Vec<f64>), usize)| {
        let [p10_us, median_us, p90_us] = [0.1, 0.5, 0.9].map(|q| rounded(quantile(us, q)));
        Timed { who: who.clone(), median_us, p10_us, p90_us, turns: us.len(), runs }
    };
    Ok(names.iter().zip(&times).zip(runs).map(timed).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_has_as_many_turns_of_about_the_same_time() {
        let names = ["slow", "fast"].map(str::to_owned);
        let (mut runs, mut turns) = ([0, 0], [0, 0]);
        let times = contest(&names, Turns { us: 1000.0, rounds: 5 }, 0, |who, count| {
            runs[who] += count;
            turns[who] += 1;
            Ok(if who == 0 { 100.0 + turns[0] as f64 } else { 0.01 })
        });
        let times = times.unwrap();
        assert_eq!(turns, [7, 7]);
        assert_eq!(runs, [4 + 5 * 9, 4 + 5 * 10_000]);
        assert_eq!((times[0].median_us, times[0].runs, times[0].turns), (105.0, 9, 5));
        assert_eq!((times[0].p10_us, times[0].p90_us), (103.4, 106.6));
        assert!((times[0].spread() - 1.6 / 105.0).abs() < 1e-9);
        assert_eq!(best(&times, &["slow", "fast", "none"]).map(|it| it.who.as_str()), Some("fast"));
        assert_eq!(of(&times, "none"), None);
        assert_eq!(list(&times), "slow 105 µs, fast 0.010 µs");
    }
}
