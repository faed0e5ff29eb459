//! The lengths of the paper's workload.

/// Lengths uniform in 5..=500, the paper's variable-length workload (§6.2.2). Its seed and generator
/// are Python's; these come from a 64-bit linear congruential generator, and are the same everywhere.
pub(crate) fn mixed_lengths(n: usize) -> Vec<usize> {
    let mut state = 0u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        5 + ((state >> 33) % 496) as usize
    };
    (0..n).map(|_| next()).collect()
}
