//! How often each regime of a figure is measured: as often as the caller says, or as often as the time budget allows.

/// What a regime takes, by estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Seconds before its first round: processes that start, shapes that are seen for the first time.
    pub fixed: f64,
    /// Seconds of a round.
    pub round: f64,
}

/// How often everything is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rounds {
    /// So often.
    Fixed(usize),
    /// As often as so many seconds allow.
    Budget(f64),
}

/// Most rounds that a budget buys.
const MOST: usize = 5;

impl Rounds {
    /// Rounds of each regime when so many seconds have passed.
    #[must_use]
    pub fn of(self, costs: &[Cost], elapsed: f64) -> Vec<usize> {
        match self {
            Self::Fixed(rounds) => vec![rounds; costs.len()],
            Self::Budget(budget) => rounds(costs, budget - elapsed, MOST),
        }
    }
}

/// A median begins to mean something at so many rounds.
const ENOUGH: usize = 3;

/// Rounds of each regime, at least one and at most `most`, that take about `budget` seconds together.
///
/// Regimes with fewer than three rounds come first, then the one that has had least time: what is cheap is measured
/// often, what is dear once. Where `budget` does not suffice for one round of each, each gets one all the same.
fn rounds(costs: &[Cost], budget: f64, most: usize) -> Vec<usize> {
    let mut rounds = vec![1_usize; costs.len()];
    let mut left = budget - seconds(costs, &rounds);
    loop {
        let time = |index: usize| rounds[index] as f64 * costs[index].round;
        let next = (0..costs.len())
            .filter(|&index| rounds[index] < most && costs[index].round <= left)
            .min_by(|&a, &b| {
                let key = |index: usize| (rounds[index] >= ENOUGH, time(index));
                key(a).0.cmp(&key(b).0).then(key(a).1.total_cmp(&key(b).1))
            });
        let Some(next) = next else { return rounds };
        left -= costs[next].round;
        rounds[next] += 1;
    }
}

/// Seconds of all regimes with so many rounds.
#[must_use]
pub fn seconds(costs: &[Cost], rounds: &[usize]) -> f64 {
    costs.iter().zip(rounds).map(|(cost, &rounds)| cost.fixed + rounds as f64 * cost.round).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheap_come_often_and_the_dear_at_least_once() {
        let costs = [10.0, 100.0, 1.0].map(|round| Cost { fixed: 5.0, round });
        for (budget, expected) in [
            (0.0, [1, 1, 1]),
            (126.0, [1, 1, 1]),
            (128.0, [1, 1, 3]),
            (150.0, [3, 1, 5]),
            (360.0, [4, 3, 5]),
            (1000.0, [5, 5, 5]),
        ] {
            assert_eq!(rounds(&costs, budget, 5), expected, "{budget}");
        }
        assert_eq!(seconds(&costs, &[2, 1, 1]), 15.0 + 121.0);
        assert!(rounds(&[], 10.0, 5).is_empty());
    }
}
