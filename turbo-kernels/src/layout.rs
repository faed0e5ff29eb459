//! How sequences of different lengths lie in one tensor: packed, or padded to the longest.

/// How the sequences of a batch share one tensor of rows. `V` is a device view of `u32`.
#[derive(Clone, Copy, Debug)]
pub enum Layout<V> {
    /// `[batch_size, padded_len, ..]`; row `i` of a sequence is a token while `i < seq_lens[b]`, padding after.
    Padded {
        /// Real tokens of each sequence, `[batch_size]`.
        seq_lens: V,
        /// Rows of each sequence.
        padded_len: usize,
    },
    /// `[total_tokens, ..]`; sequence `b` is rows `cu_seqlens[b]..cu_seqlens[b + 1]`.
    Packed {
        /// Prefix sums, `[batch_size + 1]`, the first 0.
        cu_seqlens: V,
    },
}
