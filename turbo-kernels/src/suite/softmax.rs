//! Scale, mask, softmax.

use super::{
    ROUNDING, WIDTHS,
    numbers::Numbers,
    rig::{Rig, compare, refuses_length},
    twin,
};
use crate::{AttentionMask, Softmax, softmax::ScoreShape};

/// Softmax of scores, fused with scale and mask, and the mask alone.
///
/// # Panics
/// When the device departs from the twin.
pub fn softmax<D: Softmax>(device: &D) {
    for keys in WIDTHS.into_iter().chain([257, 500]) {
        let shape = ScoreShape { batch_size: 3, num_heads: 2, queries: 3, keys };
        let lens = [keys as u32, 0, keys.div_ceil(2) as u32];
        for spread in [1.0, 1e4] {
            let scores = Numbers::new(keys).around(0.0, spread, 18 * keys);
            check(device, shape, &scores, None, 1.0);
            check(device, shape, &scores, None, 0.125);
            check(device, shape, &scores, Some(&lens), 0.125);
            masks(device, shape, &scores, &lens);
        }
    }
    special_values(device);
    refuses_wrong_lengths(device);
}

fn check<D: Softmax>(device: &D, shape: ScoreShape, scores: &[f32], lens: Option<&[u32]>, scale: f32) {
    let want = expected(shape, scores, lens, scale);
    let mut rig = Rig::new(device);
    let on_device = rig.put(scores);
    let on_lens = lens.map(|lens| rig.put_u32(lens));
    let out = rig
        .answer(scores.len(), |d, queue, out| {
            let lens = on_lens.as_ref().map(|lens| lens.view());
            d.scale_mask_softmax(queue, shape, on_device.view(), scale, None, lens, AttentionMask::Full, out)
        })
        .unwrap_or_else(|e| panic!("{shape:?}: {e}"));
    // A rounding of scale · score or of the difference to the maximum moves the exponent by that much, absolutely;
    // the exponential, the sum over the keys and the division add the rest. 1e-37: what f32 flushes to zero.
    let most = scores.iter().fold(0f32, |most, v| most.max((v * scale).abs()));
    let relative = ROUNDING * (3.0 * f64::from(most) + shape.keys as f64 + 8.0);
    compare((shape, lens, scale), &out, &want, |i| relative * want[i] + 1e-37);
}

fn expected(shape: ScoreShape, scores: &[f32], lens: Option<&[u32]>, scale: f32) -> Vec<f64> {
    let rows_of_sequence = shape.num_heads * shape.queries;
    let mut want = Vec::new();
    for (i, row) in twin::rows(scores, shape.keys).enumerate() {
        let visible = lens.map_or(shape.keys, |lens| lens[i / rows_of_sequence] as usize);
        let scaled: Vec<f64> = row[..visible].iter().map(|v| v * f64::from(scale)).collect();
        want.extend(twin::softmax(&scaled));
        want.extend(vec![0.0; shape.keys - visible]);
    }
    want
}

fn masks<D: Softmax>(device: &D, shape: ScoreShape, scores: &[f32], lens: &[u32]) {
    let mut rig = Rig::new(device);
    let (on_device, on_lens) = (rig.put(scores), rig.put_u32(lens));
    let out = rig
        .answer(scores.len(), |d, q, out| {
            d.mask(q, shape, on_device.view(), on_lens.view(), AttentionMask::Full, out)
        })
        .unwrap_or_else(|e| panic!("mask, {shape:?}: {e}"));
    for (i, (&got, &score)) in out.iter().zip(scores).enumerate() {
        let visible = lens[i / (shape.num_heads * shape.queries * shape.keys)] as usize;
        let want = if i % shape.keys < visible { score } else { f32::NEG_INFINITY };
        assert!(got == want, "mask, {shape:?}: value {i} is {got}, expected {want}");
    }
}

/// NaN takes its own row unless it is masked; −∞ is a key without weight; a row of them has no weights.
fn special_values<D: Softmax>(device: &D) {
    const KEYS: usize = 19;
    let shape = ScoreShape { batch_size: 1, num_heads: 1, queries: 4, keys: KEYS };
    let mut scores = Numbers::new(5).values(4 * KEYS);
    scores[3] = f32::NAN;
    scores[KEYS + 17] = f32::NAN;
    scores[2 * KEYS..3 * KEYS].fill(f32::NEG_INFINITY);
    scores[3 * KEYS] = f32::NEG_INFINITY;
    check(device, shape, &scores, Some(&[17]), 0.5);
    check(device, shape, &scores, None, 0.5);
}

fn refuses_wrong_lengths<D: Softmax>(device: &D) {
    let shape = ScoreShape { batch_size: 2, num_heads: 1, queries: 2, keys: 3 };
    let mut rig = Rig::new(device);
    let (scores, one, two) = (rig.put(&[0.0; 12]), rig.put_u32(&[3]), rig.put_u32(&[3, 3]));
    let mut run = |case, scores_len, out_len, lens: Option<&super::rig::Placed<D, u32>>| {
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
}
