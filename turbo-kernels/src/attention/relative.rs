//! Biases on attention scores by relative position: buckets of distances (T5, Raffel et al. 2020, section 2.1), a slope
//! per head (ALiBi, Press et al. 2021), or scores of queries and keys with positions ([`super::disentangled`]).

use super::disentangled::{ByPosition, PositionBuckets};
use crate::{
    KernelError,
    device::{FloatsOn, Values},
};

/// A bias on scores that depends on the head and on how far the key is from the query.
#[derive(Clone, Copy, Debug)]
pub enum RelativeBias<V> {
    /// T5's and MPNet's: distances on either side share buckets as they grow ([`relative_bucket`]); each head has one
    /// bias per bucket.
    Buckets {
        /// `[num_buckets, num_heads]`.
        table: V,
        /// Buckets of both sides together, at least 4.
        num_buckets: usize,
        /// Distances from this one on share the last bucket of their side; more than a quarter of the buckets.
        max_distance: usize,
    },
    /// Attention with linear biases, the same on both sides: the distance times the negative of [`alibi_slope`]. It is
    /// computed in f32 whatever a device stores: products of slopes and distances in thousands have too many digits for
    /// narrower types.
    Alibi,
    /// DeBERTa's: the score of the query with the position of the key, plus that of the key with the position of the
    /// query, which is the same position. Neither is scaled.
    Disentangled {
        /// `[rows of queries, num_heads · positions]`.
        of_queries: V,
        /// `[rows of keys, num_heads · positions]`.
        of_keys: V,
        /// How a distance chooses the position.
        positions: PositionBuckets,
    },
}

/// A relative bias in memory of device `D`.
pub type RelativeBiasOn<'a, D> = RelativeBias<FloatsOn<'a, D>>;

/// The bucket of a key `distance` tokens behind its query (before it, if negative), of `num_buckets` for both sides.
///
/// The first half of the buckets is for keys up to the query, the second for those behind it. Within a half, distances
/// below half of its buckets have a bucket each; those beyond share the rest by their logarithm, up to `max_distance`.
/// The logarithm's steps are rounded to f32, as they were when the published models were trained.
///
/// Source: Raffel et al., JMLR 21 (2020), section 2.1; the bidirectional form. `num_buckets` is at least 4,
/// `max_distance` more than `num_buckets / 4`; other numbers give a bucket below `num_buckets.max(1)` that means
/// nothing.
#[must_use]
pub fn relative_bucket(distance: isize, num_buckets: usize, max_distance: usize) -> usize {
    let of_side = num_buckets / 2;
    let side = if distance > 0 { of_side } else { 0 };
    let (distance, exact) = (distance.unsigned_abs(), of_side / 2);
    if distance < exact || exact == 0 {
        return side + distance.min(of_side.saturating_sub(1));
    }
    let ln = |x: f64| x.ln() as f32;
    let part = ln(distance as f64 / exact as f64) / ln(max_distance as f64 / exact as f64);
    let beyond = (part * (of_side - exact) as f32) as usize;
    side + exact.saturating_add(beyond).min(of_side - 1)
}

/// How steeply the biases of `head` fall with the distance: powers of two, from 2⁻⁸ᐟⁿ in equal steps down to 2⁻⁸ for n
/// heads. If the number of heads is no power of two, n is the next lower one, and the remaining heads have every other
/// slope of twice as many heads.
///
/// Source: Press, Smith and Lewis, "Train Short, Test Long", ICLR 2022 (arXiv 2108.12409), section 3, and the code that was
/// published with it for other numbers of heads.
#[must_use]
pub fn alibi_slope(head: usize, num_heads: usize) -> f32 {
    let even = num_heads.checked_ilog2().map_or(1.0, |log2| f64::exp2(log2.into()));
    let number = head as f64;
    let step = if number < even { number + 1.0 } else { number - even + 0.5 };
    (-8.0 * step / even).exp2() as f32
}

impl<V> RelativeBias<V> {
    /// The same bias with other tables, as many of them as it has.
    #[cfg(any(feature = "testing", test))]
    pub(crate) fn with_tables<W>(self, [first, second]: [W; 2]) -> RelativeBias<W> {
        match self {
            Self::Buckets { num_buckets, max_distance, .. } => {
                RelativeBias::Buckets { table: first, num_buckets, max_distance }
            }
            Self::Alibi => RelativeBias::Alibi,
            Self::Disentangled { positions, .. } => {
                RelativeBias::Disentangled { of_queries: first, of_keys: second, positions }
            }
        }
    }

    /// Whether its tables fit `num_heads` heads, and `rows` rows of queries and of keys.
    ///
    /// # Errors
    /// [`KernelError::Length`] for a table of another size, [`KernelError::Size`] for invalid buckets.
    pub(crate) fn check(
        &self,
        kernel: &'static str,
        num_heads: usize,
        rows: [usize; 2],
    ) -> Result<(), KernelError>
    where
        V: Values,
    {
        let size = |argument, expected, got| Err(KernelError::Size { kernel, argument, expected, got });
        match self {
            Self::Alibi => Ok(()),
            Self::Buckets { num_buckets, .. } if *num_buckets < 4 => {
                size("num_buckets", "at least 4".into(), *num_buckets)
            }
            Self::Buckets { num_buckets, max_distance, .. } if *max_distance <= num_buckets / 4 => {
                let expected = format!("more than {}, a quarter of num_buckets", num_buckets / 4);
                size("max_distance", expected.into(), *max_distance)
            }
            Self::Buckets { table, num_buckets, .. } => {
                let expected = num_buckets.saturating_mul(num_heads);
                KernelError::check_length(kernel, "relative bias", expected, table.len())
            }
            Self::Disentangled { of_queries, of_keys, positions } => {
                positions.check(kernel)?;
                let width = num_heads.saturating_mul(positions.count());
                let expected = rows.map(|rows| rows.saturating_mul(width));
                KernelError::check_length(kernel, "scores of queries", expected[0], of_queries.len())?;
                KernelError::check_length(kernel, "scores of keys", expected[1], of_keys.len())
            }
        }
    }
}

/// A bias as the kernels of a GPU take it.
#[cfg(any(feature = "cuda", feature = "testing", test))]
pub(crate) struct BiasArguments<V> {
    /// Which bias it is, one of the constants of common.cuh that begin with `BIAS`.
    pub(crate) kind: u32,
    /// The table of buckets, or the scores of queries.
    pub(crate) table: Option<V>,
    /// The scores of keys.
    pub(crate) of_keys: Option<V>,
    /// Buckets of both sides, or the span of positions.
    pub(crate) num_buckets: u32,
    /// The greatest number stands for all beyond it, which no distance between keys exceeds. For positions, 0 says that
    /// each distance has its own.
    pub(crate) max_distance: u32,
}

#[cfg(any(feature = "cuda", feature = "testing", test))]
impl<V> BiasArguments<V> {
    const NONE: u32 = 0;
    const BUCKETS: u32 = 1;
    const ALIBI: u32 = 2;
    const DISENTANGLED: u32 = 3;

    /// The arguments of a checked bias, or of none.
    pub(crate) fn of(bias: Option<RelativeBias<V>>) -> Self {
        let narrow = |size| u32::try_from(size).unwrap_or(u32::MAX);
        let (kind, [table, of_keys], [num_buckets, max_distance]) = match bias {
            None => (Self::NONE, [None, None], [0; 2]),
            Some(RelativeBias::Buckets { table, num_buckets, max_distance }) => {
                (Self::BUCKETS, [Some(table), None], [num_buckets, max_distance])
            }
            Some(RelativeBias::Alibi) => (Self::ALIBI, [None, None], [0; 2]),
            Some(RelativeBias::Disentangled { of_queries, of_keys, positions }) => {
                let PositionBuckets { span, max_distance } = positions;
                (Self::DISENTANGLED, [Some(of_queries), Some(of_keys)], [span, max_distance.unwrap_or(0)])
            }
        };
        Self { kind, table, of_keys, num_buckets: narrow(num_buckets), max_distance: narrow(max_distance) }
    }
}

/// A relative bias as the CPU's kernels read it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Biases<'a> {
    /// The same for every query and key that are equally far apart.
    ByDistance(ByDistance<'a>),
    /// A bias of its own for each query and key.
    ByPosition(ByPosition<'a>),
}

impl<'a> Biases<'a> {
    /// Values that [`Biases::new`] needs for sequences of up to `most_rows` rows, padding included.
    pub(crate) fn values(bias: &RelativeBias<&[f32]>, num_heads: usize, most_rows: usize) -> usize {
        match bias {
            RelativeBias::Disentangled { .. } => ByPosition::values(most_rows),
            _ => ByDistance::values(bias, num_heads, most_rows),
        }
    }

    /// Writes what a checked `bias` has for all distances into `scratch`, which has exactly the values it needs.
    pub(crate) fn new(
        bias: &RelativeBias<&'a [f32]>,
        num_heads: usize,
        most_rows: usize,
        scratch: &'a mut [f32],
    ) -> Self {
        match *bias {
            RelativeBias::Disentangled { of_queries, of_keys, positions } => {
                Self::ByPosition(ByPosition::new(positions, [of_queries, of_keys], num_heads, scratch))
            }
            _ => Self::ByDistance(ByDistance::new(bias, most_rows, scratch)),
        }
    }
}

/// A relative bias by distance, so that a row of scores finds its biases side by side.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ByDistance<'a> {
    /// Buckets are spread out, because finding one takes a logarithm.
    Spread {
        /// `[num_heads, 2 · reach + 1]`.
        values: &'a [f32],
        /// Distances beyond this one have its bias.
        reach: usize,
    },
    /// Slopes of heads: a product is no slower than reading its result.
    Slopes(&'a [f32]),
}

/// Distances that buckets tell apart among `max_seq_len` tokens.
fn reach(max_distance: usize, max_seq_len: usize) -> usize {
    max_distance.min(max_seq_len)
}

impl<'a> ByDistance<'a> {
    /// Values that [`ByDistance::new`] needs.
    fn values(bias: &RelativeBias<&[f32]>, num_heads: usize, max_seq_len: usize) -> usize {
        match *bias {
            RelativeBias::Buckets { max_distance, .. } => {
                num_heads * (2 * reach(max_distance, max_seq_len) + 1)
            }
            _ => num_heads,
        }
    }

    /// Writes a checked `bias` into `scratch`, which has exactly the values it needs.
    fn new(bias: &RelativeBias<&[f32]>, max_seq_len: usize, scratch: &'a mut [f32]) -> Self {
        let RelativeBias::Buckets { table, num_buckets, max_distance } = *bias else {
            let num_heads = scratch.len();
            scratch.iter_mut().enumerate().for_each(|(head, slope)| *slope = alibi_slope(head, num_heads));
            return Self::Slopes(scratch);
        };
        let reach = reach(max_distance, max_seq_len);
        let width = 2 * reach + 1;
        let num_heads = scratch.len() / width;
        for (i, distance) in (-(reach as isize)..=reach as isize).enumerate() {
            let bucket = relative_bucket(distance, num_buckets, max_distance);
            for head in 0..num_heads {
                scratch[head * width + i] = table[bucket * num_heads + head];
            }
        }
        Self::Spread { values: scratch, reach }
    }

    /// The biases of `head` for the distances `first`, `first + 1`, … as many as `out` holds.
    pub(crate) fn write(&self, head: usize, first: isize, out: &mut [f32]) {
        let (values, reach) = match *self {
            Self::Spread { values, reach } => (values, reach),
            Self::Slopes(slopes) => return write_slope(slopes[head], first, out),
        };
        let width = 2 * reach + 1;
        let values = &values[head * width..][..width];
        let below = first.saturating_add_unsigned(reach).min(0).unsigned_abs().min(out.len());
        let (far, out) = out.split_at_mut(below);
        far.fill(values[0]);
        let start = first.saturating_add_unsigned(reach).max(0).unsigned_abs().min(width);
        let (near, far) = out.split_at_mut(out.len().min(width - start));
        near.copy_from_slice(&values[start..][..near.len()]);
        far.fill(values[width - 1]);
    }

    /// The biases of `head` for the distances `first`, `first − 1`, … as many as `out` holds.
    pub(crate) fn write_falling(&self, head: usize, first: isize, out: &mut [f32]) {
        self.write(head, first.saturating_add(1).saturating_sub_unsigned(out.len()), out);
        out.reverse();
    }
}

/// Distances are counted in i32, which is exact: lengths are u32, and no memory holds 2³¹ tokens.
fn write_slope(slope: f32, first: isize, out: &mut [f32]) {
    for (distance, out) in (first as i32..).zip(out) {
        *out = -slope * distance.abs() as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slopes that are listed in section 3 of the paper, and those of the numbers of heads of published models.
    #[test]
    fn slopes_are_powers_of_two() {
        let slopes = |num_heads: usize| (0..num_heads).map(move |head| alibi_slope(head, num_heads));
        let of_8 = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let of_16: Vec<f32> = (1..=16).map(|head| head as f32 / 2.0).collect();
        let of_12 = [&of_8[..], &[0.5, 1.5, 2.5, 3.5]].concat();
        for (num_heads, exponents) in [
            (8, &of_8[..]),
            (16, &of_16),
            (12, &of_12),
            (6, &[2.0, 4.0, 6.0, 8.0, 1.0, 3.0]),
            (3, &[4.0, 8.0, 2.0]),
            (1, &[8.0]),
        ] {
            let expected = exponents.iter().map(|exponent| f64::from(-exponent).exp2() as f32);
            assert!(
                slopes(num_heads).eq(expected),
                "{num_heads}: {:?}",
                slopes(num_heads).collect::<Vec<_>>()
            );
        }
        assert_eq!(slopes(0).count(), 0);
    }

    #[test]
    fn slopes_fall_on_both_sides() {
        let mut scratch = vec![f32::NAN; ByDistance::values(&RelativeBias::Alibi, 6, 9000)];
        let slopes = ByDistance::new(&RelativeBias::Alibi, 9000, &mut scratch);
        for (head, first, len) in [(0, 0, 1), (4, -8191, 16383), (5, -3, 0), (5, 17, 5)] {
            let expected: Vec<f32> = (first..first + len)
                .map(|distance: isize| -alibi_slope(head, 6) * distance.unsigned_abs() as f32)
                .collect();
            let mut out = vec![f32::NAN; expected.len()];
            slopes.write(head, first, &mut out);
            assert_eq!(out, expected);
            slopes.write_falling(head, first + len - 1, &mut out);
            assert!(out.iter().rev().eq(&expected));
        }
    }

    /// Buckets of the published sizes, from the definition in exact logarithms.
    #[test]
    fn buckets_grow_by_powers() {
        let bucket = |distance| relative_bucket(distance, 32, 128);
        for distance in 0..8 {
            assert_eq!(bucket(-distance), distance as usize);
        }
        // eight buckets from 8 to 128, √2 wide: 8, 11.3, 16, 22.6, 32, 45.3, 64, 90.5
        for (last, expected) in [(11, 8), (15, 9), (22, 10), (31, 11), (45, 12), (63, 13), (90, 14)] {
            assert_eq!((bucket(-last), bucket(-last - 1)), (expected, expected + 1), "{last}");
            assert_eq!((bucket(last), bucket(last + 1)), (16 + expected, 17 + expected), "{last}");
        }
        assert_eq!((bucket(-1_000_000), bucket(1), bucket(isize::MAX)), (15, 17, 31));
    }

    #[test]
    fn biases_lie_side_by_side() {
        let table: Vec<f32> = (0..64).map(|i| i as f32).collect();
        let bias = RelativeBias::Buckets { table: &table[..], num_buckets: 32, max_distance: 20 };
        for max_seq_len in [1, 5, 20, 60] {
            let mut scratch = vec![f32::NAN; ByDistance::values(&bias, 2, max_seq_len)];
            let spread = ByDistance::new(&bias, max_seq_len, &mut scratch);
            let most = max_seq_len as isize - 1;
            for first in -most..=most {
                for len in 0..=(most - first + 1) as usize {
                    let mut out = vec![f32::NAN; len];
                    spread.write(1, first, &mut out);
                    for (distance, &got) in (first..).zip(&out) {
                        assert_eq!(got, table[2 * relative_bucket(distance, 32, 20) + 1], "{distance}");
                    }
                    let mut falling = vec![f32::NAN; len];
                    spread.write_falling(1, first + len as isize - 1, &mut falling);
                    assert!(falling.iter().rev().eq(&out));
                }
            }
        }
    }

    #[test]
    fn numbers_without_meaning_do_not_panic() {
        for num_buckets in 0..6 {
            for max_distance in 0..4 {
                for distance in [isize::MIN, -3, 0, 1, isize::MAX] {
                    let bucket = relative_bucket(distance, num_buckets, max_distance);
                    assert!(bucket < num_buckets.max(1), "{distance}: {bucket} of {num_buckets}");
                }
            }
        }
    }
}
