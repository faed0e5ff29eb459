//! From symbolic sizes to bytes: a program bound to a capacity has an offset for every activation.
//!
//! A plan made for some sizes also serves all smaller ones, since its offsets then only leave more room. So batches
//! share bindings by *bucket*: sizes are rounded up (rows by at most an eighth or to a multiple of 16, padded sequences
//! by at most an eighth too), planned once, and then found in a cache. Rounding only moves offsets: kernels run on the
//! sizes of the batch, except for small packed batches on a device that records launches, which run on the sizes of
//! their bucket.

use std::ops::RangeInclusive;

use turbo_alloc::{MemoryPlan, Planner, UsageRecord};

use crate::{
    GraphError,
    dim::Extents,
    program::{LayoutKind, Program},
};

/// The sizes of the largest batch that something must hold. Of a capacity that is reserved or asked about, all but
/// `selected_rows` count in both layouts: where one of them is 0, the largest batch is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capacity {
    /// Sequences.
    pub batch_size: usize,
    /// Rows: sum of `seq_len` when packed, `batch_size · padded_len` when padded.
    pub total_tokens: usize,
    /// Longest sequence.
    pub max_seq_len: usize,
    /// Selected tokens of all sequences.
    pub selected_rows: usize,
}

impl Capacity {
    /// The capacity that exactly holds a batch.
    pub(crate) fn of(extents: &Extents) -> Self {
        let Extents { batch_size, padded_len, total_tokens, selected_rows, .. } = *extents;
        Capacity { batch_size, total_tokens, max_seq_len: padded_len, selected_rows }
    }

    /// This capacity, less what no batch can use: every sequence has at least one token, each row holds one, and there
    /// are at most `batch_size · max_seq_len` rows.
    pub(crate) fn usable(&self) -> Self {
        let total_tokens = self.total_tokens.min(self.batch_size.saturating_mul(self.max_seq_len));
        Capacity {
            batch_size: self.batch_size.min(total_tokens),
            total_tokens,
            max_seq_len: self.max_seq_len.min(total_tokens),
            selected_rows: self.selected_rows,
        }
    }

    /// The bucket of a batch: the sizes that its binding is planned for. Sizes that the layout does not depend on are
    /// 0.
    pub(crate) fn bucket(extents: &Extents, layout: LayoutKind) -> Self {
        let (total_tokens, max_seq_len) = match layout {
            LayoutKind::Packed => (round_rows(extents.total_tokens), 0),
            LayoutKind::Padded => (0, round_rows(extents.padded_len)),
        };
        Capacity {
            batch_size: round_batch(extents.batch_size, layout),
            total_tokens,
            max_seq_len,
            selected_rows: round_selected(extents.selected_rows),
        }
    }

    /// This capacity, with batch size and rows raised to those of the bucket of its largest batch.
    pub(crate) fn rounded(&self, layout: LayoutKind) -> Self {
        let bucket = Capacity::bucket(&self.extents(), layout);
        Capacity {
            batch_size: self.batch_size.max(bucket.batch_size),
            total_tokens: self.total_tokens.max(bucket.total_tokens),
            ..*self
        }
    }

    /// Every bucket that a batch within this capacity can fall into, those with the most rows first.
    pub(crate) fn buckets(&self, layout: LayoutKind) -> Vec<Capacity> {
        let most_rows = match layout {
            LayoutKind::Packed => self.total_tokens,
            LayoutKind::Padded => self.max_seq_len,
        };
        let selections: Vec<usize> = std::iter::once(0)
            .chain(ranges(self.selected_rows, round_selected).map(|range| *range.end()))
            .collect();
        let mut buckets = Vec::new();
        for rows in ranges(most_rows, round_rows) {
            for batch in ranges(self.batch_size, |batch_size| round_batch(batch_size, layout)) {
                // whether the smallest batch that rounds up to this bucket is within the capacity
                let (batch_size, end) = (*batch.end(), *rows.end());
                let (fits, total_tokens, max_seq_len) = match layout {
                    LayoutKind::Packed => (*batch.start() <= end, end, 0),
                    LayoutKind::Padded => (batch.start() * rows.start() <= self.total_tokens, 0, end),
                };
                let bucket =
                    |&selected_rows| Capacity { batch_size, total_tokens, max_seq_len, selected_rows };
                buckets.extend(selections.iter().filter(|_| fits).map(bucket));
            }
        }
        let rows = |bucket: &Capacity| bucket.total_tokens.max(bucket.batch_size * bucket.max_seq_len);
        buckets
            .sort_by_key(|bucket| std::cmp::Reverse((rows(bucket), bucket.batch_size, bucket.selected_rows)));
        buckets
    }

    /// The sizes to plan for.
    pub(crate) fn extents(&self) -> Extents {
        Extents {
            batch_size: self.batch_size,
            padded_len: self.max_seq_len,
            total_tokens: self.total_tokens,
            sum_len_sq: 0,
            selected_rows: self.selected_rows,
        }
    }
}

/// The least number of rows to plan for, and the least step between such numbers.
const LEAST_ROWS: usize = 16;

fn round_rows(rows: usize) -> usize {
    round_up(rows, LEAST_ROWS)
}

/// When packed, few values have a row per sequence, so having few buckets matters more than tight ones.
fn round_batch(batch_size: usize, layout: LayoutKind) -> usize {
    match layout {
        LayoutKind::Packed => batch_size.checked_next_power_of_two().unwrap_or(usize::MAX),
        LayoutKind::Padded => round_up(batch_size, 1),
    }
}

/// Only a few values follow a selection, and they are small beside those of all rows: growing by a factor of eight
/// keeps the buckets few. A batch that selects nothing is planned for no selected rows.
fn round_selected(selected_rows: usize) -> usize {
    let mut rounded = if selected_rows == 0 { 0 } else { LEAST_ROWS };
    while rounded < selected_rows {
        rounded = rounded.saturating_mul(8);
    }
    rounded
}

/// `count` rounded up to one of eight steps per doubling, none smaller than `least`.
fn round_up(count: usize, least: usize) -> usize {
    let half = count.max(1).checked_next_power_of_two().map_or(1 << (usize::BITS - 1), |power| power / 2);
    let step = (half / 8).max(least);
    count.max(1).div_ceil(step).saturating_mul(step)
}

/// The counts up to `most`, in ranges of those that `round` to the same count, which is the end of the range.
fn ranges(most: usize, round: impl Fn(usize) -> usize) -> impl Iterator<Item = RangeInclusive<usize>> {
    let mut next = Some(1);
    std::iter::from_fn(move || {
        let start = next.filter(|&start| start <= most)?;
        let range = start..=round(start);
        next = range.end().checked_add(1);
        Some(range)
    })
}

/// Where the activations of a program lie, for batches up to a capacity.
#[derive(Clone, Debug, Default)]
pub struct BoundProgram {
    capacity: Capacity,
    plan: MemoryPlan,
}

impl BoundProgram {
    /// Plans `program` for `capacity` with `planner`, reusing this binding's memory and that of `records`.
    ///
    /// # Errors
    /// Errors of the planner.
    pub(crate) fn bind_into(
        &mut self,
        program: &Program,
        capacity: Capacity,
        planner: &mut Planner,
        records: &mut Vec<UsageRecord>,
    ) -> Result<(), GraphError> {
        program.slots().usage_records_into(&capacity.extents(), records);
        planner.plan_into(records, &mut self.plan)?;
        self.capacity = capacity;
        Ok(())
    }

    /// The sizes that this binding was planned for.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// The placement of every slot of the program, and the chunks.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_up_by_an_eighth_at_most() {
        for count in (1..5000).chain([usize::MAX / 2, usize::MAX / 2 + 2, usize::MAX]) {
            for least in [1, LEAST_ROWS] {
                let up = round_up(count, least);
                assert!(
                    up >= count && (up - count < least || up - count <= count / 8),
                    "{count} became {up}"
                );
            }
        }
        assert_eq!([0, 1, 16, 17, 128, 129].map(round_selected), [0, 16, 16, 128, 128, 1024]);
        assert_eq!(round_selected(usize::MAX), usize::MAX);
        assert_eq!(ranges(usize::MAX, round_selected).last(), Some((1 << 61) + 1..=usize::MAX));
        let rows = [1, 16, 17, 128, 129, 256, 257, 300].map(round_rows);
        assert_eq!(rows, [16, 16, 32, 128, 144, 256, 288, 320]);
        let batch = |layout| [1, 5, 15, 17, 33].map(|batch_size| round_batch(batch_size, layout));
        assert_eq!(batch(LayoutKind::Padded), [1, 5, 15, 18, 36]);
        assert_eq!(batch(LayoutKind::Packed), [1, 8, 16, 32, 64]);
    }

    #[test]
    fn every_batch_within_a_capacity_falls_into_a_listed_bucket() {
        for layout in [LayoutKind::Packed, LayoutKind::Padded] {
            let capacity = Capacity { batch_size: 40, total_tokens: 300, max_seq_len: 70, selected_rows: 20 };
            let buckets = capacity.buckets(layout);
            for batch_size in 1..=40 {
                for len in 1..=70 {
                    for (short, selected_rows) in [(1, 0), (len / 2 + 1, 16), (len, 20)] {
                        let mut lens = vec![short; batch_size];
                        lens[0] = len;
                        let extents = Extents { selected_rows, ..Extents::of(&lens) };
                        let rows = match layout {
                            LayoutKind::Packed => extents.total_tokens,
                            LayoutKind::Padded => batch_size * len,
                        };
                        let listed = buckets.contains(&Capacity::bucket(&extents, layout));
                        assert!(rows > capacity.total_tokens || listed, "{extents:?} {layout:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_largest_bucket_comes_first() {
        let capacity = Capacity { batch_size: 4, total_tokens: 100, max_seq_len: 100, ..Capacity::default() };
        let first = capacity.buckets(LayoutKind::Packed)[0];
        assert_eq!(first, Capacity { batch_size: 4, total_tokens: 112, max_seq_len: 0, selected_rows: 0 });
    }
}
