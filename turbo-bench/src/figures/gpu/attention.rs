//! Attention of packed sequences, with heads of 64 values as in BERT-base.

use super::{Dtype, Operation};
use crate::workload;

/// Names of the other contestants: PyTorch's `scaled_dot_product_attention` on padded tensors, with a mask where there
/// is padding; the same by cuDNN; the same on nested tensors; and attention of packed sequences, which newer versions
/// have.
pub const OTHERS: [&str; 4] = ["sdpa", "cudnn", "nested", "varlen"];

/// About the number of tokens of a ragged batch.
const TOKENS: usize = 16_384;

/// The cases that are timed.
#[must_use]
pub fn cases() -> Vec<(Operation, Dtype)> {
    let of = |lens: Vec<u32>| Operation::Attention { lens, num_heads: 12, head_dim: 64 };
    let equal = || of(vec![512; 32]);
    vec![
        (equal(), Dtype::Bf16),
        (equal(), Dtype::F16),
        (equal(), Dtype::F32),
        (of(vec![128; 128]), Dtype::Bf16),
        (of(ragged(5..=500)), Dtype::Bf16),
        (of(ragged(2..=100)), Dtype::Bf16),
    ]
}

/// Sequences with lengths in `lens`, in random order, of at most [`TOKENS`] together.
fn ragged(lens: std::ops::RangeInclusive<usize>) -> Vec<u32> {
    let mut tokens = 0;
    let all = workload::uniform(&lens, TOKENS / lens.start(), 0).into_iter();
    all.take_while(|len| {
        tokens += len;
        tokens <= TOKENS
    })
    .map(|len| len as u32)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ragged_batches_are_full() {
        for (lens, most) in [(5..=500, 500), (2..=100, 100)] {
            let ragged = ragged(lens);
            let tokens: u32 = ragged.iter().sum();
            assert!(tokens as usize <= TOKENS && tokens as usize + most > TOKENS, "{tokens}");
        }
    }

    #[test]
    fn the_first_is_the_one_that_a_goal_is_set_for() {
        let (operation, dtype) = &cases()[0];
        assert_eq!((operation.sizes().as_str(), *dtype), ("32 × 512", Dtype::Bf16));
    }
}
