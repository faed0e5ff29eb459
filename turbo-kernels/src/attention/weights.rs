//! From scores to weights: a stretch of keys, with a block of queries in the lanes, so that every step is lane by lane.
//!
//! The greatest score so far is kept for each query, and exponentials are relative to it. Where a later stretch of keys
//! holds a greater score, what was summed before is scaled down to it. Stretches are counted from the start of the
//! sequence, so the result depends only on the query and the keys that it sees.
//!
//! Exponentials are of base 2, and the scale is part of their argument: `2^(c·score − c·greatest)` with
//! `c = scale · log₂ e`, in one multiply-add. Its second product is rounded, which changes all weights of a query by
//! one factor. From 2³¹ on exponentials would have no room for that factor, so giant scores are brought near 0 first.
//!
//! Source: Milakov and Gimelshein, arXiv 1805.02867; stretches of keys as the blocks of Dao et al., NeurIPS 2022.

use std::ops::Range;

use super::{AttentionMask, ahead::Ahead, product::join};
use crate::{math, simd::Simd};

/// Queries of the widest block: two of the longest vectors.
pub(super) const MOST_QUERIES: usize = 32;
/// Greatest scores whose exponents are beyond this are giants: up to here, rounding an exponent changes weights by a
/// factor of two at most.
const GIANT: f32 = 16_777_216.0;

/// How a score becomes the argument of an exponential.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    /// Factor on a score, in powers of two.
    factor: f32,
    /// Whether scores are multiplied before the greatest is found: the greatest score is not the greatest result where
    /// a bias is added, or where the factor is not positive.
    first: bool,
}

impl Scale {
    pub(super) fn new(scale: f32, biased: bool) -> Scale {
        let factor = (f64::from(scale) * std::f64::consts::LOG2_E) as f32;
        Scale { factor, first: biased || !(factor > 0.0 && factor < f32::INFINITY) }
    }

    /// Whether [`ScoreGrid::adjust`] has to be called, whatever the mask.
    pub(super) fn comes_first(self) -> bool {
        self.first
    }

    /// Factor on the scores that [`ScoreGrid::adjust`] leaves.
    fn rest(self) -> f32 {
        if self.first { 1.0 } else { self.factor }
    }
}

/// What is known of the queries of a block, a query to a lane.
pub(super) struct State<'a> {
    /// Their greatest score, −∞ before the first.
    pub(super) greatest: &'a mut [f32],
    /// The sum of their weights, 0 before the first.
    pub(super) totals: &'a mut [f32],
}

/// Scores of a stretch of keys and a block of queries, which become weights.
pub(super) struct ScoreGrid<'a> {
    /// `[keys][queries]`, lines of `VECTORS` vectors.
    pub(super) lines: &'a mut [f32],
    /// The keys that any query of the block sees, counted from the first line.
    pub(super) seen: Range<usize>,
}

/// What is added to scaled scores.
#[derive(Clone, Copy)]
pub(super) struct LineBiases<'a> {
    /// The biases of the last seen key, a query to a lane, then those of the keys before it, down to the first.
    pub(super) values: &'a [f32],
    /// Values from one key to the next: 1 where the distance alone counts, so that a key has the biases of the key
    /// behind it, moved by a query.
    pub(super) line: usize,
}

/// Which keys each query sees, counted from the first line of a grid.
pub(super) struct Visible {
    starts: [f32; MOST_QUERIES],
    ends: [f32; MOST_QUERIES],
}

impl Visible {
    /// For the queries from position `query` on and the lines from key `first` on, of `keys` keys.
    pub(super) fn new(mask: AttentionMask, query: usize, first: usize, keys: usize) -> Visible {
        let (mut starts, mut ends) = ([0.0; MOST_QUERIES], [0.0; MOST_QUERIES]);
        for (lane, (start, end)) in starts.iter_mut().zip(&mut ends).enumerate() {
            let visible = mask.visible(query + lane, keys);
            // a stretch has few keys, so numbers that f32 rounds lie far outside it
            *start = visible.start.saturating_sub(first) as f32;
            *end = visible.end.saturating_sub(first) as f32;
        }
        Visible { starts, ends }
    }
}

impl ScoreGrid<'_> {
    /// Prepares scores for the choice of the greatest: scaled if `scale` says so, with their biases, and −∞ where a
    /// query does not see a key. Gives the greatest of each query.
    #[inline(always)]
    pub(super) fn adjust<S: Simd, const VECTORS: usize>(
        &mut self,
        s: S,
        scale: Scale,
        biases: Option<LineBiases<'_>>,
        visible: Option<&Visible>,
    ) -> [f32; MOST_QUERIES] {
        let line = VECTORS * S::LANES;
        let (factor, log2_e) = (s.splat(scale.factor), s.splat(std::f32::consts::LOG2_E));
        let hidden = s.splat(f32::NEG_INFINITY);
        let mut greatest = [hidden; VECTORS];
        for key in self.seen.clone() {
            let number = s.splat(key as f32);
            for (i, greatest) in greatest.iter_mut().enumerate() {
                let at = &mut self.lines[key * line + i * S::LANES..][..S::LANES];
                let mut x = s.load(at);
                if scale.first {
                    x = match biases {
                        None => s.mul(x, factor),
                        Some(LineBiases { values, line }) => {
                            let bias = s.load(&values[(self.seen.end - 1 - key) * line + i * S::LANES..]);
                            s.mul_add(x, factor, s.mul(bias, log2_e))
                        }
                    };
                }
                if let Some(Visible { starts, ends }) = visible {
                    let (start, end) = (s.load(&starts[i * S::LANES..]), s.load(&ends[i * S::LANES..]));
                    x = s.select(s.less(number, start), hidden, s.select(s.less(number, end), x, hidden));
                }
                s.store(x, at);
                *greatest = s.max(x, *greatest); // forgets NaN, which comes back as a weight
            }
        }
        let mut of_queries = [f32::NEG_INFINITY; MOST_QUERIES];
        for (greatest, to) in greatest.into_iter().zip(of_queries.chunks_exact_mut(S::LANES)) {
            s.store(greatest, to);
        }
        of_queries
    }

    /// Replaces scores by weights, or by words of two weights where products are of words, and adds the weights to
    /// `state`; gives the factor on all that came before. Exponentials leave time to prefetch what is `ahead`.
    #[inline(always)]
    pub(super) fn weigh<S: Simd, const VECTORS: usize>(
        &mut self,
        s: S,
        scale: Scale,
        greatest: &[f32; MOST_QUERIES],
        state: &mut State<'_>,
        mut ahead: Ahead,
    ) -> [f32; MOST_QUERIES] {
        let factor = s.splat(scale.rest());
        let zero = s.splat(0.0);
        let (mut giants, mut shifts) = ([zero; VECTORS], [zero; VECTORS]);
        let mut before = [1.0; MOST_QUERIES];
        let mut farthest = zero;
        for i in 0..VECTORS {
            let lanes = i * S::LANES..(i + 1) * S::LANES;
            let old = s.load(&state.greatest[lanes.clone()]);
            let greatest = s.max(s.load(&greatest[lanes.clone()]), old);
            s.store(greatest, &mut state.greatest[lanes.clone()]);
            // where nothing is seen yet, −∞ would be subtracted from itself
            let seen = s.less(s.splat(f32::NEG_INFINITY), greatest);
            let scaled = s.select(seen, s.mul(greatest, factor), zero);
            farthest = s.max(s.abs(scaled), farthest);
            let is_giant = s.less(s.splat(GIANT), s.abs(scaled));
            giants[i] = s.select(is_giant, greatest, zero);
            shifts[i] = s.sub(zero, s.select(is_giant, zero, scaled));
            // the product is rounded as in the shift, so that an old score that is still the greatest gives 1
            let old = s.mul(s.sub(old, giants[i]), factor);
            s.store(math::exp2(s, s.add(old, shifts[i])), &mut before[lanes]);
        }
        if s.reduce_max(farthest) > GIANT {
            self.take_off(s, giants);
        }
        let mut sums = [zero; VECTORS];
        let exponent = Exponent { factor, shifts };
        if S::DOT_BF16 {
            self.replace_by_words(s, exponent, &mut sums, &mut ahead);
        } else {
            self.replace(s, exponent, &mut sums, &mut ahead);
        }
        ahead.ask_for_rest(s);
        for (i, sum) in sums.into_iter().enumerate() {
            let lanes = i * S::LANES..(i + 1) * S::LANES;
            let (total, before) = (s.load(&state.totals[lanes.clone()]), s.load(&before[lanes.clone()]));
            s.store(s.mul_add(total, before, sum), &mut state.totals[lanes]);
        }
        before
    }
}

/// How a score of one of `VECTORS` vectors of queries becomes the argument of its exponential.
#[derive(Clone, Copy)]
struct Exponent<S: Simd, const VECTORS: usize> {
    factor: S::F32,
    shifts: [S::F32; VECTORS],
}

impl ScoreGrid<'_> {
    /// Subtracts `of_queries` from the scores of each query; it is 0 for most.
    #[inline(always)]
    fn take_off<S: Simd, const VECTORS: usize>(&mut self, s: S, of_queries: [S::F32; VECTORS]) {
        let line = VECTORS * S::LANES;
        for line in self.lines[self.seen.start * line..self.seen.end * line].chunks_exact_mut(line) {
            for (at, off) in line.chunks_exact_mut(S::LANES).zip(of_queries) {
                s.store(s.sub(s.load(at), off), at);
            }
        }
    }

    /// Replaces scores by weights, which it adds to `sums`.
    #[inline(always)]
    fn replace<S: Simd, const VECTORS: usize>(
        &mut self,
        s: S,
        Exponent { factor, shifts }: Exponent<S, VECTORS>,
        sums: &mut [S::F32; VECTORS],
        ahead: &mut Ahead,
    ) {
        let line = VECTORS * S::LANES;
        for at in self.lines[self.seen.start * line..self.seen.end * line].chunks_exact_mut(line) {
            ahead.ask(s);
            for (i, sum) in sums.iter_mut().enumerate() {
                let at = &mut at[i * S::LANES..(i + 1) * S::LANES];
                let weight = math::exp2(s, s.mul_add(s.load(at), factor, shifts[i]));
                s.store(weight, at);
                *sum = s.add(*sum, weight);
            }
        }
    }

    /// [`ScoreGrid::replace`] by words of two weights, the word of keys `2i` and `2i + 1` in line `i`; a key that is
    /// not seen has the weight 0. An exponential that is rounded to bf16 need not be exact.
    #[inline(always)]
    fn replace_by_words<S: Simd, const VECTORS: usize>(
        &mut self,
        s: S,
        Exponent { factor, shifts }: Exponent<S, VECTORS>,
        sums: &mut [S::F32; VECTORS],
        ahead: &mut Ahead,
    ) {
        let line = VECTORS * S::LANES;
        for word in self.seen.start / 2..self.seen.end.div_ceil(2) {
            ahead.ask(s);
            for (i, sum) in sums.iter_mut().enumerate() {
                let mut weights = [s.splat(0.0); 2];
                for (key, weight) in (2 * word..).zip(&mut weights) {
                    if self.seen.contains(&key) {
                        let score = s.load(&self.lines[key * line + i * S::LANES..]);
                        *weight = math::rough_exp2(s, s.mul_add(score, factor, shifts[i]));
                        *sum = s.add(*sum, *weight);
                    }
                }
                s.store(join(s, weights[0], weights[1]), &mut self.lines[word * line + i * S::LANES..]);
            }
        }
    }
}

impl State<'_> {
    /// The inverse of each sum of weights, or 0 where no key counts: none is visible, or all are −∞.
    #[inline(always)]
    pub(super) fn inverses<S: Simd>(&self, s: S) -> [f32; MOST_QUERIES] {
        let mut inverses = [0.0; MOST_QUERIES];
        for (inverse, total) in inverses.chunks_exact_mut(S::LANES).zip(self.totals.chunks_exact(S::LANES)) {
            let total = s.load(total);
            // NaN stays NaN
            s.store(s.select(s.less(s.splat(0.0), total), s.div(s.splat(1.0), total), total), inverse);
        }
        inverses
    }
}
