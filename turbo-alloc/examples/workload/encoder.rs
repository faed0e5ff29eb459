//! Usage records of BERT-base's encoder.
//!
//! The records are read off the layer as PPoPP'21 §4.1 fuses it: one sequence, f32, hidden size 768,
//! 12 heads, intermediate size 3072. Twelve operators a layer; softmax, GELU and normalisation work in
//! place, so that a tensor lives from the GEMM that writes it to the last operator that reads it:
//!
//! | Operator | Reads | Writes |
//! |---|---|---|
//! | 0 QKV GEMM | input | qkv |
//! | 1 add bias, split heads | qkv | q, k, v |
//! | 2 scores GEMM | q, k | scores |
//! | 3 scale, mask, softmax | scores | scores |
//! | 4 context GEMM | scores, v | context |
//! | 5 merge heads | context | merged |
//! | 6 output GEMM | merged | attention |
//! | 7 add bias, add residual, normalise | attention, input | attention |
//! | 8 intermediate GEMM | attention | intermediate |
//! | 9 add bias, GELU | intermediate | intermediate |
//! | 10 output GEMM | intermediate | output |
//! | 11 add bias, add residual, normalise | output, attention | output |

use turbo_alloc::UsageRecord;

const HIDDEN: usize = 768;
const HEADS: usize = 12;
const INTERMEDIATE: usize = 3072;
const OPS_PER_LAYER: u32 = 12;

/// The activations of `num_layers` for one sequence of `seq_len` tokens, with their names.
pub(crate) fn encoder(num_layers: u32, seq_len: usize) -> Vec<(&'static str, UsageRecord)> {
    let rows = |width: usize| seq_len * width * size_of::<f32>();
    let scores = rows(HEADS * seq_len);
    let mut records = Vec::new();
    for layer in 0..num_layers {
        let mut tensor = |name, first_op: u32, last_op: u32, size: usize| {
            let start = layer * OPS_PER_LAYER;
            records.push((name, UsageRecord { first_op: start + first_op, last_op: start + last_op, size }));
        };
        if layer == 0 {
            tensor("input", 0, 7, rows(HIDDEN));
        }
        tensor("qkv", 0, 1, rows(3 * HIDDEN));
        tensor("q", 1, 2, rows(HIDDEN));
        tensor("k", 1, 2, rows(HIDDEN));
        tensor("v", 1, 4, rows(HIDDEN));
        tensor("scores", 2, 4, scores);
        tensor("context", 4, 5, rows(HIDDEN));
        tensor("merged", 5, 6, rows(HIDDEN));
        tensor("attention", 6, 11, rows(HIDDEN));
        tensor("intermediate", 8, 10, rows(INTERMEDIATE));
        let last_read = if layer + 1 < num_layers { OPS_PER_LAYER + 7 } else { 11 };
        tensor("output", 10, last_read, rows(HIDDEN));
    }
    records
}
