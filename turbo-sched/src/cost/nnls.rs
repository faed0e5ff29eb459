//! Least squares with coefficients that are not negative, exact, for four unknowns.
//!
//! In: normal equations. Out: the minimiser. The optimum solves the unconstrained problem on its own support,
//! so solving for each of the fifteen supports and keeping the best feasible one finds it without iterating.

/// Unknowns of the problem.
pub(super) const N: usize = 4;

/// Ridge on the normalised diagonal: decides between coefficients that the data cannot tell apart, and is far
/// below what measurements resolve.
const RIDGE: f64 = 1e-9;

/// Minimises `xᵀ·gram·x − 2·xᵀ·rhs` over `x ≥ 0`. `gram` is symmetric and positive semi-definite.
pub(super) fn solve(gram: &[[f64; N]; N], rhs: &[f64; N]) -> [f64; N] {
    // Columns are scaled to a unit diagonal: tokens and squared lengths differ by orders of magnitude.
    let scale: [f64; N] = std::array::from_fn(|i| gram[i][i].sqrt());
    let unit = |i: usize, value: f64| if scale[i] > 0.0 { value / scale[i] } else { 0.0 };
    let mut a: [[f64; N]; N] = std::array::from_fn(|i| std::array::from_fn(|j| unit(i, unit(j, gram[i][j]))));
    for (i, row) in a.iter_mut().enumerate() {
        row[i] += RIDGE;
    }
    let b: [f64; N] = std::array::from_fn(|i| unit(i, rhs[i]));

    let mut best = ([0.0; N], 0.0);
    for support in 1..1_u32 << N {
        let x = solve_on(support, &a, &b);
        // At the solution on a support the objective is −xᵀ·b.
        let objective = -(0..N).map(|i| x[i] * b[i]).sum::<f64>();
        if x.iter().all(|&x| x >= 0.0) && objective < best.1 {
            best = (x, objective);
        }
    }
    std::array::from_fn(|i| unit(i, best.0[i]))
}

/// Solves `a·x = b` over the unknowns in `support`, the others being 0; by elimination without pivoting, which
/// is stable for a positive definite matrix.
fn solve_on(support: u32, a: &[[f64; N]; N], b: &[f64; N]) -> [f64; N] {
    let (mut a, mut x) = (*a, *b);
    let used = |i: &usize| support >> i & 1 == 1;
    for pivot in (0..N).filter(used) {
        let pivot_row = a[pivot];
        for row in (pivot + 1..N).filter(used) {
            let factor = a[row][pivot] / pivot_row[pivot];
            for column in (pivot..N).filter(used) {
                a[row][column] -= factor * pivot_row[column];
            }
            x[row] -= factor * x[pivot];
        }
    }
    for row in (0..N).rev() {
        if !used(&row) {
            x[row] = 0.0;
            continue;
        }
        let known: f64 = (row + 1..N).filter(used).map(|column| a[row][column] * x[column]).sum();
        x[row] = (x[row] - known) / a[row][row];
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Normal equations of rows `(features, value)`.
    fn normal(rows: &[([f64; N], f64)]) -> ([[f64; N]; N], [f64; N]) {
        let (mut gram, mut rhs) = ([[0.0; N]; N], [0.0; N]);
        for (features, value) in rows {
            for i in 0..N {
                (0..N).for_each(|j| gram[i][j] += features[i] * features[j]);
                rhs[i] += features[i] * value;
            }
        }
        (gram, rhs)
    }

    #[test]
    fn finds_the_coefficients_that_made_the_values() {
        let truth = [3.0, 0.5, 0.0, 2.0];
        let rows: Vec<_> = (1..20)
            .map(|i| {
                let i = f64::from(i);
                let features = [1.0, i, i * i, (i * 7.0) % 5.0];
                (features, features.iter().zip(truth).map(|(f, t)| f * t).sum())
            })
            .collect();
        let (gram, rhs) = normal(&rows);
        for (got, expected) in solve(&gram, &rhs).into_iter().zip(truth) {
            assert!((got - expected).abs() < 1e-4, "{got} instead of {expected}");
        }
    }

    #[test]
    fn a_negative_optimum_is_moved_to_the_boundary() {
        // Two unknowns matter: the unconstrained optimum is (2, −1), the constrained one (1.5, 0).
        let rows = [([1.0, 1.0, 0.0, 0.0], 1.0), ([1.0, 0.0, 0.0, 0.0], 2.0)];
        let (gram, rhs) = normal(&rows);
        let x = solve(&gram, &rhs);
        assert!((x[0] - 1.5).abs() < 1e-6 && x[1..] == [0.0; 3], "{x:?}");
    }

    #[test]
    fn no_grid_point_is_better() {
        let rows = [
            ([1.0, 2.0, 4.0, 1.0], 3.0),
            ([1.0, 5.0, 9.0, 2.0], 1.0),
            ([1.0, 1.0, 7.0, 9.0], 8.0),
            ([1.0, 6.0, 2.0, 3.0], 2.0),
        ];
        let (gram, rhs) = normal(&rows);
        let loss = |x: &[f64; N]| -> f64 {
            let error = |(f, y): &([f64; N], f64)| f.iter().zip(x).map(|(f, x)| f * x).sum::<f64>() - y;
            rows.iter().map(|row| error(row).powi(2)).sum()
        };
        let best = loss(&solve(&gram, &rhs));
        for code in 0..12_u32.pow(4) {
            let x = std::array::from_fn(|i| f64::from(code / 12_u32.pow(i as u32) % 12) * 0.25);
            assert!(best <= loss(&x) + 1e-6, "{x:?} is better");
        }
    }
}
