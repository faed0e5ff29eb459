//! Why a file cannot be read or written, in one line that names it.

use std::io;

/// Why a file cannot be read or written any further.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A system call failed.
    #[error("{file}: {why}")]
    Io {
        /// The file.
        file: String,
        /// What the system said.
        why: io::Error,
    },
    /// The name does not tell the file's format.
    #[error("{file}: cannot tell its format from its name (known: {known}): pass {flag}")]
    Format {
        /// The file.
        file: String,
        /// Known extensions.
        known: String,
        /// The flag that says the format.
        flag: &'static str,
    },
    /// The format cannot hold the answers.
    #[error("{file}: {format} {why}")]
    Unfit {
        /// The file.
        file: String,
        /// The format.
        format: &'static str,
        /// What it cannot do.
        why: String,
    },
    /// The file has no such column.
    #[error("{file}: no column {column:?}, it has: {}", list(available))]
    Column {
        /// The file, with the line where that matters.
        file: String,
        /// The column.
        column: String,
        /// The columns that are there.
        available: Vec<String>,
    },
    /// A file that is not of its format.
    #[error("{file}: {why}")]
    Broken {
        /// The file, with the line where there is one.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// The input is not what it was when it was opened.
    #[error(
        "{file}: it has changed while it was read, so the output may lack rows: start over, with --overwrite if it is a \
         file"
    )]
    Changed {
        /// The file.
        file: String,
    },
    /// The output exists.
    #[error("{file} exists: pass --overwrite to replace it")]
    Exists {
        /// The file.
        file: String,
    },
    /// The output exists and is unfinished.
    #[error("{file} exists and is unfinished: pass {flags}")]
    Unfinished {
        /// The file.
        file: String,
        /// What to pass: not everything can be resumed.
        flags: &'static str,
    },
    /// Another process is writing the output.
    #[error("{file} is being written by another process: let it end first")]
    Busy {
        /// The file.
        file: String,
    },
    /// The output was begun from something else.
    #[error("{file} was begun with {field} {was}, not {is}: go on with the same, or pass --overwrite")]
    Differs {
        /// The file.
        file: String,
        /// What differs.
        field: String,
        /// What it was.
        was: String,
        /// What it is.
        is: String,
    },
    /// The output has more rows than the input from which it is to be continued.
    #[error(
        "{file}: it ends after {rows} rows, but {written} were written: if it is another file, pass --overwrite"
    )]
    Short {
        /// The input.
        file: String,
        /// Its rows.
        rows: u64,
        /// Rows that the output has.
        written: u64,
    },
    /// The system refused a thread.
    #[error(
        "cannot start a thread that {does} (end other processes, raise `ulimit -u`, or let fewer threads tokenize): \
         {why}"
    )]
    Thread {
        /// What it was to do.
        does: &'static str,
        /// What the system said.
        why: io::Error,
    },
    /// The model failed.
    #[error("the model failed: {why}")]
    Model {
        /// What it said.
        why: String,
    },
    /// A thread that reads or tokenizes rows has panicked.
    #[error("a thread panicked while rows were read or tokenized: the rows after that have no answer")]
    Panicked,
}

impl FileError {
    /// For `map_err` where a file is read or written.
    pub(crate) fn io(file: &str) -> impl Fn(io::Error) -> Self {
        move |why| Self::Io { file: file.to_owned(), why }
    }
}

/// The first names of a list that may be long.
pub(crate) fn list(names: &[String]) -> String {
    const SHOWN: usize = 20;
    let mut text = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => text.push_str("none"),
        SHOWN.. if names.len() > SHOWN => text.push_str(&format!(" and {} more", names.len() - SHOWN)),
        _ => {}
    }
    text
}
