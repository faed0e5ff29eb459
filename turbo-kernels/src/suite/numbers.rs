//! Numbers that are the same on every machine: SplitMix64, seeded by the case.

/// A stream of numbers.
pub(super) struct Numbers(u64);

impl Numbers {
    /// The stream of `seed`.
    pub(super) fn new(seed: usize) -> Self {
        Self(seed as u64)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A value in `-1..1`, with all 24 bits of an f32 in use.
    fn value(&mut self) -> f32 {
        (self.next() >> 39) as f32 / (1u32 << 24) as f32 - 1.0
    }

    /// `len` values around `center`, at most `spread` away.
    pub(super) fn around(&mut self, center: f32, spread: f32, len: usize) -> Vec<f32> {
        (0..len).map(|_| center + spread * self.value()).collect()
    }

    /// `len` values in `-1..1`.
    pub(super) fn values(&mut self, len: usize) -> Vec<f32> {
        self.around(0.0, 1.0, len)
    }

    /// `len` indices below `bound`.
    pub(super) fn indices(&mut self, bound: usize, len: usize) -> Vec<u32> {
        (0..len).map(|_| (self.next() % bound as u64) as u32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Numbers;

    #[test]
    fn values_fill_their_range() {
        let values = Numbers::new(1).values(10_000);
        let (least, most) = values.iter().fold((0f32, 0f32), |(a, b), &v| (a.min(v), b.max(v)));
        assert!((-1.0..-0.99).contains(&least) && (0.99..1.0).contains(&most), "{least}..{most}");
    }
}
