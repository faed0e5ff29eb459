//! What a caller of this crate can get wrong.

use std::path::PathBuf;

/// Why a cost model could not be built, taught, saved or loaded.
#[derive(Debug, thiserror::Error)]
pub enum SchedError {
    /// A cost is NaN, infinite, negative or zero.
    #[error(
        "cost of batch_size {batch_size} at max_seq_len {max_seq_len} must be finite and above 0, got {got}"
    )]
    Cost {
        /// Longest sequence of the measured batch.
        max_seq_len: u32,
        /// Requests in the measured batch.
        batch_size: usize,
        /// The value given.
        got: f64,
    },
    /// A length or a batch size is 0.
    #[error("{field} must be above 0, got 0")]
    Zero {
        /// Name of the field.
        field: &'static str,
    },
    /// Rows of a table do not ascend strictly in length.
    #[error("rows must ascend in seq_len, got {got} after {previous}")]
    OutOfOrder {
        /// `seq_len` of the row before.
        previous: u32,
        /// `seq_len` of the offending row.
        got: u32,
    },
    /// The same point of a table is given twice.
    #[error("batch_size {batch_size} at seq_len {seq_len} is given twice")]
    Repeated {
        /// `seq_len` of the point.
        seq_len: u32,
        /// `batch_size` of the point.
        batch_size: usize,
    },
    /// A row of a table holds no value.
    #[error("the row of seq_len {seq_len} holds no cost, expected at least one")]
    EmptyRow {
        /// `seq_len` of the row.
        seq_len: u32,
    },
    /// There is nothing to learn a cost from.
    #[error("no measurement given, expected at least one")]
    NoMeasurement,
    /// The points of a table span a grid too large to keep.
    #[error("{seq_lens} lengths times {batch_sizes} batch sizes exceed the {max} cells of a table")]
    TooLarge {
        /// Distinct lengths.
        seq_lens: usize,
        /// Distinct batch sizes.
        batch_sizes: usize,
        /// The most cells a table may have.
        max: usize,
    },
    /// A saved sum of the packed cost is impossible.
    #[error("{name} must be finite and {bound}, got {got}")]
    Sum {
        /// Which sum.
        name: &'static str,
        /// What it must be.
        bound: &'static str,
        /// The value given.
        got: f64,
    },
    /// A cost file could not be read.
    #[error("cannot read cost file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A cost file does not hold what it should.
    #[error("cost file {} is not valid", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A cost file could not be written.
    #[error("cannot write cost file {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}
