//! An operation, and what each contestant takes for it.

use serde::{Deserialize, Serialize};

use super::{Dtype, Operation, contest::Timed};

/// What was found of one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What was done.
    pub operation: Operation,
    /// In what it was stored.
    pub dtype: Dtype,
    /// Times of the contestants that compute the same.
    pub times: Vec<Timed>,
    /// How far the results of the others lie from turbo's at most, as a part of their length; none without others.
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
    /// Why not.
    pub why: String,
}
