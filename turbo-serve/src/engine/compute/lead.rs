//! The lead: how long before a batch is done the next one is submitted.
//!
//! If the lead is too short, the device waits. If it is too long, requests that arrive after the submission wait for
//! the batch after next. So it is twice the time that submitting takes.

use std::time::Duration;

/// The least lead, for the error of predictions.
const LEAST: Duration = Duration::from_micros(200);

/// How long submitting a batch takes, as measured.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct Lead {
    submitting: Duration,
}

impl Lead {
    /// Records how long submitting a batch took. The longest time counts, and decays by an eighth with each batch.
    pub(in crate::engine) fn observe(&mut self, took: Duration) {
        self.submitting = took.max(self.submitting - self.submitting / 8);
    }

    /// The lead: how long before the runner is predicted to be idle the next batch is submitted.
    pub(in crate::engine) fn time(&self) -> Duration {
        (self.submitting * 2).max(LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_submission_counts_for_a_while() {
        let (ms, mut lead) = (Duration::from_millis, Lead::default());
        assert_eq!(lead.time(), LEAST);
        lead.observe(ms(8));
        assert_eq!(lead.time(), ms(16));
        lead.observe(ms(1));
        assert_eq!(lead.time(), ms(14));
        (0..100).for_each(|_| lead.observe(ms(1)));
        assert_eq!(lead.time(), ms(2));
    }
}
