//! Rows of tables by id, and the sum of one, two or three with its layer norm.

use super::{
    ROUNDING, WIDE, WIDTHS,
    numbers::Numbers,
    rig::{Rig, compare, refuses_length, refuses_size},
    twin,
};
use crate::{Embed, KernelError, embed::Lookup, norm::NormWeights};

/// The rows of the three tables, as for words, positions and types.
const TABLE_ROWS: [usize; 3] = [50, 20, 2];
const TOKENS: usize = 7;

/// Embedding lookups.
///
/// # Panics
/// When the device departs from the twin.
pub fn embed<D: Embed>(device: &D) {
    for hidden_size in WIDTHS.into_iter().chain([384]) {
        check(device, hidden_size);
    }
    refuses_wrong_lengths(device);
}

/// Rows of [`super::wide_rows`].
pub(crate) fn wide_rows<D: Embed>(device: &D) {
    for hidden_size in WIDE {
        check(device, hidden_size);
    }
}

fn check<D: Embed>(device: &D, hidden_size: usize) {
    let mut numbers = Numbers::<D::Float>::new(hidden_size);
    let tables = TABLE_ROWS.map(|rows| numbers.values(rows * hidden_size));
    let ids = TABLE_ROWS.map(|rows| {
        let mut ids = numbers.indices(rows, TOKENS);
        (ids[0], ids[1]) = (rows as u32 - 1, 0);
        ids
    });
    let (gain, offset) = (numbers.values(hidden_size), numbers.values(hidden_size));
    let mut rig = Rig::new(device);
    let on_tables = tables.each_ref().map(|table| rig.put(table));
    let on_ids = ids.each_ref().map(|ids| rig.put_u32(ids));
    let (on_gain, on_offset) = (rig.put(&gain), rig.put(&offset));
    let lookups: [_; 3] =
        std::array::from_fn(|i| Lookup { table: on_tables[i].view(), ids: on_ids[i].view() });

    let rows = |i: usize, t: usize| {
        let first = ids[i][t] as usize * hidden_size;
        &tables[i][first..first + hidden_size]
    };
    let out = rig
        .answer(TOKENS * hidden_size, |d, queue, out| d.embed(queue, lookups[0], out))
        .unwrap_or_else(|e| panic!("embed {hidden_size}: {e}"));
    for (t, row) in out.chunks_exact(hidden_size).enumerate() {
        assert_eq!(row, rows(0, t), "embed: row of token {t}, hidden_size {hidden_size}");
    }

    let epsilon = 1e-12f32;
    for count in 1..=TABLE_ROWS.len() {
        let out = rig
            .answer(TOKENS * hidden_size, |d, queue, out| {
                let weights = NormWeights { gain: on_gain.view(), offset: Some(on_offset.view()), epsilon };
                d.embed_sum_layer_norm(queue, &lookups[..count], weights, out)
            })
            .unwrap_or_else(|e| panic!("embed_sum_layer_norm of {count}, {hidden_size}: {e}"));
        for (t, got) in out.chunks_exact(hidden_size).enumerate() {
            // the sums are rounded to f32 before the norm, in this order
            let term = |j: usize| (1..count).fold(rows(0, t)[j], |sum, table| sum + rows(table, t)[j]);
            let sum: Vec<f64> = (0..hidden_size).map(|j| term(j).into()).collect();
            let normal = twin::normalize(&sum, epsilon.into());
            let scaled = |(j, y): (usize, &f64)| y * f64::from(gain[j]) + f64::from(offset[j]);
            let want: Vec<f64> = normal.iter().enumerate().map(scaled).collect();
            // sums of values near 0 in any order: n/4 roundings and some for the norm itself, at outputs up to n
            let relative = ROUNDING * (hidden_size as f64 / 4.0 + 12.0);
            let within = |j: usize| relative * (2.0 + normal[j].abs());
            compare::<D::Float>(("embed_sum_layer_norm", hidden_size, (count, t)), got, &want, within);
        }
    }
}

/// An error names an id that is no row, before anything is written.
pub(super) fn refuses_ids_outside<D: Embed>(device: &D) {
    let mut rig = Rig::new(device);
    let (table, ones) = (rig.put(&[1.0; 12]), rig.put(&[1.0; 3]));
    let (good, bad) = (rig.put_u32(&[0, 3]), rig.put_u32(&[3, 4]));
    let (good, bad) =
        (Lookup { table: table.view(), ids: good.view() }, Lookup { table: table.view(), ids: bad.view() });
    let refused = |answer| {
        assert!(
            matches!(answer, Err(KernelError::Index { index: 4, rows: 4, .. })),
            "embed: expected index 4 outside 4 rows, got {answer:?}"
        );
    };
    refused(rig.answer(6, |d, queue, out| d.embed(queue, bad, out)));
    for lookups in [[bad, good, good], [good, bad, good], [good, good, bad]] {
        refused(rig.answer(6, |d, queue, out| {
            let weights = NormWeights { gain: ones.view(), offset: Some(ones.view()), epsilon: 1e-12 };
            d.embed_sum_layer_norm(queue, &lookups, weights, out)
        }));
    }
}

fn refuses_wrong_lengths<D: Embed>(device: &D) {
    let mut rig = Rig::new(device);
    let (table, ones, two) = (rig.put(&[1.0; 12]), rig.put(&[1.0; 3]), rig.put(&[1.0; 2]));
    let (ids, one_id) = (rig.put_u32(&[0, 1]), rig.put_u32(&[0]));
    let lookup = Lookup { table: table.view(), ids: ids.view() };
    let short = Lookup { table: table.view(), ids: one_id.view() };
    refuses_length("embed: no whole rows", rig.answer(5, |d, q, out| d.embed(q, lookup, out)));
    let ragged = Lookup { table: table.part(0, 11), ids: ids.view() };
    refuses_length("embed: the table has no whole rows", rig.answer(6, |d, q, out| d.embed(q, ragged, out)));
    let answer = rig.answer(6, |d, queue, out| {
        let weights = NormWeights { gain: ones.view(), offset: Some(ones.view()), epsilon: 1e-12 };
        d.embed_sum_layer_norm(queue, &[lookup, short, lookup], weights, out)
    });
    refuses_length("embed_sum_layer_norm: an id is missing", answer);
    let answer = rig.answer(6, |d, queue, out| {
        let weights = NormWeights { gain: ones.view(), offset: Some(two.view()), epsilon: 1e-12 };
        d.embed_sum_layer_norm(queue, &[lookup; 3], weights, out)
    });
    refuses_length("embed_sum_layer_norm: offset too short", answer);
    let answer = rig.answer(6, |d, queue, out| {
        let weights = NormWeights { gain: ones.view(), offset: Some(ones.view()), epsilon: 1e-12 };
        d.embed_sum_layer_norm(queue, &[], weights, out)
    });
    refuses_size("embed_sum_layer_norm: no lookups", answer);
}
