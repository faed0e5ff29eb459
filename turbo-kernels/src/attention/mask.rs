//! Which keys a query sees, by its position.

use std::ops::Range;

/// Which tokens of its sequence a token attends to. Positions are counted from the first token of the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionMask {
    /// All of them.
    Full,
    /// Those up to itself: position `i` sees `j ≤ i`.
    Causal,
    /// Those near it: position `i` sees `|i − j| ≤ reach`.
    Window {
        /// The farthest distance that is seen, on either side.
        reach: usize,
    },
}

impl AttentionMask {
    /// The positions below `keys` that position `row` sees. Neither end falls as `row` grows.
    #[must_use]
    pub fn visible(self, row: usize, keys: usize) -> Range<usize> {
        match self {
            Self::Full => 0..keys,
            Self::Causal => 0..keys.min(row.saturating_add(1)),
            Self::Window { reach } => {
                let end = row.saturating_add(reach).saturating_add(1);
                keys.min(row.saturating_sub(reach))..keys.min(end)
            }
        }
    }

    /// The positions below `keys` that any of `rows` sees.
    pub(crate) fn visible_to_any(self, rows: Range<usize>, keys: usize) -> Range<usize> {
        if rows.is_empty() {
            return 0..0;
        }
        self.visible(rows.start, keys).start..self.visible(rows.end - 1, keys).end
    }

    /// The most positions of `keys` that `rows` consecutive ones see.
    pub(crate) fn most_visible(self, rows: usize, keys: usize) -> usize {
        match self {
            Self::Full | Self::Causal => keys,
            Self::Window { reach } => keys.min(reach.saturating_mul(2).saturating_add(rows)),
        }
    }

    /// How far a query sees before and behind itself, as device code takes it. The greatest number means no limit,
    /// since no sequence is that long.
    #[cfg(any(feature = "cuda", feature = "testing", test))]
    pub(crate) fn reaches(self) -> [u32; 2] {
        match self {
            Self::Full => [u32::MAX; 2],
            Self::Causal => [u32::MAX, 0],
            Self::Window { reach } => [u32::try_from(reach).unwrap_or(u32::MAX); 2],
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn masks() -> impl Strategy<Value = AttentionMask> {
        prop_oneof![
            Just(AttentionMask::Full),
            Just(AttentionMask::Causal),
            (0..20usize).prop_map(|reach| AttentionMask::Window { reach }),
        ]
    }

    proptest! {
        /// Against the definition, key by key.
        #[test]
        fn ranges_hold_what_is_seen(mask in masks(), first in 0..30usize, rows in 1..9usize, keys in 0..40usize) {
            let sees = |i: usize, j: usize| match mask {
                AttentionMask::Full => true,
                AttentionMask::Causal => j <= i,
                AttentionMask::Window { reach } => i.abs_diff(j) <= reach,
            };
            for row in first..first + rows {
                let seen: Vec<usize> = (0..keys).filter(|&key| sees(row, key)).collect();
                prop_assert_eq!(mask.visible(row, keys).collect::<Vec<_>>(), seen);
                prop_assert!(mask.visible(row, keys).end <= mask.visible(row + 1, keys).end);
                prop_assert!(mask.visible(row, keys).start <= mask.visible(row + 1, keys).start);
            }
            let any = mask.visible_to_any(first..first + rows, keys);
            prop_assert!(any.len() <= mask.most_visible(rows, keys));
            prop_assert!((first..first + rows).all(|row| mask.visible(row, keys).all(|key| any.contains(&key))));
        }
    }

    #[test]
    fn masks_are_two_reaches() {
        let window = |reach| AttentionMask::Window { reach }.reaches();
        assert_eq!((window(7), window(usize::MAX)), ([7, 7], [u32::MAX; 2]));
        assert_eq!(AttentionMask::Causal.reaches(), [u32::MAX, 0]);
    }

    #[test]
    fn giant_reaches_do_not_wrap() {
        assert_eq!(AttentionMask::Window { reach: usize::MAX }.visible(7, 9), 0..9);
    }
}
