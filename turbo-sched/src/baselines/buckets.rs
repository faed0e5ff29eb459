//! Length buckets: only requests of similar length share a batch.

use std::num::NonZeroU32;

use super::fifo::fill_in_order;
use crate::batches::Batches;
use crate::candidate::Candidate;
use crate::cost::BatchTotal;

/// Batches of requests whose lengths fall into one bucket, first come first served inside it. Bucket `i` holds
/// lengths `width·i + 1 ..= width·(i + 1)`: the rival set up in Gao et al., EuroSys'18, §7.1.
///
/// `order` is a buffer; its content is dropped.
pub(crate) fn length_buckets(
    lens: &[u32],
    width: NonZeroU32,
    admits: impl Fn(&Candidate) -> bool,
    cost: impl Fn(&Candidate) -> BatchTotal,
    order: &mut Vec<usize>,
    batches: &mut Batches,
) {
    let bucket = |position: usize| lens[position].saturating_sub(1) / width;
    order.clear();
    order.extend(0..lens.len());
    order.sort_unstable_by_key(|&position| (bucket(position), position));
    for members in order.chunk_by(|&a, &b| bucket(a) == bucket(b)) {
        fill_in_order(members.iter().copied(), lens, &admits, &cost, batches);
    }
}
