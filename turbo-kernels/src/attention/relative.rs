//! Biases on attention scores by relative position: buckets of distances (T5, Raffel et al. 2020, section 2.1).

use crate::{KernelError, device::FloatsOn};

/// A bias on scores that depends on the head and on how far the key is from the query: T5's and MPNet's.
///
/// Distances on either side share buckets as they grow ([`relative_bucket`]); each head has one bias per bucket.
#[derive(Clone, Copy, Debug)]
pub struct RelativeBias<V> {
    /// `[num_buckets, num_heads]`.
    pub table: V,
    /// Buckets of both sides together, at least 4.
    pub num_buckets: usize,
    /// From this distance on all share the last bucket of their side; more than a quarter of the buckets.
    pub max_distance: usize,
}

/// A relative bias in memory of device `D`.
pub type RelativeBiasOn<'a, D> = RelativeBias<FloatsOn<'a, D>>;

/// The bucket of a key `distance` tokens behind its query (before it, if negative), of `num_buckets` for both sides.
///
/// The first half of the buckets is for keys up to the query, the second for those behind it. Within a half, distances
/// below half of its buckets have a bucket each; those beyond share the rest by their logarithm, up to `max_distance`.
/// As the published models were trained, the logarithm's steps are rounded to f32.
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

impl RelativeBias<&[f32]> {
    /// # Errors
    /// As of [`RelativeBias::check_table`].
    pub(crate) fn check(&self, kernel: &'static str, num_heads: usize) -> Result<(), KernelError> {
        self.check_table(kernel, num_heads, self.table.len())
    }
}

impl<V> RelativeBias<V> {
    /// Whether `values` values are the table of `num_heads` heads.
    ///
    /// # Errors
    /// [`KernelError::Length`] for a table of another size, [`KernelError::Size`] for buckets that are none.
    pub(crate) fn check_table(
        &self,
        kernel: &'static str,
        num_heads: usize,
        values: usize,
    ) -> Result<(), KernelError> {
        let size = |argument, expected, got| Err(KernelError::Size { kernel, argument, expected, got });
        if self.num_buckets < 4 {
            return size("num_buckets", "at least 4".into(), self.num_buckets);
        }
        if self.max_distance <= self.num_buckets / 4 {
            let expected = format!("more than {}, a quarter of num_buckets", self.num_buckets / 4);
            return size("max_distance", expected.into(), self.max_distance);
        }
        let expected = self.num_buckets.saturating_mul(num_heads);
        KernelError::check_length(kernel, "relative bias", expected, values)
    }
}

/// A relative bias spread out by distance, so that a row of scores finds its biases side by side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByDistance<'a> {
    /// `[num_heads, 2 · reach + 1]`.
    values: &'a [f32],
    /// Distances beyond have the bias of this one.
    reach: usize,
}

impl<'a> ByDistance<'a> {
    /// Distances that are told apart among `max_seq_len` tokens.
    fn reach(bias: &RelativeBias<&[f32]>, max_seq_len: usize) -> usize {
        bias.max_distance.min(max_seq_len)
    }

    /// Values that [`ByDistance::new`] needs.
    pub(crate) fn values(bias: &RelativeBias<&[f32]>, num_heads: usize, max_seq_len: usize) -> usize {
        num_heads * (2 * Self::reach(bias, max_seq_len) + 1)
    }

    /// Spreads out a checked `bias` in `scratch`, which has exactly the values it needs.
    pub(crate) fn new(bias: &RelativeBias<&[f32]>, max_seq_len: usize, scratch: &'a mut [f32]) -> Self {
        let reach = Self::reach(bias, max_seq_len);
        let width = 2 * reach + 1;
        let num_heads = scratch.len() / width;
        for (i, distance) in (-(reach as isize)..=reach as isize).enumerate() {
            let bucket = relative_bucket(distance, bias.num_buckets, bias.max_distance);
            for head in 0..num_heads {
                scratch[head * width + i] = bias.table[bucket * num_heads + head];
            }
        }
        Self { values: scratch, reach }
    }

    /// The biases of `head` for the distances `first`, `first + 1`, … as many as `out` holds.
    pub(crate) fn write(&self, head: usize, first: isize, out: &mut [f32]) {
        let width = 2 * self.reach + 1;
        let values = &self.values[head * width..][..width];
        let below = first.saturating_add_unsigned(self.reach).min(0).unsigned_abs().min(out.len());
        let (far, out) = out.split_at_mut(below);
        far.fill(values[0]);
        let start = first.saturating_add_unsigned(self.reach).max(0).unsigned_abs().min(width);
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let bias = RelativeBias { table: &table[..], num_buckets: 32, max_distance: 20 };
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
