//! From scores to weights, in the tile that the next product reads.

use std::ops::Range;

use crate::{gemm::RUN, math, simd::Simd, softmax::inverse_or_zero};

/// Lanes of the longest vectors.
const MOST_LANES: usize = 16;
/// Zeros, then ones: read from the right place, it tells the first lanes from the others.
const EDGE: [f32; 2 * MOST_LANES] = {
    let mut edge = [0.0; 2 * MOST_LANES];
    let mut lane = MOST_LANES;
    while lane < edge.len() {
        edge[lane] = 1.0;
        lane += 1;
    }
    edge
};

/// A row of a tile of scores. The tile begins with a key whose number is a multiple of every vector's length, so a key
/// has its lane whatever else the tile holds, and sums have one order.
pub(super) struct Scores<'a> {
    /// `[keys / RUN][rows][RUN]`, as [`crate::gemm::pack_tile`] packs.
    pub(super) tile: &'a mut [f32],
    /// Rows of the tile.
    pub(super) rows: usize,
    /// Which of them.
    pub(super) row: usize,
}

impl Scores<'_> {
    /// Replaces the scores of the keys `visible` by `e^(scale·score + bias − greatest)` and the others of `counted` by
    /// 0; gives the inverse of the sum, or 0 where no key counts: none is visible, or all are −∞.
    ///
    /// `biases` are those of the keys from the first of the tile on.
    #[inline(always)]
    pub(super) fn weigh<S: Simd>(
        &mut self,
        s: S,
        visible: Range<usize>,
        counted: Range<usize>,
        scale: f32,
        biases: Option<&[f32]>,
    ) -> f32 {
        if visible.is_empty() {
            self.fill(counted, 0.0);
            return 0.0;
        }
        // the vectors that hold a visible key
        let vectors = visible.start / S::LANES..visible.end.div_ceil(S::LANES);
        let keys = vectors.start * S::LANES..vectors.end * S::LANES;
        self.fill(counted.start..keys.start, 0.0);
        self.fill(keys.end..counted.end, 0.0);
        let most = self.scale(s, vectors.clone(), &visible, scale, biases);
        // −∞ − −∞ is NaN, so a row without keys ends here; `max` forgets NaN, which must not end with the others
        if most == f32::NEG_INFINITY && !self.holds_nan(s, vectors.clone()) {
            self.fill(keys, 0.0);
            return 0.0;
        }
        let most = s.splat(most);
        let mut sum = s.splat(0.0);
        for vector in vectors {
            let at = self.at::<S>(vector);
            let e = math::exp_nonpositive(s, s.sub(s.load(&self.tile[at..]), most));
            s.store(e, &mut self.tile[at..]);
            sum = s.add(sum, e);
        }
        inverse_or_zero(s.reduce_sum(sum))
    }

    /// Replaces scores by `scale·score + bias`, two roundings, and what is not visible by −∞; gives the greatest.
    #[inline(always)]
    fn scale<S: Simd>(
        &mut self,
        s: S,
        vectors: Range<usize>,
        visible: &Range<usize>,
        scale: f32,
        biases: Option<&[f32]>,
    ) -> f32 {
        let factor = s.splat(scale);
        let mut most = s.splat(f32::NEG_INFINITY);
        for vector in vectors {
            let (at, first) = (self.at::<S>(vector), vector * S::LANES);
            let mut x = s.mul(s.load(&self.tile[at..]), factor);
            if let Some(biases) = biases {
                x = s.add(x, s.load(&biases[first..]));
            }
            if first < visible.start || first + S::LANES > visible.end {
                let hidden = s.splat(f32::NEG_INFINITY);
                let before = visible.start.saturating_sub(first);
                let behind = (first + S::LANES).saturating_sub(visible.end);
                x = s.select(s.less(s.load(&EDGE[MOST_LANES - before..]), s.splat(0.5)), hidden, x);
                x = s.select(
                    s.less(s.splat(0.5), s.load(&EDGE[MOST_LANES - S::LANES + behind..])),
                    hidden,
                    x,
                );
            }
            s.store(x, &mut self.tile[at..]);
            most = s.max(most, x);
        }
        s.reduce_max(most)
    }

    #[inline(always)]
    fn holds_nan<S: Simd>(&self, s: S, vectors: Range<usize>) -> bool {
        let mut sum = s.splat(0.0);
        for vector in vectors {
            // −∞, which the others are, adds to −∞
            sum = s.add(sum, s.load(&self.tile[self.at::<S>(vector)..]));
        }
        s.reduce_sum(sum).is_nan()
    }

    /// Where vector `vector` of the row begins.
    #[inline(always)]
    fn at<S: Simd>(&self, vector: usize) -> usize {
        let key = vector * S::LANES;
        (key / RUN * self.rows + self.row) * RUN + key % RUN
    }

    /// Puts `value` in the places of `keys`.
    #[inline(always)]
    fn fill(&mut self, keys: Range<usize>, value: f32) {
        for key in keys {
            self.tile[(key / RUN * self.rows + self.row) * RUN + key % RUN] = value;
        }
    }
}
