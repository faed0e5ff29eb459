//! Numbers for a record and for a table.

/// The value at share `q` of `values`, which are not empty: between two of them where it falls between, so the median
/// of an even count is the mean of the two in the middle.
pub(super) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = q * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + place.fract() * (above - below)
}

/// Four significant digits: what a clock on a shared machine can tell.
pub(super) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// To three decimals; `None` of nothing.
pub(super) fn mean(values: &[f64]) -> Option<f64> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (!values.is_empty()).then(|| (mean * 1e3).round() / 1e3)
}

/// The geometric mean; `None` of nothing.
pub(super) fn geometric_mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = values.into_iter().map(f64::ln).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// Three digits.
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
}
