//! Statistics and rounding of numbers for records and tables.

/// The quantile `q` of `values`, which must not be empty. It is interpolated between two neighbouring values, so the
/// median of an even count is the mean of the two in the middle.
pub(super) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = q * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + place.fract() * (above - below)
}

/// Rounds to four significant digits, which is as exact as a clock on a shared machine is.
pub(super) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// The mean, to three decimals; `None` of no values.
pub(super) fn mean(values: &[f64]) -> Option<f64> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (!values.is_empty()).then(|| (mean * 1e3).round() / 1e3)
}

/// The geometric mean; `None` of no values.
pub(super) fn geometric_mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = values.into_iter().map(f64::ln).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// A mean of differences between pairs, with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Half the width of the interval that holds the true mean in 95 of 100 cases.
    pub half: f64,
}

/// Student's t for 95 %, two-sided, by degrees of freedom, from one on.
const STUDENT: [f64; 12] =
    [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179];

impl Interval {
    /// Student's interval of the differences of pairs, which are assumed to be normal; `None` of fewer than two.
    #[must_use]
    pub fn student(differences: &[f64]) -> Option<Self> {
        let count = differences.len();
        // For more pairs than the table has, the interval is a little too wide.
        let t = STUDENT.get(count.checked_sub(2)?).or(STUDENT.last())?;
        let mean = differences.iter().sum::<f64>() / count as f64;
        let squares: f64 = differences.iter().map(|it| (it - mean).powi(2)).sum();
        let error = (squares / (count - 1) as f64 / count as f64).sqrt();
        Some(Self { mean, half: t * error })
    }

    /// Whether the whole interval is below zero.
    #[must_use]
    pub fn is_negative(&self) -> bool {
        self.mean + self.half < 0.0
    }
}

/// Formats with three digits.
pub(super) fn digits(value: f64) -> String {
    let decimals = match value {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_lies_between_the_two_in_the_middle() {
        assert_eq!([0.0, 0.5, 0.75, 1.0].map(|q| quantile(&[3.0, 1.0, 2.0, 5.0], q)), [1.0, 2.5, 3.5, 5.0]);
        assert_eq!([0.1, 0.5, 0.9].map(|q| quantile(&[7.0], q)), [7.0; 3]);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), 2.0);
    }

    #[test]
    fn numbers_have_four_digits_in_the_record_and_three_in_a_table() {
        assert_eq!([0.0, 0.012_345_6, 12.345_6, 98_765.0].map(rounded), [0.0, 0.012_35, 12.35, 98_770.0]);
        assert_eq!([0.5678, 1.234, 12.34, 123.4].map(digits), ["0.568", "1.23", "12.3", "123"]);
    }

    #[test]
    fn ratios_are_averaged_as_ratios() {
        assert!((geometric_mean([2.0, 0.5]).unwrap_or(0.0) - 1.0).abs() < 1e-12);
        assert_eq!((geometric_mean([]), mean(&[])), (None, None));
    }

    /// The numbers are those of `scipy.stats.ttest_rel(...).confidence_interval()`.
    #[test]
    fn an_interval_is_students() {
        let interval = Interval::student(&[1.0, 2.0, 4.0]).unwrap();
        assert!(
            (interval.mean - 7.0 / 3.0).abs() < 1e-12 && (interval.half - 3.7948).abs() < 1e-3,
            "{interval:?}"
        );
        assert!(!interval.is_negative());
        assert!(Interval::student(&[-1.0, -1.1, -0.9]).unwrap().is_negative());
        assert_eq!(Interval::student(&[1.0]), None);
        assert_eq!(Interval::student(&[2.0; 40]), Some(Interval { mean: 2.0, half: 0.0 }));
    }
}
