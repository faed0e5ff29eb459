//! How large chunks are and how long they are kept.

use crate::AllocError;

/// When a chunk that plans no longer use is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// By the first plan that does not use it, as in the paper's system: the footprint is least, but lengths that
    /// alternate allocate again each time.
    Paper,
    /// By the last of this many consecutive plans that did not use it (the paper's "maximum
    /// inference idle times"). Zero and one act as [`Policy::Paper`].
    RetainFor {
        /// Consecutive plans without use.
        plans: u32,
    },
}

impl Policy {
    /// Idle plans after which a chunk is released.
    pub(crate) fn idle_limit(self) -> u32 {
        match self {
            Policy::Paper => 1,
            Policy::RetainFor { plans } => plans.max(1),
        }
    }
}

/// What a planner is built from; the default has the paper's values and 256-byte alignment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannerConfig {
    /// When idle chunks are given back.
    pub policy: Policy,
    /// The smallest chunk, in bytes; at least 1.
    pub chunk_bytes: usize,
    /// A new chunk holds this many times the record that needed it; finite, at least 1.
    pub scale: f64,
    /// Every offset and every chunk size is a multiple of this many bytes; a power of two.
    /// The paper aligns nothing; vector loads and cuBLAS want 256.
    pub alignment: usize,
}

impl Default for PlannerConfig {
    fn default() -> Self {
        Self { policy: Policy::Paper, chunk_bytes: 2 << 20, scale: 1.2, alignment: 256 }
    }
}

impl PlannerConfig {
    /// Refuses values that no plan could follow.
    pub(crate) fn validate(&self) -> Result<(), AllocError> {
        if !self.alignment.is_power_of_two() {
            return Err(AllocError::Alignment { alignment: self.alignment });
        }
        if self.chunk_bytes == 0 || self.chunk_bytes.checked_next_multiple_of(self.alignment).is_none() {
            return Err(AllocError::ChunkBytes { chunk_bytes: self.chunk_bytes });
        }
        if !(self.scale.is_finite() && self.scale >= 1.0) {
            return Err(AllocError::Scale { scale: self.scale });
        }
        Ok(())
    }

    /// Bytes of the chunk that is appended for a record of `size` bytes: `max(chunk_bytes,
    /// ceil(size · scale))`, rounded up to the alignment. None when no `usize` holds it.
    pub(crate) fn new_chunk_bytes(&self, size: usize) -> Option<usize> {
        // 1.2 is a little less than 12/10 in binary, by less than half a unit in the last place of
        // any product, so that an exact product such as 2457600 · 1.2 does not gain a byte here.
        let scaled = (size as f64 * self.scale).ceil();
        if scaled >= usize::MAX as f64 {
            return None;
        }
        // `size` once more: beyond 2^53 an f64 may lie below it
        (scaled as usize).max(size).max(self.chunk_bytes).checked_next_multiple_of(self.alignment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_chunks_are_scaled_and_aligned() {
        let paper = PlannerConfig::default();
        let tight = PlannerConfig { chunk_bytes: 1, scale: 1.0, ..paper };
        let cases = [
            (paper, 0, Some(2_097_152)),
            (paper, 614_400, Some(2_097_152)),
            (paper, 1_747_626, Some(2_097_152)), // 2097151.2 bytes still fit
            (paper, 1_747_627, Some(2_097_408)), // 2097152.4 do not
            (paper, 2_457_600, Some(2_949_120)), // 1.2 times, exactly
            (tight, 0, Some(256)),
            (tight, 257, Some(512)),
            (tight, (1 << 53) + 1, Some((1 << 53) + 256)),
            (tight, usize::MAX, None),
            (paper, usize::MAX - 4096, None),
        ];
        for (config, size, bytes) in cases {
            assert_eq!(config.new_chunk_bytes(size), bytes, "{size} bytes under {config:?}");
        }
    }

    #[test]
    fn impossible_configs_are_refused() {
        let good = PlannerConfig::default();
        assert!(good.validate().is_ok());
        let cases = [
            (PlannerConfig { alignment: 0, ..good }, "alignment must be a power of two, got 0"),
            (PlannerConfig { alignment: 96, ..good }, "alignment must be a power of two, got 96"),
            (
                PlannerConfig { chunk_bytes: 0, ..good },
                "chunk_bytes must be 1 or more and leave room to align, got 0",
            ),
            (PlannerConfig { scale: 0.9, ..good }, "scale must be finite and 1 or more, got 0.9"),
            (PlannerConfig { scale: f64::NAN, ..good }, "scale must be finite and 1 or more, got NaN"),
            (PlannerConfig { scale: f64::INFINITY, ..good }, "scale must be finite and 1 or more, got inf"),
        ];
        for (config, message) in cases {
            assert_eq!(config.validate().unwrap_err().to_string(), message);
        }
    }
}
