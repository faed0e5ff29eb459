//! How often each regime of a figure is measured: as often as the caller says, or as the time budget allows.

/// The estimated time of a regime.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Seconds before its first round, in which processes start and shapes are run for the first time.
    pub fixed: f64,
    /// Seconds of a round.
    pub round: f64,
}

/// How many rounds are measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rounds {
    /// So many of every regime.
    Fixed(usize),
    /// As many as fit into so many seconds.
    Budget(f64),
}

/// The most rounds of a regime under a budget.
const MOST: usize = 5;

impl Rounds {
    /// The rounds of each regime, if `elapsed` seconds of the budget are used already.
    #[must_use]
    pub fn of(self, costs: &[Cost], elapsed: f64) -> Vec<usize> {
        match self {
            Self::Fixed(rounds) => vec![rounds; costs.len()],
            Self::Budget(budget) => rounds(costs, budget - elapsed, MOST),
        }
    }
}

/// The fewest rounds at which a median means something.
const ENOUGH: usize = 3;

/// The rounds of each regime, at least one and at most `most`, that take about `budget` seconds together.
///
/// Each further round goes to a regime with fewer than three rounds, if there is one, and among several to the one that
/// has had least time. So cheap regimes are measured often, and expensive ones once. Every regime gets one round even
/// if `budget` is too small for that.
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

/// The seconds that all regimes take with so many rounds each.
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
