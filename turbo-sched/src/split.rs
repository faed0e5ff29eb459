//! The split: a queue cut into consecutive batches of least total cost, by dynamic programming.
//!
//! In: lengths in queue order, limits, and the cost of a [`Candidate`]. Out: batch sizes in queue order.
//! Source: Fang et al., PPoPP'21, Algorithm 2 and Equation 2. Departs from them where they are wrong or silent:
//!
//! * The walk back keeps the request at each cut. As printed, it continues at `start_idx − 1`, which loses one request
//!   per batch.
//! * A batch is capped, in requests and in tokens. The printed loop has no cap; the paper's evaluation uses 20.
//! * The cost is that of the whole batch. As printed, it is multiplied by the batch size, so it was per request.
//! * The cost is a function of what the batch holds, so one algorithm serves the padded cost of the paper and the cost
//!   of packed batches.
//!
//! Consecutive cuts are the best of *all* partitions when the cost depends on `(batch_size, max_seq_len)`, never
//! falls with `max_seq_len`, and the lengths ascend: swapping a long request of one batch for a short one of
//! another never raises either maximum. For other costs they are the best cuts of the given order.

use crate::candidate::Candidate;
use crate::cost::BatchTotal;
use crate::limits::{Layout, Limits};

/// Cuts a queue into consecutive batches of least total cost; returns their sizes, in queue order.
///
/// * `lens`: `seq_len` of each waiting request; ascending for a padded cost, which makes consecutive cuts optimal.
/// * `cost`: of the whole batch, not per request; [`BatchTotal::FORBIDDEN`] for a batch that must not be formed. A
///   forbidden batch of one request is formed only if there is no other plan. Called at most
///   `lens.len() * max_batch_size` times.
///
/// Of plans that cost the same, the one whose last batch is smaller is taken.
pub fn split(
    lens: &[u32],
    limits: &Limits,
    layout: Layout,
    cost: impl Fn(&Candidate) -> BatchTotal,
) -> Vec<usize> {
    let mut sizes = Vec::new();
    Splitter::default().split_into(lens, limits, layout, cost, &mut sizes);
    sizes
}

/// The buffers of [`split`], kept between queues.
#[derive(Debug, Clone, Default)]
pub struct Splitter {
    /// `best[i]`: for the first `i` requests, the least number that run alone although that is forbidden; then the
    /// least cost of the other batches.
    best: Vec<(usize, f64)>,
    /// `size_of_last[i]`: size of the last batch in the plan of that cost.
    size_of_last: Vec<usize>,
}

impl Splitter {
    /// As [`split`], into `sizes`, whose old content is dropped. Returns the total cost.
    pub fn split_into(
        &mut self,
        lens: &[u32],
        limits: &Limits,
        layout: Layout,
        cost: impl Fn(&Candidate) -> BatchTotal,
        sizes: &mut Vec<usize>,
    ) -> BatchTotal {
        let Self { best, size_of_last } = self;
        best.clear();
        best.resize(lens.len() + 1, (0, 0.0));
        size_of_last.clear();
        size_of_last.resize(lens.len() + 1, 0);

        for i in 1..=lens.len() {
            let mut candidate = Candidate::default(); // the batch that ends at request i, growing backwards
            for size in 1..=i {
                candidate.add(lens[i - size]);
                if !limits.admits(layout, &candidate) {
                    break;
                }
                let (mut forbidden, mut total) = best[i - size];
                match cost(&candidate).0 {
                    cost if cost.is_finite() => total += cost,
                    _ if size == 1 => forbidden += 1,
                    _ => continue,
                }
                if size == 1 || (forbidden, total) < best[i] {
                    (best[i], size_of_last[i]) = ((forbidden, total), size);
                }
            }
        }

        sizes.clear();
        let mut rest = lens.len();
        while rest > 0 {
            sizes.push(size_of_last[rest]);
            rest -= size_of_last[rest];
        }
        sizes.reverse();
        match best[lens.len()] {
            (0, total) => BatchTotal(total),
            _ => BatchTotal::FORBIDDEN,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU64, NonZeroUsize};

    use super::*;

    fn limits(size: usize, tokens: u64) -> Limits {
        Limits {
            max_batch_size: NonZeroUsize::new(size).unwrap(),
            max_batch_tokens: NonZeroU64::new(tokens).unwrap(),
        }
    }

    /// A machine that pays 100 per batch and 1 per padded token.
    fn padded(candidate: &Candidate) -> BatchTotal {
        BatchTotal(100.0 + candidate.padded_tokens() as f64)
    }

    #[test]
    fn a_queue_is_cut_where_padding_costs_more_than_a_batch() {
        for (lens, max_batch_size, expected) in [
            (&[][..], 8, &[][..]),
            (&[5], 8, &[1]),
            (&[10, 11, 12], 8, &[3]),
            (&[10, 12, 13], 2, &[1, 2]),
            (&[10, 11, 400, 410], 8, &[2, 2]),
            (&[7, 7, 7], 1, &[1, 1, 1]),
        ] {
            let sizes = split(lens, &limits(max_batch_size, u64::MAX), Layout::Padded, padded);
            assert_eq!(sizes, expected, "{lens:?} in batches of {max_batch_size}");
        }
    }

    #[test]
    fn a_token_budget_cuts_and_lets_one_longer_request_through() {
        let lens = [10, 10, 10, 10, 90];
        assert_eq!(split(&lens, &limits(8, 20), Layout::Packed, |_| BatchTotal(1.0)), [2, 2, 1]);
        // One batch of any size costs the same, yet no two fit.
        assert_eq!(split(&[30, 31], &limits(8, 20), Layout::Packed, |_| BatchTotal(1.0)), [1, 1]);
    }

    #[test]
    fn a_forbidden_batch_is_not_formed() {
        let no_pairs = |candidate: &Candidate| match candidate.batch_size {
            2 => BatchTotal::FORBIDDEN,
            size => BatchTotal(10.0 - size as f64),
        };
        assert_eq!(split(&[1; 5], &limits(3, 100), Layout::Padded, no_pairs), [3, 1, 1]);
    }

    #[test]
    fn a_request_that_is_forbidden_alone_spoils_no_batch_of_others() {
        for forbidden in [BatchTotal::FORBIDDEN, BatchTotal(f64::NAN)] {
            let no_long_ones = |candidate: &Candidate| match candidate.total_tokens {
                ..=500 => BatchTotal(10.0 + candidate.total_tokens as f64),
                _ => forbidden,
            };
            let cut = |lens: &[u32]| split(lens, &limits(8, 10_000), Layout::Packed, no_long_ones);
            assert_eq!(cut(&[600, 1, 1, 1, 1]), [1, 4]);
            assert_eq!(cut(&[1, 1, 600, 1, 1]), [2, 1, 2]);
        }
        let only_pairs = |candidate: &Candidate| match candidate.batch_size {
            2 => BatchTotal(1e9),
            _ => BatchTotal::FORBIDDEN,
        };
        assert_eq!(split(&[1; 4], &limits(4, 100), Layout::Packed, only_pairs), [2, 2]);
    }

    #[test]
    fn buffers_left_by_a_longer_queue_do_not_matter() {
        let (mut splitter, mut sizes) = (Splitter::default(), vec![9; 9]);
        let limits = limits(3, 1000);
        for lens in [&[3, 4, 5, 200, 201][..], &[5], &[], &[1, 300]] {
            let total = splitter.split_into(lens, &limits, Layout::Padded, padded, &mut sizes);
            assert_eq!(sizes, split(lens, &limits, Layout::Padded, padded));
            let mut start = 0;
            let expected: f64 = sizes
                .iter()
                .map(|size| {
                    start += size;
                    padded(&lens[start - size..start].iter().copied().collect()).0
                })
                .sum();
            assert_eq!(total.0, expected);
        }
    }
}
