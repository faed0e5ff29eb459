//! How far predictions are from the measured costs of recent batches.
//!
//! In: a predicted and a measured cost, batch by batch. Out: the relative error of each, and the median of the last
//! ones. It is a median because one batch during which something else had the processor says nothing about the model.

use super::BatchTotal;

/// How many batches the median is taken over: some seconds of a busy server.
const RECENT: usize = 101;

/// Relative errors of the last batches.
#[derive(Debug, Clone)]
pub struct Drift {
    /// A ring; its first `RECENT.min(seen)` elements are valid.
    errors: [f64; RECENT],
    seen: usize,
}

impl Default for Drift {
    fn default() -> Self {
        Self { errors: [0.0; RECENT], seen: 0 }
    }
}

impl Drift {
    /// Records that a batch that was predicted to cost `predicted` cost `measured`, which is above 0; returns the
    /// relative error: 0.1 for 9 or 11 instead of 10.
    pub fn observe(&mut self, predicted: BatchTotal, measured: BatchTotal) -> f64 {
        let error = relative_error(predicted, measured);
        self.errors[self.seen % RECENT] = error;
        self.seen += 1;
        error
    }

    /// The median of the last errors, the upper one of two; `None` before the first batch.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        let mut sorted = self.errors;
        let sorted = &mut sorted[..self.seen.min(RECENT)];
        let middle = sorted.len() / 2;
        (!sorted.is_empty()).then(|| *sorted.select_nth_unstable_by(middle, f64::total_cmp).1)
    }
}

/// The distance of a prediction from the measurement, divided by the measurement.
pub(crate) fn relative_error(predicted: BatchTotal, measured: BatchTotal) -> f64 {
    (predicted.0 / measured.0 - 1.0).abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_over_the_last_batches() {
        let mut drift = Drift::default();
        assert_eq!(drift.median(), None);
        let mut error = |predicted: f64| {
            let error = drift.observe(BatchTotal(predicted), BatchTotal(10.0));
            (error, drift.median().unwrap())
        };
        assert_eq!(error(15.0), (0.5, 0.5));
        assert_eq!(error(10.0), (0.0, 0.5));
        assert_eq!(error(7.5), (0.25, 0.25), "too little is as wrong as too much");
        let half = RECENT / 2;
        assert_eq!((0..=half).map(|_| error(20.0)).last(), Some((1.0, 1.0)));
        assert_eq!((0..RECENT).map(|_| error(30.0)).last(), Some((2.0, 2.0)));
        assert_eq!(error(10.0).1, 2.0, "what was before is forgotten");
    }
}
