//! First come, first served.

use crate::batches::Batches;
use crate::candidate::Candidate;
use crate::cost::BatchTotal;

/// Each request alone: a server without batching.
pub(crate) fn one_by_one(lens: &[u32], cost: impl Fn(&Candidate) -> BatchTotal, batches: &mut Batches) {
    (0..lens.len()).for_each(|position| batches.push([position], lens, &cost));
}

/// Fills batches from the front and closes one at the first request that does not fit, even where a later
/// one would: as the queue of text-embeddings-inference does, and the paper's naive scheduler with its cap.
///
/// * `order`: positions in `lens`, in order of service.
/// * `admits`: whether a batch may run; one request alone always does.
pub(crate) fn fill_in_order(
    order: impl IntoIterator<Item = usize>,
    lens: &[u32],
    admits: impl Fn(&Candidate) -> bool,
    cost: impl Fn(&Candidate) -> BatchTotal,
    batches: &mut Batches,
) {
    let mut order = order.into_iter().peekable();
    while order.peek().is_some() {
        let mut open = Candidate::default();
        let members = std::iter::from_fn(|| {
            order.next_if(|&position| {
                let mut grown = open;
                grown.add(lens[position]);
                let joins = open.batch_size == 0 || admits(&grown);
                if joins {
                    open = grown;
                }
                joins
            })
        });
        batches.push(members, lens, &cost);
    }
}
