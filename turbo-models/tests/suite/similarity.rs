//! How alike two sets of vectors are: row by row, and in the order of all their pairs.

/// Cosine of two vectors; NaN if one has no direction.
pub(crate) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The smallest cosine between a row and the same row of the other set; NaN counts as smaller than any.
pub(crate) fn least_cosine(rows: &[Vec<f32>], others: &[Vec<f32>]) -> f64 {
    assert_eq!(rows.len(), others.len());
    let cosines = rows.iter().zip(others).map(|(row, other)| cosine(row, other));
    cosines
        .fold(f64::INFINITY, |least, cosine| if least.is_nan() || cosine >= least { least } else { cosine })
}

/// Cosines of all pairs of different rows.
pub(crate) fn pairwise(rows: &[Vec<f32>]) -> Vec<f64> {
    let of_row = |(i, row): (usize, &Vec<f32>)| -> Vec<f64> {
        rows[..i].iter().map(|other| cosine(row, other)).collect()
    };
    rows.iter().enumerate().flat_map(of_row).collect()
}

/// Spearman's rank correlation; equal values share the mean of their ranks.
pub(crate) fn spearman(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    pearson(&ranks(a), &ranks(b))
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&i, &j| values[i].total_cmp(&values[j]));
    let (mut ranks, mut first) = (vec![0.0; values.len()], 0);
    for equal in order.chunk_by(|&i, &j| values[i] == values[j]) {
        let mean = first as f64 + (equal.len() - 1) as f64 / 2.0;
        equal.iter().for_each(|&i| ranks[i] = mean);
        first += equal.len();
    }
    ranks
}

fn pearson(a: &[f64], b: &[f64]) -> f64 {
    let centred = |values: &[f64]| -> Vec<f64> {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|value| value - mean).collect()
    };
    let (a, b) = (centred(a), centred(b));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt()
}

#[test]
fn ranks_correlate_as_the_textbook_says() {
    // without ties: 1 - 6 Σd² / (n (n² - 1)), here d = 0 1 1 1 1
    let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0], [-9.0, 7.0, 3.0, 1e6, 8.0]);
    assert!((spearman(&a, &b) - (1.0 - 6.0 * 4.0 / 120.0)).abs() < 1e-12);
    assert!((spearman(&a, &a.map(|x: f64| -x.exp())) + 1.0).abs() < 1e-12);
    assert_eq!(ranks(&[5.0, 1.0, 5.0, 0.0]), [2.5, 1.0, 2.5, 0.0]);
}

#[test]
fn the_worst_row_counts() {
    let rows = [vec![1.0, 0.0], vec![0.0, 2.0]];
    assert_eq!(least_cosine(&rows, &[vec![3.0, 0.0], vec![0.0, 1.0]]), 1.0);
    assert_eq!(least_cosine(&rows, &[vec![3.0, 0.0], vec![-3.0, 4.0]]), 0.8);
    assert!(least_cosine(&rows, &[vec![0.0, 0.0], vec![0.0, 1.0]]).is_nan());
    assert_eq!(pairwise(&[vec![1.0, 0.0], vec![0.0, 2.0], vec![0.0, 1.0]]), [0.0, 0.0, 1.0]);
}
