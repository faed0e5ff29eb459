//! How many tokens a batch may have: a number, or what this machine computes in a given time.
//!
//! In: measured costs and a time. Out: a number of tokens. A request that arrives while a batch runs waits for the end
//! of that batch, so a needlessly large batch costs latency. On a CPU it gains nothing: a product of some forty rows is
//! already as fast per row as any. So the default is a time, and a slow machine forms smaller batches than a fast one.

use std::{ops::Range, time::Duration};

use turbo_sched::{Candidate, CostModel};

/// Most tokens of one batch, counted with padding where the model pads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchTokens {
    /// This many.
    AtMost(usize),
    /// As many as a batch of several inputs is predicted to compute within this time, [`BatchTokens::MOST`] at most. One
    /// input alone may always be as long as the model takes.
    Within(Duration),
}

impl BatchTokens {
    /// Most tokens of a batch that is bounded by its time; the default of text-embeddings-inference.
    pub const MOST: usize = 16_384;

    /// The most that several inputs can share, whatever is measured.
    pub(in crate::engine) fn most(self) -> usize {
        match self {
            Self::AtMost(tokens) => tokens,
            Self::Within(_) => Self::MOST,
        }
    }

    /// The most tokens of one input, for a model that takes `own`.
    pub(in crate::engine) fn longest_input(self, own: usize) -> usize {
        match self {
            Self::AtMost(tokens) => own.min(tokens),
            Self::Within(_) => own,
        }
    }
}

impl Default for BatchTokens {
    /// Within a tenth of a second: a wait that users accept, and many times the fixed cost of a batch.
    fn default() -> Self {
        Self::Within(Duration::from_millis(100))
    }
}

/// The most tokens, up to `most`, of a batch that is predicted to take no longer than `limit`. The batch is made of
/// inputs as long as they may be, which cost the most per token. The limit is raised to at least twice the time of a
/// single token, or else most of the time would go to the fixed cost of batches.
pub(super) fn tokens_within(costs: &CostModel, limit: Duration, max_seq_len: usize, most: usize) -> usize {
    let time = |tokens: usize| costs.cost(&longest_of(tokens, max_seq_len)).as_duration();
    let limit = limit.max(time(1).saturating_mul(2));
    largest_of(1..most + 1, |tokens| time(tokens) <= limit)
}

/// The most tokens, up to `most`, of a batch whose `footprint` in bytes is within `free`. The batch is made of inputs
/// as long as they may be; the result is at least the tokens of one such input.
pub(super) fn tokens_in_memory(
    mut footprint: impl FnMut(&Candidate) -> usize,
    free: u64,
    max_seq_len: usize,
    most: usize,
) -> usize {
    let fits = |tokens: usize| footprint(&longest_of(tokens, max_seq_len)) as u64 <= free;
    largest_of(max_seq_len.min(most)..most + 1, fits)
}

/// The largest of `numbers` that `fits`, found by bisection. The first is taken to fit, and is not checked.
pub(super) fn largest_of(numbers: Range<usize>, mut fits: impl FnMut(usize) -> bool) -> usize {
    let Range { start: mut largest, end: mut exceeds } = numbers;
    while exceeds - largest > 1 {
        let middle = largest.midpoint(exceeds);
        *(if fits(middle) { &mut largest } else { &mut exceeds }) = middle;
    }
    largest
}

/// A batch of this many tokens in as few inputs as possible.
pub(in crate::engine) fn longest_of(tokens: usize, max_seq_len: usize) -> Candidate {
    let max_seq_len = max_seq_len.max(1);
    let len = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
    let rest = Some(tokens % max_seq_len).filter(|&rest| rest > 0);
    std::iter::repeat_n(len(max_seq_len), tokens / max_seq_len).chain(rest.map(len)).collect()
}

#[cfg(test)]
mod tests {
    use turbo_sched::{BatchTotal, CostTable, Layout, PackedCost};

    use super::*;

    /// Costs of a machine that takes `fixed` seconds per batch, `per_token` for each token and `per_square` for each
    /// pair of tokens of an input.
    fn costs(layout: Layout, fixed: f64, per_token: f64, per_square: f64) -> CostModel {
        let sizes = [(1_u32, 1_usize), (1, 64), (32, 1), (32, 16), (128, 1), (128, 8), (512, 1), (512, 4)];
        let cost = |len: u32, size: usize| {
            let tokens = f64::from(len) * size as f64;
            BatchTotal(fixed + per_token * tokens + per_square * tokens * f64::from(len))
        };
        let batch = |len, size| std::iter::repeat_n(len, size).collect::<Candidate>();
        match layout {
            Layout::Packed => {
                let measured = sizes.map(|(len, size)| (batch(len, size), cost(len, size)));
                CostModel::Packed(Box::new(PackedCost::fit(measured).unwrap()))
            }
            Layout::Padded => CostModel::Padded(
                CostTable::from_measurements(sizes.map(|(len, size)| (len, size, cost(len, size)))).unwrap(),
            ),
        }
    }

    fn within(millis: u64, costs: &CostModel, max_seq_len: usize) -> usize {
        tokens_within(costs, Duration::from_millis(millis), max_seq_len, BatchTokens::MOST)
    }

    #[test]
    fn as_many_tokens_as_the_time_allows() {
        for layout in [Layout::Packed, Layout::Padded] {
            // 10 ms, and 0.9 ms for each token: BERT-base on two cores.
            let tokens = within(100, &costs(layout, 10e-3, 0.9e-3, 0.0), 512);
            assert!((95..=105).contains(&tokens), "{layout:?}: {tokens}");
            // 0.5 ms, and 0.06 ms for each token: MiniLM. More than one input is as long as that.
            let tokens = within(100, &costs(layout, 0.5e-3, 0.06e-3, 0.0), 256);
            assert!((1500..=1700).contains(&tokens), "{layout:?}: {tokens}");
        }
    }

    #[test]
    fn longer_inputs_cost_more_and_so_a_batch_has_fewer_tokens() {
        let costs = costs(Layout::Packed, 1e-3, 0.05e-3, 0.2e-6);
        let (short, long) = (within(100, &costs, 128), within(100, &costs, 1024));
        assert!(long < short && short < 2000, "{long} of long inputs, {short} of short ones");
        assert!(
            costs.cost(&longest_of(long, 1024)).0 <= 0.1 && costs.cost(&longest_of(long + 1, 1024)).0 > 0.1
        );
    }

    #[test]
    fn a_fast_machine_has_the_most_and_a_slow_one_enough_to_share_what_starting_costs() {
        let fast = costs(Layout::Packed, 1e-6, 1e-8, 0.0);
        assert_eq!(within(100, &fast, 512), BatchTokens::MOST);
        let slow = costs(Layout::Packed, 1.0, 0.05, 0.0);
        let tokens = within(100, &slow, 512);
        assert!((20..=24).contains(&tokens), "{tokens}");
    }

    #[test]
    fn as_many_tokens_as_memory_holds() {
        let footprint = |batch: &Candidate| 100 * batch.total_tokens as usize + 7 * batch.batch_size;
        let within = |free| tokens_in_memory(footprint, free, 512, BatchTokens::MOST);
        assert_eq!(within(u64::MAX), BatchTokens::MOST);
        assert_eq!([within(100 * 1000 + 14), within(100 * 1000 + 13)], [1000, 999]);
        assert_eq!(within(0), 512, "one input has to fit");
    }

    #[test]
    fn inputs_are_as_long_as_they_may_be() {
        assert_eq!(longest_of(1, 8), [1].into_iter().collect());
        assert_eq!(longest_of(19, 8), [8, 8, 3].into_iter().collect());
    }
}
