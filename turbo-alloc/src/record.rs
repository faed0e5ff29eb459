//! The planner's input: when each tensor is alive and how many bytes it needs.
//!
//! In: the position of operators in execution order. Out: plain records, and the bytes that any
//! allocator must hold at once. Source: Fang et al., PPoPP'21, §4.2.

use serde::{Deserialize, Serialize};

/// One tensor's life and size; a request is a slice of these.
///
/// Operators are counted in execution order. Both ends are inclusive: the tensor's bytes belong to
/// it from the start of `first_op` (which usually writes it) to the end of `last_op` (the last to
/// read it). So the input and the output of one operator never share bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UsageRecord {
    /// First operator that touches the tensor.
    pub first_op: u32,
    /// Last operator that touches the tensor; not before `first_op`.
    pub last_op: u32,
    /// Bytes. Zero is legal: such a tensor may lie at any offset.
    pub size: usize,
}

/// The most bytes that are alive during one operator: no allocator can hold fewer.
///
/// Sizes count as they are, without alignment. The sum saturates at `usize::MAX`. A record that ends before it begins
/// is never alive. Time O(n log n) in the number of records.
///
/// ```
/// use turbo_alloc::{UsageRecord, peak_live_bytes};
///
/// let a = UsageRecord { first_op: 0, last_op: 1, size: 300 };
/// let b = UsageRecord { first_op: 1, last_op: 2, size: 200 };
/// let c = UsageRecord { first_op: 2, last_op: 3, size: 100 };
/// assert_eq!(peak_live_bytes(&[a, b, c]), 500); // a and b, during operator 1
/// ```
pub fn peak_live_bytes(records: &[UsageRecord]) -> usize {
    // Only the start of a life raises the sum, so the births in order, each after the deaths
    // before it, visit every maximum.
    let lives = || records.iter().filter(|r| r.first_op <= r.last_op);
    let mut births: Vec<_> = lives().map(|r| (r.first_op, r.size)).collect();
    let mut deaths: Vec<_> = lives().map(|r| (r.last_op, r.size)).collect();
    births.sort_unstable();
    deaths.sort_unstable();
    let mut deaths = deaths.into_iter().peekable();
    let (mut live, mut peak) = (0u128, 0u128);
    for (op, size) in births {
        live += size as u128;
        while let Some((_, freed)) = deaths.next_if(|&(last_op, _)| last_op < op) {
            live -= freed as u128;
        }
        peak = peak.max(live);
    }
    usize::try_from(peak).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `first_op`, `last_op`, `size`.
    type Row = (u32, u32, usize);

    fn record((first_op, last_op, size): Row) -> UsageRecord {
        UsageRecord { first_op, last_op, size }
    }

    #[test]
    fn peaks_worked_by_hand() {
        let cases: [(&[Row], usize); 7] = [
            (&[], 0),
            (&[(4, 4, 7)], 7),
            (&[(0, 1, 10), (1, 2, 10)], 20), // both ends inclusive: they meet in 1
            (&[(0, 1, 10), (2, 3, 10)], 10), // they do not meet
            (&[(0, 9, 1), (3, 4, 5), (4, 8, 6)], 12), // all three in 4
            (&[(0, 0, usize::MAX), (0, 0, 1)], usize::MAX),
            (&[(5, 2, 10), (3, 3, 1)], 1), // the first is never alive
        ];
        for (records, peak) in cases {
            let records: Vec<_> = records.iter().copied().map(record).collect();
            assert_eq!(peak_live_bytes(&records), peak, "{records:?}");
        }
    }

    proptest! {
        #[test]
        fn equals_the_sum_at_every_operator(
            lives in prop::collection::vec((0u32..20, 0u32..6, 0usize..100), 0..30),
        ) {
            let records: Vec<_> = lives.iter().map(|&(op, span, size)| record((op, op + span, size))).collect();
            let at = |op| records.iter().filter(|r| r.first_op <= op && op <= r.last_op).map(|r| r.size).sum();
            prop_assert_eq!(peak_live_bytes(&records), (0..26).map(at).max().unwrap_or(0usize));
        }
    }
}
