//! How many tokens of each text are kept: arithmetic alone, as the reference does it.

use std::{cmp::Ordering, ops::Range};

/// How many tokens to keep of two texts of `first` and `second` tokens, so that together they are at most `room`. The
/// longer text loses tokens first, until both have the same length. Then both lose the same number. If `room` is odd,
/// the longer text keeps one more, as `longer` compares the first with the second; if they are equal, the second does.
///
/// Source: `longest_first` of the tokenizers library.
pub(super) fn longest_first(
    (first, second): (usize, usize),
    room: usize,
    longer: impl FnOnce() -> Ordering,
) -> (usize, usize) {
    let half = room / 2;
    let rest = room - half;
    if first.saturating_add(second) <= room {
        (first, second)
    } else if first <= half {
        (first, room - first)
    } else if second <= half {
        (room - second, second)
    } else if longer() == Ordering::Greater {
        (rest, half)
    } else {
        (half, rest)
    }
}

/// The tokens in each window of at most `room` over `count` tokens. Neighbours share `stride` tokens, which is less
/// than `room` if there are several windows.
pub(super) fn windows(count: usize, room: usize, stride: usize) -> Vec<Range<usize>> {
    let step = room.saturating_sub(stride).max(1);
    let after_first = (room..count).step_by(step).map(|end| end - stride);
    [0].into_iter().chain(after_first).map(|start| start..(start + room).min(count)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::{
        Encoding, TruncationDirection, TruncationParams, TruncationStrategy, utils::truncation,
    };

    use super::*;

    fn of_length(length: usize) -> Encoding {
        (0..length).map(|id| (id as u32, String::new(), (0, 0), None, 0)).collect()
    }

    /// What the library keeps of two texts.
    fn kept(lengths: (usize, usize), max_length: usize) -> (usize, usize) {
        let params = TruncationParams {
            max_length,
            strategy: TruncationStrategy::LongestFirst,
            stride: 0,
            direction: TruncationDirection::Right,
        };
        let (first, second) = (of_length(lengths.0), Some(of_length(lengths.1)));
        let (first, second) = truncation::truncate_encodings(first, second, &params).unwrap();
        (first.len(), second.unwrap().len())
    }

    proptest! {
        #[test]
        fn lengths_are_the_library_s(first in 0_usize..30, second in 0_usize..30, room in 0_usize..40) {
            let ours = longest_first((first, second), room, || first.cmp(&second));
            prop_assert_eq!(ours, kept((first, second), room));
        }

        #[test]
        fn windows_are_the_library_s(count in 0_usize..60, room in 1_usize..20, stride in 0_usize..20) {
            prop_assume!(stride < room || count <= room);
            let stride_or_any = if stride < room { stride } else { 0 };
            let mut theirs = of_length(count);
            theirs.truncate(room, stride_or_any, TruncationDirection::Right);
            let ids = |encoding: &Encoding| encoding.get_ids().to_vec();
            let theirs: Vec<Vec<u32>> =
                [ids(&theirs)].into_iter().chain(theirs.get_overflowing().iter().map(ids)).collect();
            let ours = windows(count, room, stride).into_iter().map(|window| {
                window.map(|id| id as u32).collect::<Vec<u32>>()
            });
            prop_assert_eq!(ours.collect::<Vec<_>>(), theirs);
        }
    }
}
