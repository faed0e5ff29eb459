//! The table of rotary position embeddings (Su et al., 2021): a constant that no checkpoint holds, computed when a
//! program is loaded.

use crate::GraphError;

/// The parameters of a rotary table: how fast each pair of columns rotates, and how many positions there are.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryTable {
    /// Radians per position of column `i` and its partner `i + head_dim / 2`; `head_dim / 2` of them.
    pub inverse_frequencies: Vec<f64>,
    /// Rows: one more than the highest position.
    pub positions: usize,
}

impl RotaryTable {
    /// `[positions, head_dim]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.positions, 2 * self.inverse_frequencies.len()]
    }

    /// The rows; each holds the cosines of its angles, then their sines.
    ///
    /// An angle is a product in f32, since the models were trained so: at position 8000 it is off by up to 2.4e-4,
    /// which a product in f64 would not reproduce. Cosine and sine of that angle are exact to about the last bit.
    ///
    /// # Errors
    /// [`GraphError::Weight`] for more rows than the memory holds.
    pub fn values(&self) -> Result<Vec<f32>, GraphError> {
        let [rows, columns] = self.shape();
        let mut values = Vec::new();
        let has_room = rows.checked_mul(columns).is_some_and(|count| values.try_reserve_exact(count).is_ok());
        if !has_room {
            let why = format!("no memory for {rows} positions of {columns} values").into();
            return Err(GraphError::Weight { name: "of rotary positions".to_owned(), why });
        }
        for position in 0..self.positions {
            let angle = |&frequency: &f64| f64::from(position as f32 * frequency as f32);
            values.extend(self.inverse_frequencies.iter().map(|frequency| angle(frequency).cos() as f32));
            values.extend(self.inverse_frequencies.iter().map(|frequency| angle(frequency).sin() as f32));
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cosines_then_sines() {
        let table = RotaryTable { inverse_frequencies: vec![1.0, 0.01], positions: 3 };
        assert_eq!(table.shape(), [3, 4]);
        let values = table.values().unwrap();
        assert_eq!(values[..4], [1.0, 1.0, 0.0, 0.0]);
        let expected = [2_f64.cos(), 0.02_f64.cos(), 2_f64.sin(), 0.02_f64.sin()];
        assert!(
            values[8..].iter().zip(expected).all(|(got, expected)| (f64::from(*got) - expected).abs() < 1e-7)
        );
    }

    #[test]
    fn a_table_that_no_memory_holds_is_an_error() {
        for (columns, positions) in [(2, usize::MAX), (2, usize::MAX / 4), (64, 1 << 55)] {
            let table = RotaryTable { inverse_frequencies: vec![1.0; columns / 2], positions };
            let said = format!(
                "weight of rotary positions: no memory for {positions} positions of {columns} values"
            );
            assert_eq!(table.values().unwrap_err().to_string(), said);
        }
    }

    /// 8191 · 0.7 is not an f32: the reference rotates by the nearest one.
    #[test]
    fn an_angle_is_rounded_as_the_reference_rounds_it() {
        let table = RotaryTable { inverse_frequencies: vec![0.7], positions: 8192 };
        let rounded = 8191.0_f32 * 0.7_f32;
        assert_ne!(f64::from(rounded), 8191.0 * 0.7);
        assert_eq!(table.values().unwrap()[2 * 8191], f64::from(rounded).cos() as f32);
    }
}
