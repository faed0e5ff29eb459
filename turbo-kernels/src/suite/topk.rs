//! The greatest values of rows. They are copies, so they are compared bit for bit.

use super::{
    WIDTHS,
    numbers::Numbers,
    rig::{Rig, refuses_length, refuses_size},
};
use crate::{KernelError, TopK, device::Float};

/// Rows of each case; odd, so that no pairing of rows comes out even.
const ROWS: usize = 5;

/// The greatest values, from one to as many as there may be.
///
/// # Panics
/// When the device departs from a sort.
pub fn top_k<D: TopK>(device: &D) {
    for columns in WIDTHS.into_iter().chain([300, 2047, 2049, 9000]) {
        for k in [1, 2, 5, 31, 32, 33, 64].into_iter().filter(|k| *k <= columns) {
            let x = Numbers::<D::Float>::new(columns).around(0.0, 100.0, ROWS * columns);
            check(device, &x, columns, k);
        }
    }
    equal_values_stand_in_order(device);
    special_values(device);
    refuses_wrong_sizes(device);
}

fn check<D: TopK>(device: &D, x: &[f32], columns: usize, k: usize) {
    let (values, indices) =
        answer(device, x, columns, k).unwrap_or_else(|e| panic!("top_k {columns}, {k}: {e}"));
    for (row, x) in x.chunks_exact(columns).enumerate() {
        let want = sorted(x);
        let (values, indices) = (&values[row * k..][..k], &indices[row * k..][..k]);
        assert_eq!(indices, &want[..k], "top_k: row {row} of {columns} columns, k {k}");
        for (value, column) in values.iter().zip(indices) {
            let want = x[*column as usize];
            let same = value.to_bits() == want.to_bits() || (value.is_nan() && want.is_nan());
            assert!(same, "top_k: {value} is not {want}, column {column} of row {row}");
        }
    }
}

/// Columns by value, the greatest first; NaN before numbers; a stable sort keeps equal ones in order.
fn sorted(x: &[f32]) -> Vec<u32> {
    let mut columns: Vec<u32> = (0..x.len() as u32).collect();
    let value = |column: &u32| x[*column as usize];
    columns.sort_by(|a, b| {
        let (a, b) = (value(a), value(b));
        b.is_nan().cmp(&a.is_nan()).then(b.partial_cmp(&a).unwrap_or(std::cmp::Ordering::Equal))
    });
    columns
}

/// Values and columns.
fn answer<D: TopK>(
    device: &D,
    x: &[f32],
    columns: usize,
    k: usize,
) -> Result<(Vec<f32>, Vec<u32>), KernelError> {
    let len = x.len() / columns * k;
    sized_answer(device, x, columns, k, [len, len])
}

/// [`answer`] with outputs of these lengths; the columns lie between guards, too.
fn sized_answer<D: TopK>(
    device: &D,
    x: &[f32],
    columns: usize,
    k: usize,
    [values_len, indices_len]: [usize; 2],
) -> Result<(Vec<f32>, Vec<u32>), KernelError> {
    const AROUND: u32 = 123_456_789;
    const GUARD: usize = 3;
    let mut rig = Rig::new(device);
    let x = rig.put(x);
    let mut indices = vec![AROUND; indices_len + 2 * GUARD];
    let values = rig.answer(values_len, |d, queue, values| {
        let mut block = d.allocate(size_of_val(&indices[..]))?;
        d.upload(queue, &indices, d.view_mut(&mut block, 0, indices.len())?)?;
        let out = d.view_mut(&mut block, GUARD * size_of::<u32>(), indices_len)?;
        let result = d.top_k(queue, x.view(), columns, k, values, out);
        d.download(queue, d.view(&block, 0, indices.len())?, &mut indices)?;
        result
    });
    let guards = [&indices[..GUARD], &indices[GUARD + indices_len..]].concat();
    assert_eq!(guards, [AROUND; 2 * GUARD], "top_k wrote beside its columns");
    values.map(|values| (values, indices[GUARD..][..indices_len].to_vec()))
}

/// Checks rows in which every value equals another.
fn equal_values_stand_in_order<D: TopK>(device: &D) {
    const COLUMNS: usize = 700;
    let few: Vec<f32> = (0..ROWS * COLUMNS).map(|i| (i * i % 7) as f32 - 3.0).collect();
    let zeros: Vec<f32> = (0..COLUMNS).map(|i| if i % 3 == 0 { 0.0 } else { -0.0 }).collect();
    for k in [1, 33, 64] {
        check(device, &few, COLUMNS, k);
        check(device, &zeros, COLUMNS, k);
    }
}

fn special_values<D: TopK>(device: &D) {
    const COLUMNS: usize = 90;
    let mut x = Numbers::<D::Float>::new(4).values(COLUMNS);
    x[7] = f32::INFINITY;
    x[80] = f32::NAN;
    x[40] = f32::NAN;
    x[41] = f32::NEG_INFINITY;
    x[42] = D::Float::SMALLEST as f32;
    check(device, &x, COLUMNS, 4);
    check(device, &[f32::NEG_INFINITY; 70], 70, 64);
    // fewer numbers than `k`
    x[3..].fill(f32::NEG_INFINITY);
    check(device, &x, COLUMNS, 64);
}

fn refuses_wrong_sizes<D: TopK>(device: &D) {
    let x = [0.0; 200];
    let run = |columns, k, lens| sized_answer(device, &x, columns, k, lens).map(|(values, _)| values);
    assert!(run(100, 3, [6, 6]).is_ok(), "top_k: everything fits");
    assert!(run(100, 0, [0, 0]).is_ok(), "top_k: nothing is nothing");
    refuses_length("top_k: no whole rows", run(101, 3, [6, 6]));
    refuses_length("top_k: values too short", run(100, 3, [5, 6]));
    refuses_length("top_k: columns too short", run(100, 3, [6, 5]));
    refuses_size("top_k: more than are picked", run(100, 65, [130, 130]));
    refuses_size("top_k: more than a row has", run(20, 21, [210, 210]));
}
