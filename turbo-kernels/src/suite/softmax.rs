//! Scale, relative bias, mask, softmax.

use super::{
    ROUNDING, WIDE, WIDTHS,
    numbers::Numbers,
    rig::{Floats, Placed, Rig, compare, refuses_length, refuses_size, rounded},
    twin,
};
use crate::{AttentionMask, Float, FloatsOn, PositionBuckets, RelativeBias, Softmax, softmax::ScoreShape};

/// Softmax of scores, fused with scale, bias and mask; mask and bias alone.
///
/// # Panics
/// When the device departs from the twin.
pub fn softmax<D: Softmax>(device: &D) {
    for keys in WIDTHS.into_iter().chain([257, 500]) {
        every_step(device, ScoreShape { batch_size: 3, num_heads: 2, queries: 3, keys });
    }
    special_values(device, 19);
    // several warps share a row, and most of them see no key when 17 are left
    special_values(device, 1100);
    huge_scores(device);
    refuses_wrong_lengths(device);
}

/// Rows of [`super::wide_rows`].
pub(crate) fn wide_rows<D: Softmax>(device: &D) {
    for keys in WIDE {
        every_step(device, ScoreShape { batch_size: 3, num_heads: 1, queries: 2, keys });
    }
}

/// Three sequences, the second without a key.
fn every_step<D: Softmax>(device: &D, shape: ScoreShape) {
    let ScoreShape { batch_size, num_heads, queries, keys } = shape;
    let lens = [keys as u32, 0, keys.div_ceil(2) as u32];
    let table = Numbers::<D::Float>::new(3).values(BUCKETS.0 * num_heads);
    for spread in [1.0, 1e4] {
        let len = batch_size * num_heads * queries * keys;
        let scores = Numbers::<D::Float>::new(keys).around(0.0, spread, len);
        let mask = AttentionMask::Full;
        let plain = Step { shape, scale: 1.0, table: &table, biased: false, lens: None, mask };
        plain.check(device, &scores);
        for scale in [0.125, 0.0, -0.7] {
            Step { scale, ..plain }.check(device, &scores);
        }
        for mask in [AttentionMask::Full, AttentionMask::Causal, AttentionMask::Window { reach: 1 }] {
            let masked = Step { scale: 0.125, lens: Some(&lens), mask, ..plain };
            masked.check(device, &scores);
            masked.check_mask(device, &scores, &lens);
            Step { biased: true, ..masked }.check(device, &scores);
        }
        plain.check_bias(device, &scores);
    }
}

/// Buckets and greatest distance of the bias.
const BUCKETS: (usize, usize) = (8, 40);

/// Positions of the disentangled bias, fewer than most rows have keys.
const POSITIONS: PositionBuckets = PositionBuckets { span: 6, max_distance: Some(50) };

/// The steps applied to scores.
#[derive(Clone, Copy, Debug)]
struct Step<'a> {
    shape: ScoreShape,
    scale: f32,
    /// The table of the bias, `[buckets, num_heads]`.
    table: &'a [f32],
    biased: bool,
    lens: Option<&'a [u32]>,
    mask: AttentionMask,
}

impl Step<'_> {
    /// The sequence, head, query and key of a score.
    fn place(&self, i: usize) -> [usize; 4] {
        let ScoreShape { num_heads, queries, keys, .. } = self.shape;
        [i / keys / queries / num_heads, i / keys / queries % num_heads, i / keys % queries, i % keys]
    }

    fn bias(&self, i: usize) -> f32 {
        let [_, head, query, key] = self.place(i);
        let bucket = twin::bucket(key as isize - query as isize, BUCKETS.0, BUCKETS.1);
        self.table[bucket * self.shape.num_heads + head]
    }

    fn is_visible(&self, i: usize) -> bool {
        let [sequence, _, query, key] = self.place(i);
        self.lens.is_none_or(|lens| key < lens[sequence] as usize) && twin::sees(self.mask, query, key)
    }

    fn check<D: Softmax>(&self, device: &D, scores: &[f32]) {
        let want = self.expected(scores);
        let mut rig = Rig::new(device);
        let (on_device, table) = (rig.put(scores), rig.put(self.table));
        let on_lens = self.lens.map(|lens| rig.put_u32(lens));
        let out = rig
            .answer(scores.len(), |d, queue, out| {
                let lens = on_lens.as_ref().map(|lens| lens.view());
                let bias = self.biased.then(|| relative_bias(&table));
                d.scale_mask_softmax(
                    queue,
                    self.shape,
                    on_device.view(),
                    self.scale,
                    bias,
                    lens,
                    self.mask,
                    out,
                )
            })
            .unwrap_or_else(|e| panic!("{self:?}: {e}"));
        // A rounding of scale · score + bias or of the difference to the maximum moves the exponent by that much,
        // absolutely; the exponential, the sum over the keys and the division add the rest. 1e-37: what f32 flushes to
        // zero.
        let most = scores.iter().fold(1f32, |most, v| most.max((v * self.scale).abs()));
        let relative = ROUNDING * (4.0 * f64::from(most) + self.shape.keys as f64 + 9.0);
        compare::<D::Float>(self, &out, &want, |i| relative * want[i] + 1e-37);
    }

    fn expected(&self, scores: &[f32]) -> Vec<f64> {
        let keys = self.shape.keys;
        let mut want = Vec::new();
        for (row, scores) in twin::rows(scores, keys).enumerate() {
            let at = |key: usize| row * keys + key;
            let biased = |key: usize| if self.biased { f64::from(self.bias(at(key))) } else { 0.0 };
            let scaled: Vec<f64> = (0..keys)
                .filter(|&key| self.is_visible(at(key)))
                .map(|key| scores[key] * f64::from(self.scale) + biased(key))
                .collect();
            let mut weights = twin::softmax(&scaled).into_iter();
            want.extend(
                (0..keys)
                    .map(|key| if self.is_visible(at(key)) { weights.next().unwrap_or(0.0) } else { 0.0 }),
            );
        }
        want
    }

    fn check_mask<D: Softmax>(&self, device: &D, scores: &[f32], lens: &[u32]) {
        let mut rig = Rig::new(device);
        let (on_device, on_lens) = (rig.put(scores), rig.put_u32(lens));
        let out = rig
            .answer(scores.len(), |d, q, out| {
                d.mask(q, self.shape, on_device.view(), on_lens.view(), self.mask, out)
            })
            .unwrap_or_else(|e| panic!("mask, {self:?}: {e}"));
        for (i, (&got, &score)) in out.iter().zip(scores).enumerate() {
            let want = if self.is_visible(i) { score } else { f32::NEG_INFINITY };
            assert!(got == want, "mask, {self:?}: value {i} is {got}, expected {want}");
        }
    }

    fn alibi(&self, i: usize) -> f64 {
        let [_, head, query, key] = self.place(i);
        -twin::slope(head, self.shape.num_heads) * key.abs_diff(query) as f64
    }

    fn check_bias<D: Softmax>(&self, device: &D, scores: &[f32]) {
        let mut rig = Rig::new(device);
        let (on_device, table) = (rig.put(scores), rig.put(self.table));
        let out = rig
            .answer(scores.len(), |d, q, out| {
                d.add_relative_bias(q, self.shape, on_device.view(), relative_bias(&table), out)
            })
            .unwrap_or_else(|e| panic!("add_relative_bias, {self:?}: {e}"));
        let sum = |(i, score)| rounded::<D::Float>(score + self.bias(i));
        let want: Vec<f32> = scores.iter().enumerate().map(sum).collect();
        assert_eq!(out, want, "add_relative_bias, {self:?}");
        self.check_alibi(device, scores);
        self.check_disentangled(device, scores);
    }

    /// Checks softmax with the scores of each sequence's queries and keys with positions.
    fn check_disentangled<D: Softmax>(&self, device: &D, scores: &[f32]) {
        let ScoreShape { batch_size, num_heads, queries, keys } = self.shape;
        let width = num_heads * POSITIONS.count();
        let mut numbers = Numbers::<D::Float>::new(7);
        let tables = [queries, keys].map(|rows| numbers.values(batch_size * rows * width));
        let bias = |i: usize| {
            let [sequence, head, query, key] = self.place(i);
            let column = head * POSITIONS.count() + twin::position(key as isize - query as isize, POSITIONS);
            let of_query = tables[0][(sequence * queries + query) * width + column];
            of_query + tables[1][(sequence * keys + key) * width + column]
        };
        let mut rig = Rig::new(device);
        let (on_device, on_tables) = (rig.put(scores), tables.each_ref().map(|table| rig.put(table)));
        let disentangled = || {
            let [of_queries, of_keys] = on_tables.each_ref().map(|table| table.view());
            RelativeBias::Disentangled { of_queries, of_keys, positions: POSITIONS }
        };
        let added = rig
            .answer(scores.len(), |d, q, out| {
                d.add_relative_bias(q, self.shape, on_device.view(), disentangled(), out)
            })
            .unwrap_or_else(|e| panic!("add_relative_bias, disentangled, {self:?}: {e}"));
        let want: Vec<f32> =
            scores.iter().enumerate().map(|(i, score)| rounded::<D::Float>(score + bias(i))).collect();
        assert_eq!(added, want, "add_relative_bias, disentangled, {self:?}");
        let weights = rig
            .answer(scores.len(), |d, q, out| {
                let (bias, mask) = (Some(disentangled()), AttentionMask::Full);
                d.scale_mask_softmax(q, self.shape, on_device.view(), 1.0, bias, None, mask, out)
            })
            .unwrap_or_else(|e| panic!("scale_mask_softmax, disentangled, {self:?}: {e}"));
        let sums: Vec<f64> =
            scores.iter().enumerate().map(|(i, score)| f64::from(*score) + f64::from(bias(i))).collect();
        let most = sums.iter().fold(1.0, |most: f64, sum| most.max(sum.abs()));
        let want: Vec<f64> = sums.chunks(keys.max(1)).flat_map(twin::softmax).collect();
        // a rounding of each sum and of the greatest, and one per key of their sum
        let allowed = ROUNDING * (8.0 * most + 2.0 * keys as f64 + 8.0);
        compare::<D::Float>(("softmax with positions", self), &weights, &want, |_| allowed);
    }

    /// Checks softmax with slopes, in which a device may be off by a few units in the last place of f32.
    fn check_alibi<D: Softmax>(&self, device: &D, scores: &[f32]) {
        let mut rig = Rig::new(device);
        let on_device = rig.put(scores);
        let added = rig
            .answer(scores.len(), |d, q, out| {
                d.add_relative_bias(q, self.shape, on_device.view(), RelativeBias::Alibi, out)
            })
            .unwrap_or_else(|e| panic!("add_relative_bias, alibi, {self:?}: {e}"));
        let parts = |i: usize| (f64::from(scores[i]), self.alibi(i));
        let want: Vec<f64> = (0..scores.len()).map(parts).map(|(score, bias)| score + bias).collect();
        let magnitudes = (0..scores.len()).map(parts).map(|(score, bias)| score.abs() + bias.abs());
        let off = 4.0 * ROUNDING * magnitudes.fold(1.0, f64::max);
        compare::<D::Float>(("alibi", self), &added, &want, |_| off);
        let lens = None::<D::View<'_, u32>>;
        let alibi = Some(RelativeBias::Alibi);
        let weights = rig
            .answer(scores.len(), |d, q, out| {
                let mask = AttentionMask::Full;
                d.scale_mask_softmax(q, self.shape, on_device.view(), 1.0, alibi, lens, mask, out)
            })
            .unwrap_or_else(|e| panic!("scale_mask_softmax, alibi, {self:?}: {e}"));
        let want: Vec<f64> = want.chunks(self.shape.keys.max(1)).flat_map(twin::softmax).collect();
        // the greatest may also be off, and the sum adds a rounding per key
        let allowed = 2.0 * off + ROUNDING * (2.0 * self.shape.keys as f64 + 8.0);
        compare::<D::Float>(("softmax with alibi", self), &weights, &want, |_| allowed);
    }
}

fn relative_bias<D: Softmax>(table: &Floats<D>) -> RelativeBias<FloatsOn<'_, D>> {
    RelativeBias::Buckets { table: table.view(), num_buckets: BUCKETS.0, max_distance: BUCKETS.1 }
}

/// NaN spreads over its own row unless it is masked; −∞ is a key without weight; a row of −∞ has no weights.
fn special_values<D: Softmax>(device: &D, keys: usize) {
    let shape = ScoreShape { batch_size: 1, num_heads: 1, queries: 4, keys };
    let mut scores = Numbers::<D::Float>::new(5).values(4 * keys);
    scores[3] = f32::NAN;
    scores[keys + 17] = f32::NAN;
    scores[2 * keys..3 * keys].fill(f32::NEG_INFINITY);
    scores[3 * keys] = f32::NEG_INFINITY;
    let table = Numbers::<D::Float>::new(3).values(BUCKETS.0);
    let mask = AttentionMask::Full;
    let plain = Step { shape, scale: 0.5, table: &table, biased: false, lens: None, mask };
    plain.check(device, &scores);
    Step { lens: Some(&[17]), ..plain }.check(device, &scores);
    Step { biased: true, ..plain }.check(device, &scores);
}

/// Two keys so far above the others that these have no weight: their order survives, and nothing overflows on the way.
fn huge_scores<D: Softmax>(device: &D) {
    const KEYS: usize = 45;
    // f16 ends at 65504; the difference of two f32 must still be one
    let huge = rounded::<D::Float>(D::Float::GREATEST.min(1e30) / 4.0);
    let mut scores = vec![0.0; KEYS];
    scores.iter_mut().step_by(2).for_each(|score| *score = -huge);
    (scores[7], scores[40]) = (huge, huge);
    let shape = ScoreShape { batch_size: 1, num_heads: 1, queries: 1, keys: KEYS };
    let mut rig = Rig::new(device);
    let on_device = rig.put(&scores);
    let mut want = vec![0.0; KEYS];
    (want[7], want[40]) = (0.5, 0.5);
    for scale in [1.0, 0.125] {
        let out = rig
            .answer(KEYS, |d, q, out| {
                let mask = AttentionMask::Full;
                d.scale_mask_softmax(q, shape, on_device.view(), scale, None, None, mask, out)
            })
            .unwrap_or_else(|e| panic!("huge scores: {e}"));
        // the same exponential twice, their sum, and a quotient
        compare::<D::Float>(("huge scores", scale), &out, &want, |_| 4.0 * ROUNDING);
    }
}

fn refuses_wrong_lengths<D: Softmax>(device: &D) {
    let shape = ScoreShape { batch_size: 2, num_heads: 1, queries: 2, keys: 3 };
    let mut rig = Rig::new(device);
    let (scores, one, two) = (rig.put(&[0.0; 12]), rig.put_u32(&[3]), rig.put_u32(&[3, 3]));
    let mut run = |case, scores_len, out_len, lens: Option<&Placed<D, u32>>| {
        let answer = rig.answer(out_len, |d, queue, out| {
            let lens = lens.map(|l| l.view());
            d.scale_mask_softmax(
                queue,
                shape,
                scores.part(0, scores_len),
                1.0,
                None,
                lens,
                AttentionMask::Full,
                out,
            )
        });
        refuses_length(case, answer);
    };
    run("softmax: scores too short", 11, 12, None);
    run("softmax: out too short", 12, 11, None);
    run("softmax: a length is missing", 12, 12, Some(&one));
    let masked =
        rig.answer(11, |d, q, out| d.mask(q, shape, scores.view(), two.view(), AttentionMask::Full, out));
    refuses_length("mask: out too short", masked);
    let masked =
        rig.answer(12, |d, q, out| d.mask(q, shape, scores.view(), one.view(), AttentionMask::Full, out));
    refuses_length("mask: a length is missing", masked);
    let table = rig.put(&[0.0; 8]);
    let mut biased = |len, num_buckets, max_distance| {
        let bias = RelativeBias::Buckets { table: table.part(0, len), num_buckets, max_distance };
        rig.answer(12, |d, q, out| d.add_relative_bias(q, shape, scores.view(), bias, out))
    };
    assert!(biased(8, 8, 16).is_ok(), "add_relative_bias: everything fits");
    refuses_length("add_relative_bias: table too short", biased(7, 8, 16));
    refuses_size("add_relative_bias: too few buckets", biased(2, 2, 16));
    let positions = PositionBuckets { span: 1, max_distance: None };
    let mut disentangled = |of_queries, of_keys, positions| {
        let [of_queries, of_keys] = [of_queries, of_keys].map(|len| table.part(0, len));
        let bias = RelativeBias::Disentangled { of_queries, of_keys, positions };
        rig.answer(12, |d, q, out| d.add_relative_bias(q, shape, scores.view(), bias, out))
    };
    // rows of two queries and three keys of each sequence
    refuses_length("add_relative_bias: a row of queries is missing", disentangled(7, 8, positions));
    refuses_length("add_relative_bias: rows of keys are missing", disentangled(8, 8, positions));
    let none = PositionBuckets { span: 0, max_distance: None };
    refuses_size("add_relative_bias: no positions", disentangled(8, 8, none));
}
