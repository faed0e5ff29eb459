//! The last step for a vector: to length 1, or to whole numbers.

use turbo_graph::kernels::slices;

/// Divides a vector by its L2 norm, in place; a norm below 1e-12 counts as 1e-12, as in the reference. The cosine of
/// two vectors is then their dot product.
pub fn l2_normalize(row: &mut [f32]) {
    let columns = row.len();
    slices::l2_normalize_rows(row, columns).expect("a row is whole");
}

/// Turns a vector into whole numbers from −127 to 127 as pplx-embed does, in place: `round(127 · tanh(x))`. Such
/// vectors have no unit length and are compared by their cosine.
///
/// Source: `st_quantize.FlexibleQuantizer` of the published models, whose int8 is the default.
pub fn tanh_int8(row: &mut [f32]) {
    row.iter_mut().for_each(|value| *value = (127.0 * value.tanh()).round_ties_even());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_become_one_and_zero_stays() {
        let cases: [(&[f32], &[f32]); 3] = [(&[3.0, -4.0], &[0.6, -0.8]), (&[0.0; 2], &[0.0; 2]), (&[], &[])];
        for (row, expected) in cases {
            let mut row = row.to_vec();
            l2_normalize(&mut row);
            assert_eq!(row, expected);
        }
    }
}
