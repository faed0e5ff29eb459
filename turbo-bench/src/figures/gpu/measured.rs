//! An operation, and the times of each contestant for it.

use serde::{Deserialize, Serialize};

use super::{Dtype, Operation, contest::Timed};

/// What was found for one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The operation.
    pub operation: Operation,
    /// The type that values were stored in.
    pub dtype: Dtype,
    /// Times of the contestants that compute the same.
    pub times: Vec<Timed>,
    /// The largest distance of the others' results from turbo's, relative to their length; `None` without others.
    pub error: Option<f64>,
    /// Contestants whose launches could not be replayed and were enqueued one by one.
    pub launched: Vec<String>,
    /// Contestants that were not timed.
    pub absent: Vec<Absent>,
}

/// A contestant that was not timed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// Its name.
    pub who: String,
    /// The reason.
    pub why: String,
}
