//! From symbolic sizes to bytes: a program bound to a capacity has an offset for every activation.
//!
//! A plan made for some sizes serves all smaller ones, since offsets only ever leave more room. So batches share
//! bindings by *bucket*: sizes are rounded up (at most an eighth in rows), planned once, and found again in a cache.
//! Rounding moves offsets only; kernels run on the sizes of the batch.

use turbo_alloc::{MemoryPlan, Planner, UsageRecord};

use crate::{
    GraphError,
    dim::Extents,
    program::{LayoutKind, Program},
};

/// The largest batch that something must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capacity {
    /// Sequences.
    pub batch_size: usize,
    /// Rows: sum of `seq_len` when packed, `batch_size · padded_len` when padded.
    pub total_tokens: usize,
    /// Longest sequence.
    pub max_seq_len: usize,
}

impl Capacity {
    /// What just holds a batch.
    pub(crate) fn of(extents: &Extents) -> Self {
        let Extents { batch_size, padded_len, total_tokens, .. } = *extents;
        Capacity { batch_size, total_tokens, max_seq_len: padded_len }
    }

    /// This capacity without what no batch can use: every sequence has a token, and each row holds one.
    pub(crate) fn usable(&self) -> Self {
        let total_tokens = self.total_tokens;
        Capacity {
            batch_size: self.batch_size.min(total_tokens),
            total_tokens,
            max_seq_len: self.max_seq_len.min(total_tokens),
        }
    }

    /// The bucket of a batch: the sizes that its binding is planned for. What a layout does not depend on is 0.
    pub(crate) fn bucket(extents: &Extents, layout: LayoutKind) -> Self {
        let batch_size = extents.batch_size.checked_next_power_of_two().unwrap_or(usize::MAX);
        match layout {
            LayoutKind::Packed => {
                Capacity { batch_size, total_tokens: round_up(extents.total_tokens), max_seq_len: 0 }
            }
            LayoutKind::Padded => {
                Capacity { batch_size, total_tokens: 0, max_seq_len: round_up(extents.padded_len) }
            }
        }
    }

    /// Every bucket that a batch within this capacity can fall into, the largest first.
    pub(crate) fn buckets(&self, layout: LayoutKind) -> Vec<Capacity> {
        let batch_sizes =
            || std::iter::successors(Some(1), |b| Some(b * 2)).take_while(|b| b / 2 < self.batch_size);
        let mut buckets = Vec::new();
        for rows in row_buckets(match layout {
            LayoutKind::Packed => self.total_tokens,
            LayoutKind::Padded => self.max_seq_len,
        }) {
            for batch_size in batch_sizes() {
                // the smallest batch that rounds up to this bucket
                let (least_batch, least_rows) = (batch_size / 2 + 1, rows.start);
                let (fits, bucket) = match layout {
                    LayoutKind::Packed => (
                        least_batch <= rows.end,
                        Capacity { batch_size, total_tokens: rows.end, max_seq_len: 0 },
                    ),
                    LayoutKind::Padded => (
                        least_batch * least_rows <= self.total_tokens,
                        Capacity { batch_size, total_tokens: 0, max_seq_len: rows.end },
                    ),
                };
                if fits {
                    buckets.push(bucket);
                }
            }
        }
        buckets.reverse();
        buckets
    }

    /// The sizes that are planned for.
    pub(crate) fn extents(&self) -> Extents {
        Extents {
            batch_size: self.batch_size,
            padded_len: self.max_seq_len,
            total_tokens: self.total_tokens,
            sum_len_sq: 0,
        }
    }
}

/// Smallest bucket, and the step between the small ones.
const SMALLEST: usize = 16;

/// `rows` rounded up to one of eight steps per doubling, none below [`SMALLEST`].
fn round_up(rows: usize) -> usize {
    let half = rows.max(1).checked_next_power_of_two().map_or(1 << (usize::BITS - 1), |power| power / 2);
    let step = (half / 8).max(SMALLEST);
    rows.max(1).div_ceil(step).saturating_mul(step)
}

/// The buckets of row counts up to `max`, each with the smallest count that rounds up to it.
fn row_buckets(max: usize) -> impl Iterator<Item = RowBucket> {
    let mut start = 1;
    std::iter::from_fn(move || {
        let bucket = (start <= max).then(|| RowBucket { start, end: round_up(start) })?;
        start = bucket.end + 1;
        Some(bucket)
    })
}

struct RowBucket {
    start: usize,
    end: usize,
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
    /// What the planner refuses.
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

    /// A place for every slot of the program, and the chunks.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_up_by_an_eighth_at_most() {
        for rows in (1..5000).chain([usize::MAX / 2, usize::MAX / 2 + 2, usize::MAX]) {
            let up = round_up(rows);
            assert!(up >= rows && (up - rows < SMALLEST || (up - rows) * 8 <= rows), "{rows} became {up}");
        }
        assert_eq!([1, 16, 17, 128, 129, 256, 257, 300].map(round_up), [16, 16, 32, 128, 144, 256, 288, 320]);
    }

    #[test]
    fn every_batch_within_a_capacity_falls_into_a_listed_bucket() {
        for layout in [LayoutKind::Packed, LayoutKind::Padded] {
            let capacity = Capacity { batch_size: 6, total_tokens: 300, max_seq_len: 70 };
            let buckets = capacity.buckets(layout);
            for batch_size in 1..=6 {
                for len in 1..=70 {
                    let extents = Extents::of(&vec![len; batch_size]);
                    if extents.total_tokens <= capacity.total_tokens {
                        assert!(
                            buckets.contains(&Capacity::bucket(&extents, layout)),
                            "{extents:?} {layout:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_largest_bucket_comes_first() {
        let capacity = Capacity { batch_size: 4, total_tokens: 100, max_seq_len: 100 };
        let first = capacity.buckets(LayoutKind::Packed)[0];
        assert_eq!(first, Capacity { batch_size: 4, total_tokens: 112, max_seq_len: 0 });
    }
}
