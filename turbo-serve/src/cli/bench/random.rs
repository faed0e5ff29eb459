//! The numbers that CPython's `random.Random(seed)` gives: benches of other engines draw their lengths from it.
//!
//! The generator is MT19937 (Matsumoto and Nishimura, 1998), seeded with its `init_by_array` by the 32-bit digits of
//! the seed. `randint` takes the top bits of one output and draws again until they are in range, as
//! `Random._randbelow_with_getrandbits` does.

/// Words of state.
const N: usize = 624;
/// Distance of the word that is mixed in.
const M: usize = 397;

/// A seeded generator.
pub(super) struct Random {
    state: [u32; N],
    /// Words of `state` that were given out.
    used: usize,
}

impl Random {
    /// As `random.Random(seed)`.
    pub(super) fn new(seed: u64) -> Self {
        let (low, high) = (seed as u32, (seed >> 32) as u32);
        let digits = [low, high];
        Self { state: state_of(if high == 0 { &digits[..1] } else { &digits }), used: N }
    }

    /// As `randint(low, high)`: uniform, both ends included.
    ///
    /// # Panics
    /// When `low > high`, or the range is all of `u32`.
    pub(super) fn randint(&mut self, low: u32, high: u32) -> u32 {
        let width = (high - low).checked_add(1).expect("a range of lengths or ids is below 2³² wide");
        let bits = u32::BITS - width.leading_zeros();
        loop {
            let drawn = self.next() >> (u32::BITS - bits);
            if drawn < width {
                return low + drawn;
            }
        }
    }

    fn next(&mut self) -> u32 {
        if self.used == N {
            self.refill();
        }
        let mut word = self.state[self.used];
        self.used += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    fn refill(&mut self) {
        for i in 0..N {
            let joined = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
            let twist = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + M) % N] ^ (joined >> 1) ^ twist;
        }
        self.used = 0;
    }
}

/// `init_by_array`: every digit of the key reaches every word.
fn state_of(key: &[u32]) -> [u32; N] {
    let mut state = [19_650_218_u32; N];
    for i in 1..N {
        state[i] = mixed(&state, i - 1, 1_812_433_253).wrapping_add(i as u32);
    }
    let mut at = 1;
    for round in 0..N.max(key.len()) {
        let digit = round % key.len();
        let word = state[at] ^ mixed(&state, at - 1, 1_664_525);
        state[at] = word.wrapping_add(key[digit]).wrapping_add(digit as u32);
        at = following(&mut state, at);
    }
    for _ in 1..N {
        state[at] = (state[at] ^ mixed(&state, at - 1, 1_566_083_941)).wrapping_sub(at as u32);
        at = following(&mut state, at);
    }
    state[0] = 0x8000_0000;
    state
}

fn mixed(state: &[u32; N], word: usize, factor: u32) -> u32 {
    (state[word] ^ (state[word] >> 30)).wrapping_mul(factor)
}

/// The word after `at`, round and round; word 0 is a copy of the last.
fn following(state: &mut [u32; N], at: usize) -> usize {
    if at + 1 < N {
        return at + 1;
    }
    state[0] = state[N - 1];
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each row is what `python3 -c "import random; random.seed(SEED); …"` printed.
    #[test]
    fn lengths_are_those_of_cpython() {
        let cases: [(u64, u32, u32, &[u32]); 5] = [
            (
                0,
                5,
                500,
                &[
                    437, 202, 393, 460, 220, 25, 137, 499, 266, 253, 212, 475, 406, 429, 160, 500, 249, 188,
                    303, 461,
                ],
            ),
            (1, 2, 100, &[19, 74, 99, 10, 34, 17, 65, 99, 59, 62]),
            ((1 << 32) + 7, 1, 512, &[231, 368, 352, 64, 393, 51, 67, 356, 82, 440]),
            (u64::MAX, 5, 500, &[16, 132, 178, 321, 113, 238, 319, 53]),
            (1, 1000, 30521, &[5402, 19651, 28768, 27288, 26027, 3067, 9358, 4863, 17234, 25935]),
        ];
        for (seed, low, high, expected) in cases {
            let mut random = Random::new(seed);
            let drawn: Vec<u32> = expected.iter().map(|_| random.randint(low, high)).collect();
            assert_eq!(drawn, expected, "seed {seed}, {low} to {high}");
        }
    }

    /// A range of one value costs draws too: `random.seed(123456789)`, three times 7, then `randint(1, 4)`.
    #[test]
    fn a_range_of_one_value_is_drawn() {
        let mut random = Random::new(123_456_789);
        assert_eq!([(); 3].map(|()| random.randint(7, 7)), [7; 3]);
        assert_eq!([(); 10].map(|()| random.randint(1, 4)), [4, 4, 3, 4, 4, 2, 1, 3, 2, 1]);
    }

    /// The last of 700 outputs of seed 5: beyond the first block of state.
    #[test]
    fn the_state_is_refilled() {
        let mut random = Random::new(5);
        let outputs: Vec<u32> = (0..700).map(|_| random.next()).collect();
        assert_eq!(outputs[697..], [525_517_128, 941_594_729, 2_639_495_804]);
    }
}
