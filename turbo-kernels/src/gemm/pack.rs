//! Tiles of f32 that are packed for one product, as [`super::words`] reads them: `[k / RUN][row][RUN]`.

use super::sizes::RUN;

/// Values of a packed tile of `rows` rows.
pub(crate) fn tile_values(rows: usize, in_features: usize) -> usize {
    rows * in_features.next_multiple_of(RUN)
}

/// Packs rows of `in_features` values into `tile`. The places past the end of a row are left as they are.
#[inline(always)]
pub(crate) fn pack_tile<'a>(
    rows: impl ExactSizeIterator<Item = &'a [f32]>,
    in_features: usize,
    tile: &mut [f32],
) {
    let line = rows.len() * RUN;
    let tile = &mut tile[..tile_values(rows.len(), in_features)];
    for (row, values) in rows.enumerate() {
        let (runs, tail) = values.as_chunks::<RUN>();
        let mut lines = tile.chunks_exact_mut(line);
        for (run, line) in runs.iter().zip(&mut lines) {
            line[row * RUN..][..RUN].copy_from_slice(run);
        }
        if let Some(line) = lines.next() {
            line[row * RUN..][..tail.len()].copy_from_slice(tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_hold_runs_of_rows() {
        for (rows, k) in [(1, 5), (3, 16), (2, 33), (14, 40)] {
            let x: Vec<f32> = (0..rows * k).map(|i| i as f32 + 1.0).collect();
            let mut tile = vec![f32::NAN; tile_values(rows, k)];
            pack_tile((0..rows).map(|row| &x[row * k..][..k]), k, &mut tile);
            for row in 0..rows {
                for i in 0..k {
                    assert_eq!(tile[i / RUN * rows * RUN + row * RUN + i % RUN], x[row * k + i]);
                }
            }
        }
    }
}
