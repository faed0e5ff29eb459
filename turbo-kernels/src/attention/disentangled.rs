//! Disentangled attention (He et al., "DeBERTa", ICLR 2021, section 3.1): besides the score of a query with a key,
//! there is a score of the query with the key's position, and one of the key with the query's position.
//!
//! Both are products with a row for each relative position, and there are few of these. So they are computed for a
//! whole batch before attention begins, and attention picks from them: one of the query's scores for each key, and one
//! of the key's scores for each query. Along a row of keys the position falls by one, or stays where distances share
//! it; some configurations also skip positions.

use std::ops::Range;

use super::weights::MOST_QUERIES;
use crate::{
    KernelError, lanes,
    simd::{Kernel, Simd},
};

/// How a distance chooses one of `2 · span` relative positions: they count up from the middle for keys before the
/// query, and down for keys behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PositionBuckets {
    /// Positions on either side; 2²³ at most.
    pub span: usize,
    /// Distances from here on have the last position of their side, and those beyond half of the span share the others
    /// by their logarithm. With `None`, each distance has a position of its own, as far as there are positions.
    pub max_distance: Option<usize>,
}

/// A GPU's threads exchange positions as f32, which holds all whole numbers up to twice this.
const MOST_SPAN: usize = 1 << 23;

impl PositionBuckets {
    /// Positions of both sides.
    #[must_use]
    pub fn count(self) -> usize {
        self.span.saturating_mul(2)
    }

    /// The position of a key `distance` tokens behind its query (before it, if negative). Distances beyond the
    /// positions have the last one of their side.
    ///
    /// The steps of the logarithm are rounded to f32, as they were when the published models were trained.
    ///
    /// If [`Self::check`] refuses the numbers, the position means nothing.
    #[must_use]
    pub fn position(self, distance: isize) -> usize {
        let steps = self.steps(distance.unsigned_abs()).min(self.span);
        let position = if distance > 0 { self.span - steps } else { self.span.saturating_add(steps) };
        position.min(self.count().saturating_sub(1))
    }

    /// Positions from the middle to that of a distance; may exceed the span.
    fn steps(self, distance: usize) -> usize {
        let exact = self.span / 2;
        let Some(most) = self.max_distance.filter(|_| distance > exact) else { return distance };
        let ratio = |numerator: f32| f64::from(numerator / exact as f32).ln() as f32;
        let part = ratio(distance as f32) / ratio(most.saturating_sub(1) as f32);
        exact.saturating_add((part * exact.saturating_sub(1) as f32).ceil() as usize)
    }

    /// All positions that keys and queries of a sequence of `len` tokens have to each other.
    #[must_use]
    pub fn within(self, len: usize) -> Range<usize> {
        let most = isize::try_from(len.saturating_sub(1)).unwrap_or(isize::MAX);
        self.position(most)..self.count().min(self.position(-most).saturating_add(1))
    }

    /// Whether distances can have positions with these numbers.
    ///
    /// # Errors
    /// [`KernelError::Size`] with the name of `kernel`.
    pub fn check(self, kernel: &'static str) -> Result<(), KernelError> {
        let size = |argument, expected, got| Err(KernelError::Size { kernel, argument, expected, got });
        let least = if self.max_distance.is_some() { 2 } else { 1 };
        if !(least..=MOST_SPAN).contains(&self.span) {
            return size("span", format!("from {least} to {MOST_SPAN}").into(), self.span);
        }
        match self.max_distance {
            Some(most) if most <= self.span / 2 + 1 => size(
                "max_distance",
                format!("more than {}, half of span and one", self.span / 2 + 1).into(),
                most,
            ),
            _ => Ok(()),
        }
    }
}

/// The scores with positions, and the position of every distance, because finding one takes a logarithm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByPosition<'a> {
    /// `[rows, num_heads · count]`.
    of_queries: &'a [f32],
    of_keys: &'a [f32],
    num_heads: usize,
    /// The number of positions.
    count: usize,
    /// The position of each distance, from `reach` keys behind a query to as many before it, so that positions do not
    /// fall; whole numbers in the bits of f32.
    positions: &'a [f32],
    reach: usize,
    /// Whether no position is skipped: none is more than one behind the next. Where the logarithm of few distances has
    /// many positions, some are skipped.
    passes_none: bool,
}

/// Where queries and keys that meet lie.
#[derive(Clone, Copy)]
pub(crate) struct Meeting {
    pub(crate) head: usize,
    /// The row of the first query, and its position in the sequence.
    pub(crate) query: (usize, usize),
    /// The row of the first key, and its position in the sequence.
    pub(crate) key: (usize, usize),
}

impl<'a> ByPosition<'a> {
    /// Values that [`ByPosition::new`] needs for sequences of up to `most_rows` rows, padding included. The lanes of a
    /// block behind its last query have distances too.
    pub(crate) fn values(most_rows: usize) -> usize {
        2 * (most_rows + MOST_QUERIES) + 1
    }

    /// From checked scores; `scratch` has exactly the values it needs.
    pub(crate) fn new(
        buckets: PositionBuckets,
        [of_queries, of_keys]: [&'a [f32]; 2],
        num_heads: usize,
        scratch: &'a mut [f32],
    ) -> Self {
        let reach = scratch.len() / 2;
        for (distance, position) in (-(reach as isize)..).zip(scratch.iter_mut().rev()) {
            *position = f32::from_bits(buckets.position(distance) as u32);
        }
        let rise = |two: &[f32]| two[1].to_bits() - two[0].to_bits();
        let passes_none = scratch.windows(2).all(|two| rise(two) <= 1);
        Self {
            of_queries,
            of_keys,
            num_heads,
            count: buckets.count(),
            positions: scratch,
            reach,
            passes_none,
        }
    }

    /// The scores of this row's query with each position.
    fn of_query(&self, row: usize, head: usize) -> &'a [f32] {
        &self.of_queries[(row * self.num_heads + head) * self.count..][..self.count]
    }

    /// The scores of this row's key with each position.
    fn of_key(&self, row: usize, head: usize) -> &'a [f32] {
        &self.of_keys[(row * self.num_heads + head) * self.count..][..self.count]
    }

    /// The positions of a key `distance` tokens behind its query, and of the `count - 1` next lower distances.
    #[inline(always)]
    fn positions(&self, distance: isize, count: usize) -> Positions<'a> {
        let first = self.reach.saturating_add_signed(-distance);
        Positions { each: &self.positions[first..first + count], passes_none: self.passes_none }
    }

    /// The biases of the first query with the keys from the first one on, as many as `out` holds.
    pub(crate) fn write(&self, meeting: Meeting, out: &mut [f32]) {
        let Meeting { head, query: (query_row, query), key: (key_row, key) } = meeting;
        let of_query = self.of_query(query_row, head);
        let Some(last) = out.len().checked_sub(1) else { return };
        let positions = self.positions((key + last) as isize - query as isize, out.len());
        for ((number, out), position) in out.iter_mut().enumerate().rev().zip(positions.each()) {
            *out = of_query[position] + self.of_key(key_row + number, head)[position];
        }
    }
}

/// The positions of consecutive distances, at least one.
struct Positions<'a> {
    each: &'a [f32],
    /// As in [`ByPosition`].
    passes_none: bool,
}

impl Positions<'_> {
    #[inline(always)]
    fn each(&self) -> impl Iterator<Item = usize> {
        self.each.iter().map(|position| position.to_bits() as usize)
    }

    /// The positions from the first to the last, if every distance has its own. Where positions are skipped, one that
    /// is shared may make up for a skipped one, so there the answer is always none.
    #[inline(always)]
    fn as_range(&self) -> Option<Range<usize>> {
        let others = self.each.len() - 1;
        let [first, last] = [0, others].map(|at| self.each[at].to_bits() as usize);
        (self.passes_none && last - first == others).then_some(first..last + 1)
    }
}

/// The biases of some keys with some queries, the last key first, a query to a lane.
pub(super) struct WriteBiases<'a> {
    pub(super) scores: &'a ByPosition<'a>,
    pub(super) meeting: Meeting,
    pub(super) queries: usize,
    pub(super) keys: usize,
    /// `[keys][line]`.
    pub(super) to: &'a mut [f32],
    pub(super) line: usize,
    /// [`gathered_values`] of these keys.
    pub(super) gathered: &'a mut [f32],
}

/// Scratch of [`WriteBiases`].
pub(super) const fn gathered_values(keys: usize) -> usize {
    lanes::SQUARE * keys
}

impl Kernel for WriteBiases<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        self.write_of_queries(s);
        self.add_of_keys(s);
    }
}

impl WriteBiases<'_> {
    /// From the last key to the first, positions do not fall, and they rise by one where distances have positions of
    /// their own: there a query's scores are read where they lie.
    #[inline(always)]
    fn write_of_queries<S: Simd>(&mut self, s: S) {
        let Meeting { head, query: (row, position), key: (_, key) } = self.meeting;
        let (keys, last) = (self.keys, key + self.keys - 1);
        for first in (0..self.queries).step_by(lanes::SQUARE) {
            let mut parts = self.gathered.chunks_exact_mut(keys);
            let mut rows: [&[f32]; lanes::SQUARE] = [&[]; lanes::SQUARE];
            for (i, of_query) in rows.iter_mut().enumerate() {
                let query = (first + i).min(self.queries - 1);
                let scores = self.scores.of_query(row + query, head);
                let positions = self.scores.positions(last as isize - (position + query) as isize, keys);
                let part = parts.next().expect("a part for each row of a square");
                *of_query = match positions.as_range() {
                    Some(range) => &scores[range],
                    None => {
                        for (to, position) in part.iter_mut().zip(positions.each()) {
                            *to = scores[position];
                        }
                        part
                    }
                };
            }
            lanes::transpose(s, rows, &mut self.to[first..], self.line);
        }
    }

    /// The same along the queries.
    #[inline(always)]
    fn add_of_keys<S: Simd>(&mut self, s: S) {
        let Meeting { head, query: (_, position), key: (row, key) } = self.meeting;
        for (number, to) in (0..self.keys).rev().zip(self.to.chunks_exact_mut(self.line)) {
            let scores = self.scores.of_key(row + number, head);
            let positions = self.scores.positions((key + number) as isize - position as isize, self.line);
            if let Some(range) = positions.as_range() {
                let scores = scores[range].chunks_exact(S::LANES);
                for (to, scores) in to.chunks_exact_mut(S::LANES).zip(scores) {
                    s.store(s.add(s.load(to), s.load(scores)), to);
                }
            } else {
                for (to, position) in to[..self.queries].iter_mut().zip(positions.each()) {
                    *to += scores[position];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::SupportedIsa;

    /// What `make_log_bucket_position` of the transformers library gives, and its clamps: of DeBERTa-v3, and of positions
    /// that all distances have of their own. Each with the distance of a key before its query.
    #[test]
    fn positions_are_those_of_the_reference() {
        let published = PositionBuckets { span: 256, max_distance: Some(512) };
        let few = PositionBuckets { span: 8, max_distance: Some(64) };
        let own = PositionBuckets { span: 12, max_distance: None };
        for (buckets, distance, before, behind) in [
            (published, 0, 256, 256),
            (published, 1, 257, 255),
            (published, 127, 383, 129),
            (published, 128, 384, 128),
            (published, 129, 385, 127),
            (published, 131, 387, 125),
            (published, 132, 387, 125),
            (published, 200, 425, 87),
            (published, 300, 463, 49),
            (published, 508, 511, 1),
            (published, 511, 511, 1),
            (published, 512, 511, 0),
            (published, 600, 511, 0),
            (few, 4, 12, 4),
            (few, 5, 13, 3),
            (few, 10, 13, 3),
            (few, 11, 14, 2),
            (few, 25, 14, 2),
            (few, 26, 15, 1),
            (few, 63, 15, 1),
            (few, 64, 15, 0),
            (own, 1, 13, 11),
            (own, 11, 23, 1),
            (own, 12, 23, 0),
            (own, 13, 23, 0),
        ] {
            let got = (buckets.position(-distance), buckets.position(distance));
            assert_eq!(got, (before, behind), "{buckets:?}, {distance}");
        }
    }

    #[test]
    fn a_sequence_has_the_positions_of_its_distances() {
        let buckets = PositionBuckets { span: 8, max_distance: Some(64) };
        assert_eq!(buckets.within(0), 8..9);
        for len in 1..80 {
            let most = len as isize - 1;
            let positions = (-most..=most).map(|distance| buckets.position(distance));
            let (least, most) = (positions.clone().min().unwrap(), positions.max().unwrap());
            assert_eq!(buckets.within(len), least..most + 1, "{len}");
        }
    }

    /// A query's scores read where they lie or gathered, in every lane: the plain sum of both.
    #[test]
    fn biases_are_the_sums_of_both_scores() {
        const HEADS: usize = 2;
        for (buckets, len) in [
            (PositionBuckets { span: 64, max_distance: None }, 45),
            (PositionBuckets { span: 16, max_distance: Some(30) }, 45),
            // positions rise by two and more where the logarithm begins, and stay behind that
            (PositionBuckets { span: 32, max_distance: Some(20) }, 90),
            (PositionBuckets { span: 64, max_distance: Some(64) }, 90),
            (PositionBuckets { span: 1, max_distance: None }, 7),
        ] {
            let width = HEADS * buckets.count();
            let [of_queries, of_keys] = [0.5, 0.7]
                .map(|step| (0..len * width).map(|i| (i as f32 * step).sin()).collect::<Vec<f32>>());
            let mut scratch = vec![f32::NAN; ByPosition::values(len)];
            let scores = ByPosition::new(buckets, [&of_queries, &of_keys], HEADS, &mut scratch);
            let meetings =
                [(0, 5, 0, 7), (6, 1, 3, 4), (2, 3, 0, 1), (30, 13, 2, 40), (0, 32, 0, 90), (0, 9, 34, 32)];
            for (query, queries, key, keys) in meetings {
                let (queries, keys) = (queries.min(len - query.min(len)), keys.min(len - key.min(len)));
                if queries == 0 || keys == 0 {
                    continue;
                }
                let meeting = Meeting { head: 1, query: (query, query), key: (key, key) };
                let line = 32;
                let mut to = vec![f32::NAN; keys * line];
                let mut gathered = vec![f32::NAN; gathered_values(keys)];
                for isa in crate::Isa::available() {
                    let (scores, to, gathered) = (&scores, &mut to[..], &mut gathered[..]);
                    SupportedIsa::check(isa).unwrap().run(WriteBiases {
                        scores,
                        meeting,
                        queries,
                        keys,
                        to,
                        line,
                        gathered,
                    });
                }
                for lane in 0..queries {
                    let mut row = vec![f32::NAN; keys];
                    let query = (query + lane, query + lane);
                    scores.write(Meeting { query, ..meeting }, &mut row);
                    for (number, want) in row.into_iter().enumerate() {
                        let got = to[(keys - 1 - number) * line + lane];
                        let position = buckets.position((key + number) as isize - query.0 as isize);
                        let of = |table: &[f32], row: usize| table[row * width + buckets.count() + position];
                        assert_eq!(got, want);
                        assert_eq!(want, of(&of_queries, query.0) + of(&of_keys, key + number));
                    }
                }
            }
        }
    }
}
