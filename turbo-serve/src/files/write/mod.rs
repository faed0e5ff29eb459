//! Writing answers to files that can be continued after any interruption.
//!
//! In: an answer per row of the input, in order, or what was wrong with the row. Out: a file with exactly one row for
//! each. While it is incomplete, a small file beside it, `NAME.unfinished`, records what it is made from; its progress
//! is what the file itself holds. Complete rows are synced to the disk every few seconds.

mod answer;
mod best;
mod jsonl;
mod npy;
#[cfg(feature = "parquet")]
mod parquet;
mod unfinished;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{FileError, OutputFormat, STANDARD};
use unfinished::{Mark, Unfinished, folder_of};

pub use answer::{Answer, Class, Entity, Kind, Ranked};
pub use unfinished::MadeFrom;

/// Time between syncs to the disk.
const SYNC_EVERY: Duration = Duration::from_secs(5);

/// Where answers go.
pub struct Target<'a> {
    /// The file, or `-` for standard output.
    pub file: &'a str,
    /// Its format.
    pub format: OutputFormat,
    /// The kind of all answers.
    pub kind: Kind,
    /// What it is made from: it can be continued only from the same.
    pub made_from: &'a MadeFrom,
    /// What happens to an existing file.
    pub existing: Existing,
    /// For scores: only this many of the best are written, best first, at the end.
    pub best: Option<usize>,
}

/// What happens to an existing output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and nothing is done.
    Keep,
    /// It is replaced.
    Replace,
    /// It is continued, or begun if there is none.
    Continue,
}

/// The result of opening a [`Target`].
pub enum Opened {
    /// Answers can be written.
    Ready(Output),
    /// The output was to be continued, but is complete.
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
    /// Makes what was written durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Writes what is buffered; the last call.
    fn close(&mut self) -> io::Result<()>;
}

/// A sink, with the number of rows that it already has, and how many of those have no answer.
struct Begun {
    sink: Box<dyn Sink>,
    rows: u64,
    bad_rows: u64,
}

impl Output {
    /// Refuses an existing output that [`Self::open`] would refuse, before the kind of answers is known; `best` as in a
    /// [`Target`].
    ///
    /// # Errors
    /// [`FileError::Exists`], [`FileError::Unfinished`], [`FileError::Busy`]; [`FileError::Broken`] where such an
    /// output is not possible.
    pub fn check(
        file: &str,
        format: OutputFormat,
        existing: Existing,
        best: Option<usize>,
    ) -> Result<(), FileError> {
        if file == STANDARD { Ok(()) } else { before(file, format, existing, best).map(drop) }
    }

    /// Opens a target.
    ///
    /// # Errors
    /// [`FileError::Exists`], [`FileError::Unfinished`], [`FileError::Busy`], [`FileError::Differs`];
    /// [`FileError::Unfit`] where the format cannot hold the answers; [`FileError::Broken`] where the output to be
    /// continued was not written by turbo.
    pub fn open(target: &Target<'_>) -> Result<Opened, FileError> {
        let file = target.file.to_owned();
        let unfit = |why: &str| {
            Err(FileError::Unfit { file: file.clone(), format: target.format.name(), why: why.to_owned() })
        };
        if target.format == OutputFormat::Npy && !matches!(target.kind, Kind::Embedding { .. }) {
            return unfit("holds vectors only: choose JSONL or Parquet");
        }
        if target.best.is_some() && target.existing == Existing::Continue {
            return unfit("with only the best rows cannot be resumed: they are known only at the end");
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
        let (there, mark) = before(&file, target.format, target.existing, target.best)?;
        let resume = match (target.existing, &mark) {
            (Existing::Continue, None) if there => return Ok(Opened::Complete),
            (Existing::Continue, Some(mark)) if there => {
                unfinished::check(&file, mark.made_from(), target.made_from)?;
                matches!(mark, Mark::Job(_))
            }
            _ => false,
        };
        let replaces = there && !resume;
        let made_from = target.made_from.clone();
        let sizes_before = sizes(Path::new(&file));
        // Written before the output: an output without the small file counts as complete.
        let new_mark = if replaces { Mark::Replacing(made_from) } else { Mark::Job(made_from) };
        let mut unfinished = Unfinished::begin(&file, &new_mark)?;
        let begun = match begin(target, resume) {
            Ok(begun) => begun,
            Err(error) => {
                // If nothing of the earlier output was removed, it is as complete as before.
                if mark.is_none() && sizes(Path::new(&file)) == sizes_before {
                    unfinished.remove()?;
                }
                return Err(error);
            }
        };
        if replaces {
            unfinished.replaced(&file, target.made_from)?;
        }
        let begun = Begun { sink: best::only(target.best, begun.sink), ..begun };
        Ok(Opened::Ready(Self::new(file, begun, Some(unfinished))))
    }

    fn new(file: String, Begun { sink, rows, bad_rows }: Begun, unfinished: Option<Unfinished>) -> Self {
        Self { file, sink, unfinished, rows, bad_rows, synced: Instant::now() }
    }

    /// Rows that it holds, which is the index of the next answer's row.
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

    /// Completes the output.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn finish(mut self) -> Result<(), FileError> {
        self.sink.close().map_err(FileError::io(&self.file))?;
        self.unfinished.map_or(Ok(()), Unfinished::remove)
    }

    /// Closes the output incomplete, so that it can be continued later.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn interrupt(mut self) -> Result<(), FileError> {
        self.sink.close().map_err(FileError::io(&self.file))
    }
}

/// Whether an output exists, and its mark if it is not complete.
///
/// # Errors
/// As [`Output::check`].
fn before(
    file: &str,
    format: OutputFormat,
    existing: Existing,
    best: Option<usize>,
) -> Result<(bool, Option<Mark>), FileError> {
    check_place(Path::new(file), format)
        .map_err(|why| FileError::Broken { file: file.to_owned(), why: why.to_owned() })?;
    let there = fs::symlink_metadata(file).is_ok();
    let mark = unfinished::mark_of(file)?;
    match (existing, &mark) {
        (Existing::Keep, None) if there => Err(FileError::Exists { file: file.to_owned() }),
        (Existing::Keep, Some(_)) if there => {
            let flags = match best {
                None => "--resume to continue it, or --overwrite to start over",
                // The best rows are known only at the end, so such an output cannot be continued.
                Some(_) => "--overwrite to start over",
            };
            Err(FileError::Unfinished { file: file.to_owned(), flags })
        }
        _ => Ok((there, mark)),
    }
}

/// Checks that an output of that format is possible at `path`, before anything is written.
fn check_place(path: &Path, format: OutputFormat) -> Result<(), &'static str> {
    if !folder_of(path).is_dir() {
        return Err("its folder does not exist");
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

/// The file of an output, or those in its folder, with their sizes, to detect whether anything was removed.
fn sizes(output: &Path) -> BTreeMap<PathBuf, u64> {
    let files: Vec<PathBuf> = match fs::read_dir(output) {
        Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
        Err(_) => vec![output.to_owned()],
    };
    let size = |file: PathBuf| fs::metadata(&file).ok().map(|metadata| (file, metadata.len()));
    files.into_iter().filter_map(size).collect()
}

/// Begins an output anew, or finds where to continue. What it removes is gone from the disk when it returns.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of a complete Parquet part: only complete parts are continued.
    const ROWS: u64 = 10_000;

    fn formats() -> impl Iterator<Item = (&'static str, OutputFormat)> {
        let all = [
            ("out.jsonl", OutputFormat::Jsonl),
            ("out.npy", OutputFormat::Npy),
            ("out.parquet", OutputFormat::Parquet),
        ];
        all.into_iter().filter(|(_, format)| cfg!(feature = "parquet") || *format != OutputFormat::Parquet)
    }

    fn made_from(model: &str) -> MadeFrom {
        MadeFrom::from([("model".to_owned(), model.to_owned())])
    }

    fn open(file: &Path, format: OutputFormat, model: &str, existing: Existing) -> Result<Opened, FileError> {
        Output::open(&Target {
            file: file.to_str().unwrap(),
            format,
            kind: Kind::Embedding { dimensions: 2 },
            made_from: &made_from(model),
            existing,
            best: None,
        })
    }

    fn begun(file: &Path, format: OutputFormat, model: &str, existing: Existing) -> Output {
        match open(file, format, model, existing).unwrap() {
            Opened::Ready(output) => output,
            Opened::Complete => panic!("it is complete"),
        }
    }

    fn with_rows(mut output: Output) -> Output {
        for _ in 0..ROWS {
            output.write(Ok(&Answer::Embedding(vec![0.5, 1.0]))).unwrap();
        }
        output
    }

    /// As if a run with `--overwrite` was killed right after it wrote the small file.
    #[test]
    fn rows_of_what_is_replaced_are_not_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        for (name, format) in formats() {
            let file = folder.path().join(name);
            with_rows(begun(&file, format, "old", Existing::Keep)).finish().unwrap();
            let mark = Mark::Replacing(made_from("new"));
            drop(Unfinished::begin(file.to_str().unwrap(), &mark).unwrap());
            let kept = open(&file, format, "new", Existing::Keep);
            assert!(matches!(kept, Err(FileError::Unfinished { .. })), "{name}");
            let other = open(&file, format, "old", Existing::Continue);
            assert!(matches!(other, Err(FileError::Differs { .. })), "{name}");
            let output = begun(&file, format, "new", Existing::Continue);
            assert_eq!((output.rows(), output.bad_rows()), (0, 0), "{name}");
        }
    }

    #[test]
    fn rows_behind_what_was_replaced_are_gone_on_with() {
        let folder = tempfile::tempdir().unwrap();
        for (name, format) in formats() {
            let file = folder.path().join(name);
            with_rows(begun(&file, format, "old", Existing::Keep)).finish().unwrap();
            with_rows(begun(&file, format, "new", Existing::Replace)).interrupt().unwrap();
            let output = begun(&file, format, "new", Existing::Continue);
            assert_eq!(output.rows(), ROWS, "{name}");
        }
        let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        assert_eq!(left.filter(|path| path.extension().is_some_and(|end| end == "tmp")).count(), 0);
    }

    /// One part is a folder, so removing it as a file fails.
    #[cfg(feature = "parquet")]
    #[test]
    fn what_is_removed_in_part_is_not_complete() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("out.parquet");
        let unfinished = folder.path().join("out.parquet.unfinished");
        fs::create_dir_all(file.join("part-00000.parquet")).unwrap();
        let replaces = || open(&file, OutputFormat::Parquet, "new", Existing::Replace).is_ok();
        assert!(!replaces() && !unfinished.exists(), "what stands there is what it was");
        for part in 1..20 {
            fs::write(file.join(format!("part-{part:05}.parquet")), "").unwrap();
        }
        assert!(!replaces());
        // The folder lists them in any order, so the one that stays may be the first.
        assert_eq!(unfinished.exists(), fs::read_dir(&file).unwrap().count() < 20);
    }
}
