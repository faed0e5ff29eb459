//! Makes a table of the cosine similarities of vectors.

use anyhow::{Result, ensure};

/// Widest label in the table; longer ones are cut.
const LABEL: usize = 11;

/// Cosine similarity of each pair of vectors, in f64.
pub(super) struct Similarities {
    rows: Vec<Vec<f64>>,
}

impl Similarities {
    /// Compares all vectors.
    ///
    /// # Errors
    /// When they have different lengths, or one has no direction (a NaN, an infinity, or zeros only).
    pub(super) fn of(vectors: &[Vec<f32>]) -> Result<Self> {
        let mut unit = Vec::with_capacity(vectors.len());
        for (i, vector) in vectors.iter().enumerate() {
            let expected = vectors[0].len();
            ensure!(
                vector.len() == expected,
                "vector {i} has {} numbers, the first has {expected}",
                vector.len()
            );
            let norm = dot(&widened(vector), &widened(vector)).sqrt();
            ensure!(norm.is_finite() && norm > 0.0, "vector {i} has no direction, its length is {norm}");
            unit.push(widened(vector).iter().map(|x| x / norm).collect::<Vec<f64>>());
        }
        Ok(Self { rows: unit.iter().map(|a| unit.iter().map(|b| dot(a, b)).collect()).collect() })
    }

    /// The vector most similar to vector `i`, except itself. The first one among equals; `None` if there is no other.
    pub(super) fn nearest(&self, i: usize) -> Option<usize> {
        let others = (0..self.rows.len()).filter(|&j| j != i);
        others.reduce(|best, j| if self.rows[i][j] > self.rows[i][best] { j } else { best })
    }

    /// The table: two decimals, and `*` at each row's nearest. A dozen rows fit in 100 columns.
    pub(super) fn table(&self, labels: &[&str]) -> String {
        let mut text = " ".repeat(4 + LABEL);
        for column in 1..=self.rows.len() {
            text += &format!("{column:>6} ");
        }
        for (i, row) in self.rows.iter().enumerate() {
            text.truncate(text.trim_end().len());
            text += &format!("\n{:>3} {:LABEL$.LABEL$}", i + 1, labels[i]);
            for (j, value) in row.iter().enumerate() {
                let mark = if self.nearest(i) == Some(j) { '*' } else { ' ' };
                text += &format!("{value:>6.2}{mark}");
            }
        }
        text.truncate(text.trim_end().len());
        text + "\n"
    }
}

fn widened(vector: &[f32]) -> Vec<f64> {
    vector.iter().copied().map(f64::from).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_marks_the_nearest_of_each_row() {
        let vectors = [vec![3.0, 0.0], vec![1.0, 1.0], vec![0.0, -2.0]];
        let table = Similarities::of(&vectors).unwrap().table(&["east", "a very long label", "south"]);
        assert_eq!(
            table,
            "                    1      2      3\n  \
               1 east         1.00   0.71*  0.00\n  \
               2 a very long  0.71*  1.00  -0.71\n  \
               3 south        0.00* -0.71   1.00\n"
        );
    }

    #[test]
    fn a_dozen_fits_a_hundred_columns() {
        let vectors: Vec<Vec<f32>> = (0..12).map(|i| vec![1.0, i as f32 - 6.0]).collect();
        let table = Similarities::of(&vectors).unwrap().table(&["a label that is long"; 12]);
        assert_eq!(table.lines().count(), 13);
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    }

    #[test]
    fn vectors_without_direction_are_refused() {
        let error = |vectors: &[Vec<f32>]| Similarities::of(vectors).err().unwrap().to_string();
        assert_eq!(error(&[vec![1.0], vec![1.0, 2.0]]), "vector 1 has 2 numbers, the first has 1");
        assert_eq!(error(&[vec![1.0], vec![0.0]]), "vector 1 has no direction, its length is 0");
        assert_eq!(error(&[vec![f32::NAN]]), "vector 0 has no direction, its length is NaN");
    }

    #[test]
    fn a_single_vector_has_no_nearest() {
        assert_eq!(Similarities::of(&[vec![1.0]]).unwrap().nearest(0), None);
    }
}
