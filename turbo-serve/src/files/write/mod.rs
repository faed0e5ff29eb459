//! Answers into files that are fit to be continued at any moment.
//!
//! In: an answer per row of the input, in order, or what was wrong with the row. Out: a file with exactly one row for
//! each. While it is not finished a small file stands beside it, `NAME.unfinished`, that says what it was begun with;
//! how far it has come is what the file itself holds. Whole rows are on the disk every few seconds.

mod answer;
mod best;
mod jsonl;
mod npy;
#[cfg(feature = "parquet")]
mod parquet;
mod unfinished;

use std::{
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

use super::{FileError, OutputFormat, STANDARD};
use unfinished::{Unfinished, folder_of};

pub use answer::{Answer, Class, Entity, Kind, Ranked};
pub use unfinished::Job;

/// How long what was written may stay in memory only.
const SYNC_EVERY: Duration = Duration::from_secs(5);

/// Where answers go.
pub struct Target<'a> {
    /// The file, or `-` for standard output.
    pub file: &'a str,
    /// Its format.
    pub format: OutputFormat,
    /// What every answer is.
    pub kind: Kind,
    /// What it is made from: whoever continues it must make it from the same.
    pub job: &'a Job,
    /// What becomes of a file that is there already.
    pub existing: Existing,
    /// Of scores, so many of the best alone are written, the best first, when all are known.
    pub best: Option<usize>,
}

/// What becomes of an output that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and nothing is done.
    Keep,
    /// It is replaced.
    Replace,
    /// It is continued; where it is not there, it is begun.
    Continue,
}

/// What opening a [`Target`] gives.
pub enum Opened {
    /// Answers can be written.
    Ready(Output),
    /// It was to be continued, and is complete.
    Complete,
}

/// An output that takes answers.
pub struct Output {
    file: String,
    sink: Box<dyn Sink>,
    unfinished: Option<Unfinished>,
    rows: u64,
    bad_rows: u64,
    synced: Instant,
}

/// A format that answers are written in.
trait Sink: Send {
    /// Writes the answer of row `index`, or what was wrong with the row.
    fn write(&mut self, index: u64, answer: Result<&Answer, &str>) -> io::Result<()>;
    /// Makes what was written last even when the machine does not.
    fn sync(&mut self) -> io::Result<()>;
    /// Writes what was held back; nothing comes after.
    fn close(&mut self) -> io::Result<()>;
}

/// A sink, the rows that it has already, and those of them without an answer.
struct Begun {
    sink: Box<dyn Sink>,
    rows: u64,
    bad_rows: u64,
}

impl Output {
    /// Refuses what [`Self::open`] would refuse for what is at its place already, while nothing is known of the answers.
    ///
    /// # Errors
    /// [`FileError::Exists`], [`FileError::Unfinished`], [`FileError::Busy`]; [`FileError::Broken`] where no such output can
    /// be.
    pub fn check(file: &str, format: OutputFormat, existing: Existing) -> Result<(), FileError> {
        if file == STANDARD { Ok(()) } else { before(file, format, existing).map(drop) }
    }

    /// Opens a target.
    ///
    /// # Errors
    /// [`FileError::Exists`], [`FileError::Unfinished`], [`FileError::Busy`], [`FileError::Differs`]; [`FileError::Unfit`] where the format
    /// cannot hold the answers; [`FileError::Broken`] where what is to be continued was not made here.
    pub fn open(target: &Target<'_>) -> Result<Opened, FileError> {
        let file = target.file.to_owned();
        let unfit = |why: &str| {
            Err(FileError::Unfit { file: file.clone(), format: target.format.name(), why: why.to_owned() })
        };
        if target.format == OutputFormat::Npy && !matches!(target.kind, Kind::Embedding { .. }) {
            return unfit("holds vectors only: choose JSONL or Parquet");
        }
        if target.best.is_some() && target.existing == Existing::Continue {
            return unfit("with the best rows alone cannot be resumed: they are known at the end");
        }
        if file == STANDARD {
            return match (target.format, target.existing) {
                (OutputFormat::Jsonl, Existing::Continue) => unfit("on standard output cannot be resumed"),
                (OutputFormat::Jsonl, _) => {
                    let sink = best::only(target.best, Box::new(jsonl::Jsonl::standard_output()));
                    Ok(Opened::Ready(Self::new(
                        "standard output".into(),
                        Begun { sink, rows: 0, bad_rows: 0 },
                        None,
                    )))
                }
                _ => unfit("needs a file, standard output takes JSONL"),
            };
        }
        let (there, begun_before) = before(&file, target.format, target.existing)?;
        match (target.existing, &begun_before) {
            (Existing::Continue, None) if there => return Ok(Opened::Complete),
            (Existing::Continue, Some(before)) if there => unfinished::check(&file, before, target.job)?,
            _ => {}
        }
        // Before the file: a file without it beside is a complete one.
        let unfinished = Unfinished::begin(&file, target.job)?;
        let begun = match begin(target, there && target.existing == Existing::Continue) {
            Ok(begun) => begun,
            Err(error) => {
                // What stands there is what it was.
                if begun_before.is_none() {
                    unfinished.remove()?;
                }
                return Err(error);
            }
        };
        let begun = Begun { sink: best::only(target.best, begun.sink), ..begun };
        Ok(Opened::Ready(Self::new(file, begun, Some(unfinished))))
    }

    fn new(file: String, Begun { sink, rows, bad_rows }: Begun, unfinished: Option<Unfinished>) -> Self {
        Self { file, sink, unfinished, rows, bad_rows, synced: Instant::now() }
    }

    /// Rows that it holds: the next answer is that of this row, counted from 0.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Rows that have no answer.
    pub fn bad_rows(&self) -> u64 {
        self.bad_rows
    }

    /// Writes the answer of the next row, or what was wrong with it.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn write(&mut self, answer: Result<&Answer, &str>) -> Result<(), FileError> {
        self.sink.write(self.rows, answer).map_err(FileError::io(&self.file))?;
        self.rows += 1;
        self.bad_rows += u64::from(answer.is_err());
        if self.synced.elapsed() >= SYNC_EVERY {
            self.sink.sync().map_err(FileError::io(&self.file))?;
            self.synced = Instant::now();
        }
        Ok(())
    }

    /// Nothing more will come.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn finish(mut self) -> Result<(), FileError> {
        self.sink.close().map_err(FileError::io(&self.file))?;
        self.unfinished.map_or(Ok(()), Unfinished::remove)
    }

    /// Leaves it as it is: sound, and to be continued some other time.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn interrupt(mut self) -> Result<(), FileError> {
        self.sink.close().map_err(FileError::io(&self.file))
    }
}

/// Whether an output is there already, and what it was begun with if it is not complete.
///
/// # Errors
/// As [`Output::check`].
fn before(file: &str, format: OutputFormat, existing: Existing) -> Result<(bool, Option<Job>), FileError> {
    check_place(Path::new(file), format)
        .map_err(|why| FileError::Broken { file: file.to_owned(), why: why.to_owned() })?;
    let there = fs::symlink_metadata(file).is_ok();
    let begun = unfinished::job_of(file)?;
    match (existing, &begun) {
        (Existing::Keep, None) if there => Err(FileError::Exists { file: file.to_owned() }),
        (Existing::Keep, Some(_)) if there => Err(FileError::Unfinished { file: file.to_owned() }),
        _ => Ok((there, begun)),
    }
}

/// Whether an output of that format can be at `path`, before anything is written there.
fn check_place(path: &Path, format: OutputFormat) -> Result<(), &'static str> {
    if !folder_of(path).is_dir() {
        return Err("the folder that it is to be in is not there");
    }
    match (fs::metadata(path), format) {
        (Ok(there), OutputFormat::Parquet) if !there.is_dir() => {
            Err("it is a file, and Parquet is written as a folder of parts")
        }
        (Ok(there), OutputFormat::Jsonl | OutputFormat::Npy) if there.is_dir() => {
            Err("it is a folder, expected a file")
        }
        (Ok(there), OutputFormat::Jsonl | OutputFormat::Npy) if !there.is_file() => {
            Err("it is no regular file; `-` is standard output, which may lead anywhere")
        }
        _ => Ok(()),
    }
}

fn begin(target: &Target<'_>, resume: bool) -> Result<Begun, FileError> {
    let path = Path::new(target.file);
    match (target.format, &target.kind) {
        (OutputFormat::Jsonl, _) => jsonl::begin(path, resume),
        (OutputFormat::Npy, Kind::Embedding { dimensions }) => npy::begin(path, *dimensions, resume),
        (OutputFormat::Npy, _) => unreachable!("refused when the target was opened"),
        #[cfg(feature = "parquet")]
        (OutputFormat::Parquet, kind) => parquet::begin(path, kind, resume),
        #[cfg(not(feature = "parquet"))]
        (OutputFormat::Parquet, _) => {
            let why = "is not in this build: it was made without the feature `parquet`".to_owned();
            Err(FileError::Unfit { file: target.file.to_owned(), format: "Parquet", why })
        }
    }
}
