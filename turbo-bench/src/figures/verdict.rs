//! Goals for numbers, and whether they were reached.

use std::fmt::Write;

/// A goal for one number, beside the number that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The regime that the number is from.
    pub regime: String,
    /// What the number measures.
    pub what: &'static str,
    /// Whether more is better, and how the number is written.
    pub kind: Kind,
    /// The goal.
    pub wanted: f64,
    /// The number that was found; `None` where it was not measured.
    pub found: Option<f64>,
}

/// How a number is written, and whether its goal is a lower or an upper bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Times as fast; a lower bound.
    Ratio,
    /// A share of something else that was measured; a lower bound.
    Share,
    /// A share of what the machine can do; a lower bound.
    Limit,
    /// A share; an upper bound.
    Cost,
    /// Microseconds; an upper bound.
    Micros,
    /// Milliseconds; an upper bound.
    Millis,
    /// Millions of bytes; an upper bound.
    MegaBytes,
    /// A count; an upper bound.
    Count,
    /// Millions of tokens a second; a lower bound.
    MegaTokens,
}

impl Verdict {
    /// Whether the goal was reached; `None` if the number was not measured.
    #[must_use]
    pub fn reached(&self) -> Option<bool> {
        let (found, wanted) = (self.kind.as_shown(self.found?), self.kind.as_shown(self.wanted));
        Some(if self.kind.is_at_most() { found <= wanted } else { found >= wanted })
    }
}

/// Writes verdicts as a table; `show` formats the numbers that were found.
pub(super) fn table(verdicts: &[Verdict], show: impl Fn(Kind, f64) -> String) -> String {
    let mut text = "| regime | | wanted | found | |\n|---|---|---:|---:|---|\n".to_owned();
    for verdict in verdicts {
        let Verdict { regime, what, kind, wanted, found } = verdict;
        let bound = if kind.is_at_most() { "≤" } else { "≥" };
        let found = found.map_or("–".to_owned(), |found| show(*kind, found));
        let mark = match verdict.reached() {
            Some(true) => "reached",
            Some(false) => "**not reached**",
            None => "not measured",
        };
        _ = writeln!(text, "| {regime} | {what} | {bound} {} | {found} | {mark} |", kind.show(*wanted));
    }
    text
}

/// How many goals were reached, and how many were measured.
pub(super) fn score(verdicts: &[Verdict]) -> (usize, usize) {
    let count = |reached| verdicts.iter().filter(|verdict| verdict.reached() == reached).count();
    (count(Some(true)), verdicts.len() - count(None))
}

impl Kind {
    /// A number of this kind as people read it: `1.12 ×`, `86.0 %`.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Ratio => format!("{value:.2} ×"),
            Self::Share | Self::Limit | Self::Cost => format!("{:.1} %", value * 100.0),
            Self::Micros => format!("{value:.0} µs"),
            Self::Millis => format!("{value:.2} ms"),
            Self::MegaBytes => format!("{value:.1} MB"),
            Self::Count => format!("{value:.0}"),
            Self::MegaTokens => format!("{value:.2} M tokens/s"),
        }
    }

    /// Whether the goal is an upper bound.
    fn is_at_most(self) -> bool {
        matches!(self, Self::Cost | Self::Micros | Self::Millis | Self::MegaBytes | Self::Count)
    }

    /// The number as rounded for display: verdicts judge what the reader sees.
    fn as_shown(self, value: f64) -> f64 {
        let shown = self.show(value);
        shown.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(f64::NAN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_judged_as_it_is_shown() {
        let judged = |kind, wanted, found| {
            let (regime, what) = (String::new(), "");
            Verdict { regime, what, kind, wanted, found }.reached()
        };
        assert_eq!(judged(Kind::Ratio, 1.12, Some(1.1151)), Some(true));
        assert_eq!(judged(Kind::Ratio, 1.12, Some(1.1146)), Some(false), "it is shown as 1.11");
        assert_eq!(judged(Kind::Limit, 0.86, Some(0.8594)), Some(false), "it is shown as 85.9 %");
        assert_eq!(judged(Kind::Limit, 0.86, Some(0.8596)), Some(true), "it is shown as 86.0 %");
        assert_eq!(judged(Kind::Cost, 0.06, Some(0.0604)), Some(true));
        assert_eq!(judged(Kind::Cost, 0.06, Some(-0.01)), Some(true));
        assert_eq!(judged(Kind::Share, 0.92, None), None);
        assert_eq!(judged(Kind::Micros, 105.0, Some(105.4)), Some(true));
        assert_eq!(judged(Kind::Micros, 105.0, Some(105.6)), Some(false));
        assert_eq!(judged(Kind::Millis, 5.0, Some(5.004)), Some(true));
        assert_eq!(judged(Kind::MegaBytes, 5.0, Some(5.1)), Some(false));
        assert_eq!(judged(Kind::Count, 0.0, Some(0.0)), Some(true));
        assert_eq!(judged(Kind::Count, 0.0, Some(1.0)), Some(false));
        assert_eq!(judged(Kind::MegaTokens, 1.3, Some(1.2949)), Some(false));
    }

    #[test]
    fn a_table_says_what_was_reached() {
        let verdict =
            |found| Verdict { regime: "here".into(), what: "time", kind: Kind::Micros, wanted: 5.0, found };
        let all = [verdict(Some(4.0)), verdict(Some(6.0)), verdict(None)];
        let rows = "| here | time | ≤ 5 µs | 4 µs | reached |\n| here | time | ≤ 5 µs | 6 µs | **not reached** |\n\
                    | here | time | ≤ 5 µs | – | not measured |\n";
        assert!(table(&all, Kind::show).ends_with(rows));
        assert_eq!(score(&all), (1, 2));
    }
}
