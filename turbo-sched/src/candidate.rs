//! What a batch would hold, as four numbers.
//!
//! In: the `seq_len` of one request after the other. Out: the sizes that every cost model here takes.
//! Growing by one request is O(1), so trying all sizes of a batch costs no more than trying the largest.

use serde::{Deserialize, Serialize};

/// The sizes of a batch that exists or is being considered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// Number of requests.
    pub batch_size: usize,
    /// Longest `seq_len`.
    pub max_seq_len: u32,
    /// Sum of `seq_len`: what every layer but attention works on when the batch is packed.
    pub total_tokens: u64,
    /// Sum of `seq_len²`: what attention works on when the batch is packed.
    pub sum_len_sq: u64,
}

impl Candidate {
    /// Adds one request of `seq_len` tokens. Sums saturate, so absurd lengths stay absurdly dear.
    pub fn add(&mut self, seq_len: u32) {
        let len = u64::from(seq_len);
        self.batch_size += 1;
        self.max_seq_len = self.max_seq_len.max(seq_len);
        self.total_tokens = self.total_tokens.saturating_add(len);
        self.sum_len_sq = self.sum_len_sq.saturating_add(len * len);
    }

    /// Tokens after every sequence is padded to the longest: `batch_size * max_seq_len`.
    #[must_use]
    pub fn padded_tokens(&self) -> u64 {
        (self.batch_size as u64).saturating_mul(u64::from(self.max_seq_len))
    }
}

impl FromIterator<u32> for Candidate {
    fn from_iter<I: IntoIterator<Item = u32>>(lens: I) -> Self {
        let mut candidate = Self::default();
        lens.into_iter().for_each(|len| candidate.add(len));
        candidate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_by_one_request() {
        let candidate: Candidate = [3, 5, 4].into_iter().collect();
        let expected = Candidate { batch_size: 3, max_seq_len: 5, total_tokens: 12, sum_len_sq: 50 };
        assert_eq!(candidate, expected);
        assert_eq!(candidate.padded_tokens(), 15);
    }

    #[test]
    fn the_longest_lengths_saturate() {
        let candidate: Candidate = [u32::MAX; 3].into_iter().collect();
        assert_eq!(candidate.sum_len_sq, u64::MAX);
        assert_eq!(candidate.padded_tokens(), 3 * u64::from(u32::MAX));
    }
}
