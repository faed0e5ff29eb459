//! Numbers that are the same on every machine: SplitMix64, seeded by the case and rounded to the device's stored type.

use std::marker::PhantomData;

use super::rig::rounded;
use crate::Float;

/// A stream of numbers that are `F`s, as f32.
pub(super) struct Numbers<F> {
    state: u64,
    float: PhantomData<F>,
}

impl<F: Float> Numbers<F> {
    /// The stream of `seed`.
    pub(super) fn new(seed: usize) -> Self {
        Self { state: seed as u64, float: PhantomData }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A value in `-1..1`, with all 24 bits of an f32 in use.
    fn value(&mut self) -> f32 {
        (self.next() >> 39) as f32 / (1u32 << 24) as f32 - 1.0
    }

    /// `len` values around `center`, at most `spread` away.
    pub(super) fn around(&mut self, center: f32, spread: f32, len: usize) -> Vec<f32> {
        (0..len).map(|_| rounded::<F>(center + spread * self.value())).collect()
    }

    /// `len` values of magnitude 1 at most.
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
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn values_fill_their_range() {
        let values = Numbers::<f32>::new(1).values(10_000);
        let (least, most) = values.iter().fold((0f32, 0f32), |(a, b), &v| (a.min(v), b.max(v)));
        assert!((-1.0..-0.99).contains(&least) && (0.99..1.0).contains(&most), "{least}..{most}");
    }

    #[test]
    fn values_are_of_their_type() {
        let values = Numbers::<f16>::new(1).around(3.0, 2.0, 1000);
        assert!(values.iter().all(|v| f16::from_f32(*v).to_f32() == *v));
        assert!(values.iter().any(|v| bf16::from_f32(*v).to_f32() != *v));
    }
}
