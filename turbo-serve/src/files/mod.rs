//! Files of texts in, files of answers out: one row of answers for each row of texts.
//!
//! ```text
//! file ─read─▶ rows ─▶ tokenizer threads ─▶ window, by length ─▶ batches ─▶ model ─▶ writer thread ─▶ file
//!              (number, cells or what is wrong)                             rows in the order of the input
//! ```
//!
//! | module | what it is about |
//! |---|---|
//! | [`read`] | text lines, JSONL, CSV, TSV and Parquet as rows of cells |
//! | [`write`](mod@write) | answers as JSONL, NPY or Parquet, which can be continued after an interruption |
//! | [`pipeline`] | the threads between, and how a window becomes batches |
//!
//! Every row of the input gives exactly one row of the output, in order. A row that could not be read or does not suit
//! the model does so, too: its answer says what was wrong. So the number of rows in a file of answers is all that a
//! later run needs to continue it. Everything is bounded: rows in bytes, windows in tokens, queues in windows. So
//! memory does not grow with the file.

mod error;
mod format;
pub mod pipeline;
pub mod read;
pub mod write;

pub use error::FileError;
pub use format::{InputFormat, OutputFormat, Quotes};

/// Most bytes of one row of an input: a longer row more likely means a file without line ends, or an open quote.
pub const MAX_ROW_BYTES: usize = 16 << 20;

/// The file name that stands for standard input or output.
pub const STANDARD: &str = "-";
