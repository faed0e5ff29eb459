//! Requests of varying length, drawn from a seed.

use std::ops::RangeInclusive;

/// `count` lengths, uniform in `lens`, the same for the same seed on every machine.
pub fn uniform(lens: &RangeInclusive<usize>, count: usize, seed: u64) -> Vec<usize> {
    let width = lens.end() - lens.start() + 1;
    SplitMix(seed).take(count).map(|z| lens.start() + (z as usize) % width).collect()
}

/// Gaps between the arrivals of a Poisson process of rate 1, without end; the same for the same seed.
pub fn gaps(seed: u64) -> impl Iterator<Item = f64> {
    // an `f64` holds 53 bits; the half keeps the logarithm finite
    SplitMix(seed).map(|z| -(((z >> 11) as f64 + 0.5) / (1_u64 << 53) as f64).ln())
}

/// Ranks below `count`, without end, the same for the same seed. Rank r (from zero) comes about as often as 1/(r + 1):
/// logarithms of ranks are uniform.
///
/// # Panics
/// When there is nothing to choose from.
pub fn zipf(count: usize, seed: u64) -> impl Iterator<Item = usize> {
    assert!(count > 0, "expected something to choose from");
    let widest = ((count + 1) as f64).ln();
    SplitMix(seed).map(move |z| {
        let place = (z >> 11) as f64 / (1_u64 << 53) as f64;
        ((place * widest).exp() as usize - 1).min(count - 1)
    })
}

/// Pseudorandom numbers of 64 bits (SplitMix64; Steele et al., 2014).
pub(crate) struct SplitMix(pub(crate) u64);

impl Iterator for SplitMix {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(z ^ (z >> 31))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_stay_in_their_range_and_depend_on_the_seed() {
        let lens = uniform(&(5..=500), 1000, 0);
        assert!(lens.iter().all(|len| (5..=500).contains(len)));
        assert!(lens.iter().min() < Some(&15) && lens.iter().max() > Some(&490));
        assert_eq!(lens, uniform(&(5..=500), 1000, 0));
        assert_ne!(lens, uniform(&(5..=500), 1000, 1));
    }

    #[test]
    fn a_rank_is_as_frequent_as_its_inverse() {
        let count = 1000;
        let mut seen = vec![0_u32; count];
        zipf(count, 7).take(200_000).for_each(|rank| seen[rank] += 1);
        let all = ((count + 1) as f64).ln();
        for ranks in [0..1, 1..2, 2..10, 10..100, 100..1000] {
            let found = f64::from(seen[ranks.clone()].iter().sum::<u32>()) / 200_000.0;
            let expected = ((ranks.end + 1) as f64 / (ranks.start + 1) as f64).ln() / all;
            assert!((found - expected).abs() < 0.006, "{ranks:?}: {found}, expected {expected}");
        }
        assert!(zipf(1, 3).take(100).all(|rank| rank == 0));
        assert!(zipf(count, 1).take(20).eq(zipf(count, 1).take(20)));
    }

    #[test]
    fn gaps_are_one_on_average_and_as_scattered_as_that() {
        let gaps: Vec<f64> = gaps(3).take(100_000).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // Standard errors of 0.003 and 0.009.
        assert!((mean - 1.0).abs() < 0.015 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        assert!(gaps.iter().all(|gap| gap.is_finite() && *gap > 0.0));
    }
}
