//! What a batch may hold at most, and how its tokens are counted.
//!
//! In: a [`Candidate`]. Out: whether it may run as one batch. Every policy of this crate honours these limits,
//! so memory can be reserved for them once.

use std::num::{NonZeroU64, NonZeroUsize};

use crate::candidate::Candidate;

/// How the sequences of a batch share one tensor, and so how its tokens count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Every sequence is padded to the longest: `batch_size * max_seq_len` tokens.
    Padded,
    /// Sequences lie end to end: `total_tokens` tokens.
    Packed,
}

impl Layout {
    /// Tokens the machine works on for this batch.
    #[must_use]
    pub fn tokens(self, candidate: &Candidate) -> u64 {
        match self {
            Self::Padded => candidate.padded_tokens(),
            Self::Packed => candidate.total_tokens,
        }
    }
}

/// The largest batch that may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests per batch.
    pub max_batch_size: NonZeroUsize,
    /// Tokens per batch, counted as the [`Layout`] says. A longer request still forms a batch alone: a length that must
    /// not run at all is refused before it is queued, not left waiting for ever.
    pub max_batch_tokens: NonZeroU64,
}

impl Limits {
    /// Limits on the number of requests only, as in the paper's evaluation.
    #[must_use]
    pub fn batch_size(max_batch_size: NonZeroUsize) -> Self {
        Self { max_batch_size, max_batch_tokens: NonZeroU64::MAX }
    }

    /// Whether `candidate` may run as one batch. A batch that may not run may not run after it has grown, either.
    #[must_use]
    pub fn admits(&self, layout: Layout, candidate: &Candidate) -> bool {
        candidate.batch_size <= 1
            || (candidate.batch_size <= self.max_batch_size.get()
                && layout.tokens(candidate) <= self.max_batch_tokens.get())
    }

    /// Whether no request, however short, could join `candidate`.
    #[must_use]
    pub fn is_full(&self, layout: Layout, candidate: &Candidate) -> bool {
        candidate.batch_size >= self.max_batch_size.get()
            || layout.tokens(candidate) >= self.max_batch_tokens.get()
    }

    /// How full `candidate` is, in tokens or in requests, whichever is more: 1 is full, and only a single request that
    /// is longer than the token limit gives more than 1.
    #[must_use]
    pub fn fill(&self, layout: Layout, candidate: &Candidate) -> f64 {
        let tokens = layout.tokens(candidate) as f64 / self.max_batch_tokens.get() as f64;
        tokens.max(candidate.batch_size as f64 / self.max_batch_size.get() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(size: usize, tokens: u64) -> Limits {
        Limits {
            max_batch_size: NonZeroUsize::new(size).unwrap(),
            max_batch_tokens: NonZeroU64::new(tokens).unwrap(),
        }
    }

    #[test]
    fn tokens_count_as_the_layout_says() {
        let batch: Candidate = [2, 6].into_iter().collect();
        for (layout, budget, admitted) in [
            (Layout::Padded, 12, true),
            (Layout::Padded, 11, false),
            (Layout::Packed, 8, true),
            (Layout::Packed, 7, false),
        ] {
            assert_eq!(limits(4, budget).admits(layout, &batch), admitted, "{layout:?} {budget}");
        }
    }

    #[test]
    fn a_batch_is_as_full_as_its_fuller_side() {
        let batch: Candidate = [2, 6].into_iter().collect();
        for (layout, size, tokens, fill) in
            [(Layout::Packed, 8, 16, 0.5), (Layout::Padded, 8, 16, 0.75), (Layout::Packed, 2, 16, 1.0)]
        {
            assert_eq!(limits(size, tokens).fill(layout, &batch), fill);
        }
    }

    #[test]
    fn one_request_always_forms_a_batch() {
        let long: Candidate = [100].into_iter().collect();
        assert!(limits(1, 10).admits(Layout::Packed, &long));
        assert!(limits(2, 10).is_full(Layout::Packed, &long));
    }

    #[test]
    fn the_batch_size_is_a_limit_of_its_own() {
        let three: Candidate = [1; 3].into_iter().collect();
        assert!(!limits(2, 1000).admits(Layout::Packed, &three));
        assert!(limits(3, 1000).admits(Layout::Packed, &three));
        assert!(limits(3, 1000).is_full(Layout::Packed, &three));
        assert!(!limits(4, 1000).is_full(Layout::Packed, &three));
    }
}
