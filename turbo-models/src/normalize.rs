//! Vectors of length 1.

use turbo_graph::kernels::slices;

/// Divides a vector by its L2 norm, in place; a norm below 1e-12 counts as 1e-12, as in the reference. The cosine of
/// two vectors is then their dot product.
pub fn l2_normalize(row: &mut [f32]) {
    let columns = row.len();
    slices::l2_normalize_rows(row, columns).expect("a row is whole");
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
