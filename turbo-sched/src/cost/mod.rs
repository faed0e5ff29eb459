//! What a batch costs: measured, learnt, and used by every policy.
//!
//! In: measurements of whole batches. Out: [`BatchTotal`] of a [`Candidate`], and where the number comes from. Numbers
//! are plain `f64` in a unit of the caller's choice; only [`Batcher`](crate::Batcher) fixes it: seconds. Source: Fang
//! et al., PPoPP'21, §5 and §6.3, which print a cost per request and call it the cost of the batch. Here the two are
//! different types: a table of one, read as the other, would lead to batching never, or always.
//!
//! * [`CostTable`]: the padded cost by `(seq_len, batch_size)`, as in the paper.
//! * [`PackedCost`]: the packed cost by tokens, squared lengths and batch size.
//! * [`save`] and [`load`]: either of them as a JSON file.
//! * [`Drift`]: how far either is from what batches cost.

mod drift;
mod grid;
mod nnls;
mod packed;
mod rows;
mod store;
mod table;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use drift::Drift;
pub(crate) use drift::relative_error;
pub use packed::PackedCost;
pub use rows::CostRows;
pub use store::{load, save};
pub use table::CostTable;

use crate::candidate::Candidate;
use crate::error::SchedError;
use crate::limits::Layout;

/// Cost of a whole batch, in the caller's unit.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BatchTotal(pub f64);

impl BatchTotal {
    /// Costs more than any batch: the cost of a batch that must not be formed.
    pub const FORBIDDEN: Self = Self(f64::INFINITY);

    /// A measured time, in seconds.
    #[must_use]
    pub fn from_duration(time: Duration) -> Self {
        Self(time.as_secs_f64())
    }

    /// The time of a cost in seconds; [`Duration::MAX`] if a `Duration` cannot hold it.
    #[must_use]
    pub fn as_duration(self) -> Duration {
        Duration::try_from_secs_f64(self.0).unwrap_or(Duration::MAX)
    }

    /// The share of one of `batch_size` requests.
    #[must_use]
    pub fn per_request(self, batch_size: usize) -> PerRequest {
        PerRequest(self.0 / batch_size as f64)
    }
}

/// Cost of a batch divided by its batch size, in the caller's unit: `cached_cost` of the paper's Algorithm 2.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PerRequest(pub f64);

impl PerRequest {
    /// The cost of the whole batch of `batch_size` requests.
    #[must_use]
    pub fn batch_total(self, batch_size: usize) -> BatchTotal {
        BatchTotal(self.0 * batch_size as f64)
    }
}

/// Where an estimate comes from, the most trustworthy first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// This very batch was measured.
    Measured,
    /// Smaller and larger batches were measured.
    Interpolated,
    /// It lies outside of what was measured.
    Extrapolated,
}

/// A cost, and how far it can be trusted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The cost of the whole batch.
    pub cost: BatchTotal,
    /// Where it comes from.
    pub source: Source,
}

/// The cost model of a machine, and with it the layout in which that machine runs a batch.
#[derive(Debug, Clone)]
pub enum CostModel {
    /// Batches run padded.
    Padded(CostTable),
    /// Batches run packed.
    Packed(Box<PackedCost>),
}

impl CostModel {
    /// The layout that the costs were measured in.
    #[must_use]
    pub fn layout(&self) -> Layout {
        match self {
            Self::Padded(_) => Layout::Padded,
            Self::Packed(_) => Layout::Packed,
        }
    }

    /// What `candidate` costs, and how far that can be trusted.
    #[must_use]
    pub fn estimate(&self, candidate: &Candidate) -> Estimate {
        match self {
            Self::Padded(table) => table.estimate(candidate.max_seq_len, candidate.batch_size),
            Self::Packed(packed) => packed.estimate(candidate),
        }
    }

    /// What `candidate` costs.
    #[must_use]
    pub fn cost(&self, candidate: &Candidate) -> BatchTotal {
        match self {
            Self::Padded(table) => table.cost(candidate),
            Self::Packed(packed) => packed.cost(candidate),
        }
    }

    /// Learns from a batch that ran. A batch without tokens teaches nothing.
    ///
    /// # Errors
    /// [`SchedError::Cost`] when `measured` is not finite and above 0, [`SchedError::Zero`] for an empty batch.
    pub fn update(&mut self, candidate: &Candidate, measured: BatchTotal) -> Result<(), SchedError> {
        if candidate.max_seq_len == 0 {
            return check_measurement(1, candidate.batch_size, measured);
        }
        match self {
            Self::Padded(table) => table.update(candidate.max_seq_len, candidate.batch_size, measured),
            Self::Packed(packed) => packed.update(candidate, measured),
        }
    }
}

/// Refuses what cannot be the cost of a batch.
fn check_measurement(max_seq_len: u32, batch_size: usize, cost: BatchTotal) -> Result<(), SchedError> {
    if max_seq_len == 0 {
        return Err(SchedError::Zero { field: "seq_len" });
    }
    if batch_size == 0 {
        return Err(SchedError::Zero { field: "batch_size" });
    }
    if !(cost.0.is_finite() && cost.0 > 0.0) {
        return Err(SchedError::Cost { max_seq_len, batch_size, got: cost.0 });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_kinds_of_cost_convert_by_the_batch_size() {
        assert_eq!(PerRequest(2.5).batch_total(4), BatchTotal(10.0));
        assert_eq!(BatchTotal(10.0).per_request(4), PerRequest(2.5));
    }

    #[test]
    fn costs_no_duration_can_hold_become_the_longest() {
        assert_eq!(BatchTotal(0.25).as_duration(), Duration::from_millis(250));
        assert_eq!(BatchTotal::FORBIDDEN.as_duration(), Duration::MAX);
    }
}
