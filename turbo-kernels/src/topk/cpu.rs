//! The greatest values on the CPU, one row to a piece.

use super::{MOST, NAME, TopK, checked_rows};
use crate::{
    KernelError,
    device::{Cpu, CpuQueue, SharedMut},
};

impl TopK for Cpu {
    fn top_k(
        &self,
        queue: &mut CpuQueue,
        x: &[f32],
        columns: usize,
        k: usize,
        values: &mut [f32],
        indices: &mut [u32],
    ) -> Result<(), KernelError> {
        let rows = checked_rows(&x, columns, k, &values, &indices)?;
        if u32::try_from(columns).is_err() {
            let expected = "less than 2^32".into();
            return Err(KernelError::Size { kernel: NAME, argument: "columns", expected, got: columns });
        }
        let (values, indices) = (SharedMut::new(values), SharedMut::new(indices));
        Ok(queue.for_each_piece(rows, 0, |row, _| {
            let x = &x[row * columns..][..columns];
            let mut keys = [0; MOST];
            pick(x, &mut keys[..k]);
            // SAFETY: each row is one piece, and rows do not overlap.
            let (values, indices) = unsafe { (values.slice(row * k, k), indices.slice(row * k, k)) };
            for ((key, value), index) in keys.iter().zip(values).zip(indices) {
                *index = column(*key);
                *value = x[*index as usize];
            }
        })?)
    }
}

/// The greatest keys of a row, descending, as many as `keys` takes and the row has.
fn pick(x: &[f32], keys: &mut [u64]) {
    keys.fill(0);
    for (i, value) in x.iter().enumerate() {
        let key = key(*value, i as u32);
        if keys.last().is_some_and(|least| key > *least) {
            let place = keys.partition_point(|greater| *greater > key);
            keys[place..].rotate_right(1);
            keys[place] = key;
        }
    }
}

/// A number that grows with the value and, for equal values, falls with the column; never 0.
fn key(value: f32, column: u32) -> u64 {
    // −0 becomes 0
    let bits = (value + 0.0).to_bits();
    let order = match bits {
        _ if value.is_nan() => u32::MAX,
        _ if bits >> 31 == 1 => !bits,
        _ => bits | 1 << 31,
    };
    u64::from(order) << 32 | u64::from(!column)
}

/// The column of a key.
fn column(key: u64) -> u32 {
    !(key as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ordered_as_values_are() {
        let ascending = [f32::NEG_INFINITY, -3.0, -1e-40, 0.0, 1e-40, 2.0, f32::INFINITY, f32::NAN];
        for pair in ascending.windows(2) {
            assert!(key(pair[0], 0) < key(pair[1], 7), "{pair:?}");
        }
        assert!(key(-0.0, 1) > key(0.0, 2) && key(0.0, 1) > key(-0.0, 2));
        assert!(key(-f32::NAN, 1) > key(f32::NAN, 2));
        assert!(key(f32::NEG_INFINITY, u32::MAX) > 0);
        assert_eq!(column(key(1.5, 12_345)), 12_345);
    }
}
