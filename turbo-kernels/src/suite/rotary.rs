//! Rotary positions.

use super::{
    ROUNDING, WIDTHS,
    numbers::Numbers,
    pool::cu_seqlens,
    rig::{Rig, compare, refuses_length, refuses_size},
};
use crate::{Columns, Float, HeadSizes, Layout, Rotary};

/// Lengths of the sequences of a batch; one has no tokens.
const SEQ_LENS: [u32; 4] = [3, 0, 17, 1];
const PADDED_LEN: usize = 19;
/// Rows of the table: as many as the longest sequence.
const POSITIONS: usize = 17;

/// Rotations in both layouts.
///
/// # Panics
/// When the device departs from the twin.
pub fn rotary<D: Rotary>(device: &D) {
    for half in WIDTHS {
        for num_heads in [1, 3] {
            packed(device, HeadSizes { num_heads, head_dim: 2 * half });
            padded(device, HeadSizes { num_heads, head_dim: 2 * half });
        }
    }
    refuses_wrong_sizes(device);
}

fn table<F: Float>(head_dim: usize) -> Vec<f32> {
    Numbers::<F>::new(head_dim).values(POSITIONS * head_dim)
}

/// The result for `x`, whose rows have the given positions (none: padding), and its tolerance.
fn expected<F: Float>(
    heads: HeadSizes,
    x: &[f32],
    positions: impl Iterator<Item = Option<usize>>,
) -> (Vec<f64>, Vec<f64>) {
    let (head_dim, half) = (heads.head_dim, heads.head_dim / 2);
    let table = table::<F>(head_dim);
    let (mut want, mut allowed) = (Vec::new(), Vec::new());
    for (row, position) in x.chunks_exact(heads.width()).zip(positions) {
        let Some(position) = position else {
            want.extend(vec![0.0; row.len()]);
            allowed.extend(vec![0.0; row.len()]);
            continue;
        };
        let angle = |i: usize| f64::from(table[position * head_dim + i]);
        for head in row.chunks_exact(head_dim) {
            for i in 0..head_dim {
                let (cos, sin) = (angle(i % half), angle(half + i % half));
                let (own, other) = (f64::from(head[i]), f64::from(head[(i + half) % head_dim]));
                let sign = if i < half { -1.0 } else { 1.0 };
                want.push(own * cos + sign * other * sin);
                // two products and their sum
                allowed.push(2.0 * ROUNDING * ((own * cos).abs() + (other * sin).abs()));
            }
        }
    }
    (want, allowed)
}

fn packed<D: Rotary>(device: &D, heads: HeadSizes) {
    let sums = cu_seqlens(&SEQ_LENS);
    let rows = sums[SEQ_LENS.len()] as usize;
    let x = Numbers::<D::Float>::new(heads.width()).around(0.0, 3.0, rows * heads.width());
    let positions = SEQ_LENS.into_iter().flat_map(|len| (0..len as usize).map(Some));
    let (want, allowed) = expected::<D::Float>(heads, &x, positions);
    // columns in the middle of wider rows
    let row_stride = heads.width() + 5;
    let mut wide = vec![f32::NAN; rows * row_stride];
    for (row, wide) in x.chunks_exact(heads.width()).zip(wide.chunks_exact_mut(row_stride)) {
        wide[2..2 + heads.width()].copy_from_slice(row);
    }
    let mut rig = Rig::new(device);
    let (x, table, sums) = (rig.put(&wide), rig.put(&table::<D::Float>(heads.head_dim)), rig.put_u32(&sums));
    let out = rig
        .answer(want.len(), |d, queue, out| {
            let layout = Layout::Packed { cu_seqlens: sums.view() };
            let x = Columns { rows: x.view(), first: 2, row_stride };
            d.rotary(queue, heads, layout, x, table.view(), out)
        })
        .unwrap_or_else(|e| panic!("rotary {heads:?}: {e}"));
    compare::<D::Float>(("rotary, packed", heads), &out, &want, |i| allowed[i]);
}

fn padded<D: Rotary>(device: &D, heads: HeadSizes) {
    let rows = SEQ_LENS.len() * PADDED_LEN;
    let mut x = Numbers::<D::Float>::new(heads.width()).around(0.0, 3.0, rows * heads.width());
    let position = |row: usize| {
        let (b, i) = (row / PADDED_LEN, row % PADDED_LEN);
        (i < SEQ_LENS[b] as usize).then_some(i)
    };
    for (row, values) in x.chunks_exact_mut(heads.width()).enumerate() {
        if position(row).is_none() {
            values.fill(f32::NAN);
        }
    }
    let (want, allowed) = expected::<D::Float>(heads, &x, (0..rows).map(position));
    let mut rig = Rig::new(device);
    let (x, table, lens) = (rig.put(&x), rig.put(&table::<D::Float>(heads.head_dim)), rig.put_u32(&SEQ_LENS));
    let out = rig
        .answer(want.len(), |d, queue, out| {
            let layout = Layout::Padded { seq_lens: lens.view(), padded_len: PADDED_LEN };
            d.rotary(queue, heads, layout, Columns::all(x.view(), heads.width()), table.view(), out)
        })
        .unwrap_or_else(|e| panic!("rotary {heads:?}: {e}"));
    compare::<D::Float>(("rotary, padded", heads), &out, &want, |i| allowed[i]);
}

/// Refuses wrong sizes that the host's arguments and the lengths of buffers reveal.
fn refuses_wrong_sizes<D: Rotary>(device: &D) {
    let mut rig = Rig::new(device);
    let (x, table, lens) = (rig.put(&[0.0; 24]), rig.put(&[0.0; 8]), rig.put_u32(&[2, 1]));
    let mut run = |num_heads, head_dim, x_len, row_stride, table_len, out_len| {
        let layout = Layout::Padded { seq_lens: lens.view(), padded_len: 2 };
        rig.answer(out_len, |d, queue, out| {
            let x = Columns { rows: x.part(0, x_len), first: 0, row_stride };
            d.rotary(queue, HeadSizes { num_heads, head_dim }, layout, x, table.part(0, table_len), out)
        })
    };
    assert!(run(1, 4, 16, 4, 8, 16).is_ok(), "rotary: everything fits");
    refuses_length("rotary: x too short", run(1, 4, 15, 4, 8, 16));
    refuses_length("rotary: out too short", run(1, 4, 16, 4, 8, 15));
    refuses_length("rotary: table has no whole rows", run(1, 4, 16, 4, 7, 16));
    refuses_size("rotary: columns leave the row", run(2, 2, 12, 3, 8, 16));
    refuses_size("rotary: odd heads", run(2, 3, 24, 6, 6, 24));
}

/// Refuses short tables, which only a device that reads lengths can do.
pub(super) fn refuses_short_tables<D: Rotary>(device: &D) {
    let mut rig = Rig::new(device);
    let (x, table, sums) = (rig.put(&[0.0; 12]), rig.put(&[0.0; 8]), rig.put_u32(&[0, 3]));
    let answer = rig.answer(12, |d, queue, out| {
        let heads = HeadSizes { num_heads: 1, head_dim: 4 };
        let layout = Layout::Packed { cu_seqlens: sums.view() };
        d.rotary(queue, heads, layout, Columns::all(x.view(), 4), table.view(), out)
    });
    refuses_size("rotary: a sequence is longer than the table", answer);
}
