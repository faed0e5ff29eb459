//! Requests of varying length, drawn from a seed.

use std::ops::RangeInclusive;

/// `count` lengths, uniform in `lens`, the same for the same seed on every machine (SplitMix64; Steele et al., 2014).
pub fn uniform(lens: &RangeInclusive<usize>, count: usize, seed: u64) -> Vec<usize> {
    let width = lens.end() - lens.start() + 1;
    let mut state = seed;
    let next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let z = z ^ (z >> 31);
        lens.start() + (z as usize) % width
    };
    std::iter::repeat_with(next).take(count).collect()
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
}
