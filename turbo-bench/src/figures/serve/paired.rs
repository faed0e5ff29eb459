//! Ratios of two numbers from the same rounds: whatever moves both numbers cancels out.

use crate::figures::{numbers::Interval, verdict::Kind};

/// The mean of the rounds' ratios, and how well it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paired {
    /// The mean.
    pub mean: f64,
    /// Half of Student's interval of 95 %; `None` of one round.
    pub half: Option<f64>,
    /// Number of rounds.
    pub rounds: usize,
}

impl Paired {
    /// The ratio of one number to another, round by round. `None` if there are no rounds, or a divisor is zero.
    #[must_use]
    pub fn of(above: &[f64], below: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> = above.iter().zip(below).map(|(above, below)| above / below).collect();
        if ratios.is_empty() || !ratios.iter().all(|ratio| ratio.is_finite()) {
            return None;
        }
        let rounds = ratios.len();
        let mean = ratios.iter().sum::<f64>() / rounds as f64;
        Some(Self { mean, half: Interval::student(&ratios).map(|it| it.half), rounds })
    }

    /// Whether the ratio is known to be above or below `wanted`, that is, whether the whole interval is.
    #[must_use]
    pub fn tells(&self, wanted: f64) -> bool {
        self.half.is_some_and(|half| (self.mean - wanted).abs() >= half)
    }

    /// How well it is known, as a suffix of a name: ` (3 rounds, ± 1.2 %)`.
    #[must_use]
    pub fn known(&self, kind: Kind) -> String {
        known(self.rounds, self.half, kind)
    }
}

/// How well a number is known from so many rounds.
pub(super) fn known(rounds: usize, half: Option<f64>, kind: Kind) -> String {
    match half {
        Some(half) => format!(" ({rounds} rounds, ± {})", kind.show(half)),
        None => " (one round)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_both_is_not_in_it() {
        let paired = Paired::of(&[20.0, 10.0, 30.0], &[10.0, 5.0, 15.0]).unwrap();
        assert_eq!(paired, Paired { mean: 2.0, half: Some(0.0), rounds: 3 });
        assert_eq!(paired.known(Kind::Ratio), " (3 rounds, ± 0.00 ×)");
        let once = Paired::of(&[3.0], &[2.0]).unwrap();
        assert_eq!((once.mean, once.half, once.known(Kind::Share)), (1.5, None, " (one round)".to_owned()));
    }

    #[test]
    fn an_interval_that_holds_what_is_wanted_does_not_tell() {
        let tells = |mean, half| Paired { mean, half, rounds: 3 }.tells(2.0);
        assert_eq!([2.5, 2.25, 1.75, 1.5].map(|mean| tells(mean, Some(0.5))), [true, false, false, true]);
        assert!(tells(2.0, Some(0.0)) && !tells(9.0, None), "one round tells nothing");
    }

    #[test]
    fn nothing_over_nothing_is_no_ratio_and_neither_is_anything() {
        for (above, below) in [(&[0.0, 1.0], &[0.0, 1.0]), (&[1.0, 1.0], &[1.0, 0.0])] {
            assert_eq!(Paired::of(above, below), None);
        }
        assert_eq!(Paired::of(&[], &[]), None);
        assert_eq!(Paired::of(&[0.0], &[2.0]).map(|it| it.mean), Some(0.0));
    }
}
