//! A cost table as people write it: one row per length, costs of batch sizes 1, 2, 3, … side by side.
//!
//! In: JSON as `{"batch_total": [[seq_len, [cost of 1, cost of 2, …]], …]}`, or the same under
//! `"per_request"`. Out: a [`CostTable`]. The key says which of the two kinds the numbers are.

use serde::{Deserialize, Serialize};

use super::{BatchTotal, CostTable, PerRequest};
use crate::error::SchedError;

/// Rows `(seq_len, costs of batch sizes 1, 2, 3, …)`, strictly ascending in `seq_len`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CostRows {
    /// Each cost is that of the whole batch.
    BatchTotal(Vec<(u32, Vec<BatchTotal>)>),
    /// Each cost is that of the whole batch divided by its batch size.
    PerRequest(Vec<(u32, Vec<PerRequest>)>),
}

impl TryFrom<CostRows> for CostTable {
    type Error = SchedError;

    /// # Errors
    /// [`SchedError::OutOfOrder`], [`SchedError::EmptyRow`], and those of [`CostTable::from_measurements`].
    fn try_from(rows: CostRows) -> Result<Self, SchedError> {
        match rows {
            CostRows::BatchTotal(rows) => from_rows(&rows, |cost, _| cost),
            CostRows::PerRequest(rows) => from_rows(&rows, PerRequest::batch_total),
        }
    }
}

fn from_rows<T: Copy>(
    rows: &[(u32, Vec<T>)],
    total: impl Fn(T, usize) -> BatchTotal + Copy,
) -> Result<CostTable, SchedError> {
    let mut previous = None;
    for (seq_len, costs) in rows {
        if costs.is_empty() {
            return Err(SchedError::EmptyRow { seq_len: *seq_len });
        }
        if let Some(previous) = previous.replace(*seq_len).filter(|previous| previous >= seq_len) {
            return Err(SchedError::OutOfOrder { previous, got: *seq_len });
        }
    }
    CostTable::from_measurements(rows.iter().flat_map(|(seq_len, costs)| {
        let sizes = 1..=costs.len();
        sizes.zip(costs).map(move |(size, &cost)| (*seq_len, size, total(cost, size)))
    }))
}
