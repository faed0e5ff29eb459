//! `turbo embed`, `turbo classify` and `turbo rerank`: files in, files out.
//!
//! What all three share is here: the flags for files, the model, how it ends.

pub(super) mod classify;
pub(super) mod embed;
mod model;
mod paths;
mod progress;
pub(super) mod rerank;

use std::{
    io::ErrorKind,
    num::NonZeroUsize,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result, bail};
use clap::{ArgAction, Args, ValueEnum};
use turbo_models::Truncation;
use turbo_serve::engine::EngineConfig;
use turbo_serve::files::{
    FileError, InputFormat, OutputFormat, Quotes, STANDARD,
    pipeline::{self, Ending, Sizes, Summary},
    read::{Cell, Rows},
    write::{Existing, Kind, MadeFrom, Opened, Output, Target},
};

use super::{caches::PackedCacheArguments, number::above_0, output, shutdown};
use model::Compiled;
use progress::Progress;

/// Some rows have no answer; the first of them were told on standard error.
const SOME_BAD: u8 = 3;

/// Stopped by a signal, as shells say it of Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Behind `-h`: how it is used, and where the rest is.
fn short_help(examples: &str) -> String {
    format!("{examples}\n\n--help says more about formats, bad rows, --resume and exit codes.")
}

/// Behind `--help`.
fn long_help(examples: &str) -> String {
    format!("{examples}\n\n{ABOUT_FILES}")
}

/// What the help of all three says of files. Its lines are short: help is wrapped to the terminal, without indents.
const ABOUT_FILES: &str = "\
Formats of the input, by the end of its name:
  .txt             one text per line; an empty line is an empty text
  .jsonl .ndjson   one object per line
  .csv .tsv        column names in the first line; --quotes false if quotes enclose nothing
  .parquet         snappy, gzip, lz4 or no compression
  -                standard input, lines of text unless --input-format says otherwise
A line longer than 16 MiB has no answer; a CSV or TSV record longer than that ends the run.

Formats of the output:
  .jsonl           one object per line: {\"index\":0,…}, or {\"index\":7,\"error\":\"…\"} for a row
                   without an answer
  .npy             one array [rows, dimensions] of f32, for vectors only; a row without an answer
                   is all NaN
  .parquet         a folder of files of 10000 rows; the column `error` says why a row has no
                   answer
  -                standard output, JSONL

The output has one row for each row of the input, in the same order. A row that cannot be read or
does not suit the model has no answer, and the run continues with the next one. The first 20 such
rows are reported on standard error with their line numbers; the others are only counted.

Ctrl-C and SIGTERM leave a sound file, with OUTPUT.unfinished beside it. A hangup ends a run as a
kill does; under nohup the run continues. The same command with --resume continues where the run
stopped. On a CPU of the same kind, the output is then the same, byte for byte, as that of a run
that was never stopped. If nothing was begun, --resume begins. It refuses an input or a model
folder that has changed since. A run whose input changes while it is read fails.

--resume leaves a complete output as it is. A complete output does not record how it was made:
pass --overwrite to make it with another model or other flags. --resume is not possible for the
best rows of all (rerank --query --top-k), from standard input or to standard output. Whether a
named pipe still delivers the same input, only you can know.

Exit codes:
  0                every row has its answer, the output was complete before, or the reader of
                   standard output has closed it (| head)
  1                it failed; also if the flags do not suit the files or the model
  2                the command line was not understood: an unknown flag, a wrong value, or two
                   flags that exclude each other
  3                some rows have no answer
  130              it was interrupted";

/// Which files, and how they are worked through.
#[derive(Args)]
pub(super) struct FileArguments {
    /// File to read, or `-` for standard input
    #[arg(value_name = "INPUT", default_value = STANDARD)]
    input: String,
    /// File to write, or `-` for standard output
    #[arg(value_name = "OUTPUT", default_value = STANDARD)]
    output: String,

    /// Format of the input, if its name does not tell
    #[arg(long, value_enum, help_heading = "Files")]
    input_format: Option<InputArgument>,
    /// Whether quotes enclose values of CSV and TSV, by default `true`
    ///
    /// A quote at the beginning of a value encloses it up to the next quote, even across line ends. With `false`, a
    /// quote is a character like any other, as in tables that were written without quoting.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set,
          help_heading = "Files")]
    quotes: Option<bool>,
    /// Format of the output, if its name does not tell
    #[arg(long, value_enum, help_heading = "Files")]
    format: Option<OutputArgument>,
    /// Replace an output that exists
    #[arg(long, help_heading = "Files", conflicts_with = "resume")]
    overwrite: bool,
    /// Continue an interrupted output, or begin a new one
    #[arg(long, help_heading = "Files")]
    resume: bool,
    /// Print neither progress nor a summary
    ///
    /// Rows without an answer are still reported: the first 20, and the number of all if there are more.
    #[arg(short, long, help_heading = "Files")]
    quiet: bool,

    /// Cut the ends of texts that are too long for the model
    ///
    /// With `false`, such a row has no answer.
    #[arg(long, env, value_name = "BOOL", default_value_t = true, num_args = 0..=1,
          default_missing_value = "true", action = ArgAction::Set, help_heading = "Model")]
    auto_truncate: bool,

    /// Maximum number of tokens in one batch
    #[arg(long, value_name = "N", value_parser = above_0::<NonZeroUsize>, default_value_t = DEFAULT_BATCH_TOKENS, help_heading = "Machine")]
    max_batch_tokens: NonZeroUsize,
    /// Threads that tokenize texts
    ///
    /// At most 1024. By default, as many as `--threads` leaves of the threads that the system lets this process use, at
    /// least one and at most 64.
    #[arg(long, env, value_name = "N", value_parser = workers, help_heading = "Machine")]
    tokenization_workers: Option<NonZeroUsize>,
    #[command(flatten)]
    packed_cache: PackedCacheArguments,
}

/// What `--tokenization-workers` takes.
fn workers(text: &str) -> Result<NonZeroUsize, String> {
    const MOST: usize = EngineConfig::MOST_TOKENIZATION_WORKERS;
    let workers: NonZeroUsize = above_0(text)?;
    if workers.get() > MOST { Err(format!("expected at most {MOST}")) } else { Ok(workers) }
}

/// Beyond this the CPU gains nothing, and an interruption loses more.
const DEFAULT_BATCH_TOKENS: NonZeroUsize = NonZeroUsize::new(4096).expect("it is not zero");

/// Batches that are sorted by length at a time.
const WINDOW_BATCHES: usize = 8;

#[derive(Clone, Copy, ValueEnum)]
enum InputArgument {
    /// One text per line
    Text,
    /// One object per line
    Jsonl,
    /// Values between commas, column names in the first line
    Csv,
    /// Values between tabs, column names in the first line
    Tsv,
    /// Parquet
    Parquet,
}

#[derive(Clone, Copy, ValueEnum)]
enum OutputArgument {
    /// One object per line
    Jsonl,
    /// A NumPy array
    Npy,
    /// A folder of Parquet files
    Parquet,
}

impl FileArguments {
    fn truncation(&self) -> Truncation {
        if self.auto_truncate { Truncation::Right } else { Truncation::Off }
    }

    fn input_format(&self) -> Result<InputFormat, FileError> {
        let quotes = if self.quotes == Some(false) { Quotes::Text } else { Quotes::Around };
        Ok(match self.input_format {
            None => InputFormat::of(&self.input, "--input-format")?.with_quotes(quotes),
            Some(InputArgument::Text) => InputFormat::Lines,
            Some(InputArgument::Jsonl) => InputFormat::Jsonl,
            Some(InputArgument::Csv) => InputFormat::Csv(quotes),
            Some(InputArgument::Tsv) => InputFormat::Tsv(quotes),
            Some(InputArgument::Parquet) => InputFormat::Parquet,
        })
    }

    /// # Errors
    /// `--quotes` for an input that has none.
    fn check_quotes(&self) -> Result<()> {
        match (self.quotes, self.input_format()?) {
            (None, _) | (_, InputFormat::Csv(_) | InputFormat::Tsv(_)) => Ok(()),
            (Some(quotes), other) => bail!(
                "--quotes {quotes}: only CSV and TSV have quotes, the input is {}: leave it out, or pass --input-format",
                other.name()
            ),
        }
    }

    fn is_lines(&self) -> Result<bool, FileError> {
        Ok(self.input_format()? == InputFormat::Lines)
    }

    /// The column of the only text of a row: the one that `flag` names, or else `usual`.
    ///
    /// # Errors
    /// A column of lines of text, which have none.
    fn only_column(&self, flag: &str, named: Option<&String>, usual: &str) -> Result<String> {
        match named {
            Some(name) if self.is_lines()? => {
                bail!("{flag} {name}: lines of text have no columns: leave it out, or pass --input-format")
            }
            Some(name) => Ok(name.clone()),
            None => Ok(usual.to_owned()),
        }
    }

    fn output_format(&self) -> Result<OutputFormat, FileError> {
        Ok(match self.format {
            None => return OutputFormat::of(&self.output, "--format"),
            Some(OutputArgument::Jsonl) => OutputFormat::Jsonl,
            Some(OutputArgument::Npy) => OutputFormat::Npy,
            Some(OutputArgument::Parquet) => OutputFormat::Parquet,
        })
    }

    fn existing(&self) -> Existing {
        match (self.overwrite, self.resume) {
            (true, _) => Existing::Replace,
            (_, true) => Existing::Continue,
            _ => Existing::Keep,
        }
    }

    fn sizes(&self, compute_threads: NonZeroUsize) -> Sizes {
        let spare = || EngineConfig::workers_beside(compute_threads);
        let batch_tokens = self.max_batch_tokens.get();
        Sizes {
            batch_tokens,
            window_tokens: batch_tokens.saturating_mul(WINDOW_BATCHES),
            tokenizer_threads: self.tokenization_workers.map_or_else(spare, NonZeroUsize::get),
        }
    }

    /// Opens the input before anything that takes time, so that a wrong name is told at once. `best` are the rows that
    /// are written alone, if so.
    fn open(&self, columns: &[String], best: Option<usize>) -> Result<Rows> {
        // What is wrong with the output is told as soon.
        let format = self.output_format()?;
        self.check_quotes()?;
        paths::check_apart(&self.input, &self.output)?;
        if self.resume && self.is_from_standard_input() {
            bail!(
                "--resume: standard input may not be what it was before: write it into a file and name that, or pass \
                 --overwrite to start over"
            );
        }
        Output::check(&self.output, format, self.existing(), best).map_err(|error| match error {
            FileError::Unfinished { file, .. } if self.is_from_standard_input() => {
                FileError::Unfinished { file, flags: "--overwrite to start over" }
            }
            other => other,
        })?;
        Ok(Rows::open(&self.input, self.input_format()?, columns)?)
    }

    /// What the answers are made from, so far as it is about files; `rows` are those of the input.
    fn made_from(&self, command: &str, columns: &[String], rows: &Rows) -> Result<MadeFrom, FileError> {
        let field = |name: &str, value: String| (name.to_owned(), value);
        let mut made_from = MadeFrom::from([
            field("command", command.to_owned()),
            field("input", self.input.clone()),
            field("--input-format", self.input_format()?.name().to_owned()),
            field("columns", columns.join(", ")),
            field("--auto-truncate", self.auto_truncate.to_string()),
        ]);
        // Only where it counts, so that what was begun before there was a choice can go on.
        if matches!(self.input_format()?, InputFormat::Csv(Quotes::Text) | InputFormat::Tsv(Quotes::Text)) {
            made_from.extend([field("--quotes", false.to_string())]);
        }
        made_from.extend(rows.file.iter().flat_map(paths::input_state));
        Ok(made_from)
    }

    /// Answers all rows.
    fn run<J: pipeline::Job>(&self, work: Work<'_, J>) -> Result<ExitCode> {
        let target = Target {
            file: &self.output,
            format: self.output_format()?,
            kind: work.kind,
            made_from: &work.made_from,
            existing: self.existing(),
            best: work.best,
        };
        let answers = match Output::open(&target)? {
            Opened::Ready(answers) => answers,
            Opened::Complete => {
                paths::check_complete(&self.input, work.compute.own_folder(), &self.output)?;
                self.say(format_args!(
                    "{} is complete: nothing to resume (it does not record how it was made: pass --overwrite if the model \
                     or the flags have changed)",
                    self.output
                ));
                return Ok(ExitCode::SUCCESS);
            }
        };
        let stop = stop_on_signals()?;
        let go_on = match (self.is_pipe(), work.best) {
            (true, _) => "",
            // The best of all are known at the end.
            (false, Some(_)) => ": pass --overwrite to start over",
            (false, None) if self.is_from_standard_input() => ": pass --overwrite to start over",
            (false, None) if self.overwrite => {
                ": to continue, run the same command with --resume in place of --overwrite"
            }
            (false, None) => ": to continue, run the same command with --resume",
        };
        let progress = Progress::start(&work.rows, answers.rows(), self.quiet);
        let meter = progress.meter();
        let threads = work.compute.threads();
        let done = pipeline::run(
            work.rows,
            &Arc::new(work.job),
            work.compute,
            answers,
            self.sizes(threads),
            progress,
            &stop,
        );
        match done {
            Ok(summary) => Ok(self.end(summary, &meter, go_on)),
            // The reader of the pipe has closed it, as `head` does.
            Err(FileError::Io { why, .. }) if self.is_pipe() && why.kind() == ErrorKind::BrokenPipe => {
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn is_pipe(&self) -> bool {
        self.output == STANDARD
    }

    /// Whether the input has no name, so that nothing tells whether it is the same in a later run.
    fn is_from_standard_input(&self) -> bool {
        self.input == STANDARD
    }

    /// Says how it ended, and after an interruption how to `go_on`.
    fn end(&self, summary: Summary, meter: &progress::Meter, go_on: &str) -> ExitCode {
        let Summary { ending, rows, bad_rows } = summary;
        let bad = if bad_rows > 0 { format!("; {bad_rows} have no answer") } else { String::new() };
        if self.quiet && bad_rows > progress::TOLD {
            output::note(&format!("{rows} rows{bad}"));
        }
        match ending {
            Ending::Finished => {
                self.say(format_args!("{rows} rows, {}{bad}", meter.rate(rows)));
                if bad_rows > 0 { ExitCode::from(SOME_BAD) } else { ExitCode::SUCCESS }
            }
            Ending::Interrupted => {
                self.say(format_args!("interrupted after {rows} rows{bad}{go_on}"));
                ExitCode::from(INTERRUPTED)
            }
        }
    }

    fn say(&self, what: std::fmt::Arguments<'_>) {
        if !self.quiet {
            output::note(&what.to_string());
        }
    }
}

/// What one of the commands does with rows.
struct Work<'a, J> {
    rows: Rows,
    job: J,
    compute: &'a mut Compiled,
    kind: Kind,
    made_from: MadeFrom,
    best: Option<usize>,
}

/// True after SIGINT or SIGTERM; a second one ends the process at once. SIGHUP is not listened for: where it is
/// ignored, as under `nohup`, the run is to go on, and elsewhere it ends the process as a kill does, from which
/// `--resume` goes on where it can.
fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let hear = move || {
        if told.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED.into());
        }
        true
    };
    shutdown::on_signal(hear).context("cannot listen for signals")?;
    Ok(stop)
}

/// The text of a row that has one column.
fn only_text(cells: Vec<Cell>) -> Result<String, String> {
    cells.into_iter().next().ok_or_else(|| "no value".to_owned()).and_then(text)
}

fn text(cell: Cell) -> Result<String, String> {
    match cell {
        Cell::Text(text) => Ok(text),
        Cell::List(texts) => Err(format!("a list of {} texts, expected a text", texts.len())),
    }
}

/// What the model gave for a row of one input.
fn only_output(outputs: Vec<Vec<f32>>) -> Result<Vec<f32>, String> {
    outputs.into_iter().next().ok_or_else(|| "the model gave nothing".to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        files: FileArguments,
    }

    fn files(arguments: &[&str]) -> FileArguments {
        Command::parse_from([&["turbo"], arguments].concat()).files
    }

    #[test]
    fn what_an_output_is_made_from_is_the_input_that_was_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        fs::write(path("in.txt"), "a cat\n").unwrap();
        fs::write(path("other.txt"), "a cat that is another\n").unwrap();
        let changed = std::time::UNIX_EPOCH + std::time::Duration::from_millis(1500);
        fs::File::options().write(true).open(path("in.txt")).unwrap().set_modified(changed).unwrap();
        let (files, columns) = (files(&[&path("in.txt"), &path("out.jsonl")]), ["text".to_owned()]);
        let rows = files.open(&columns, None).unwrap();
        fs::rename(path("other.txt"), path("in.txt")).unwrap();
        let made_from = files.made_from("embed", &columns, &rows).unwrap();
        assert_eq!(made_from["size of the input"], "6 bytes");
        assert_eq!(made_from["input's time of change"], "1.500000000");
        assert_eq!((made_from["--input-format"].as_str(), made_from.get("--quotes")), ("text", None));
    }

    #[test]
    fn quotes_are_those_of_tables() {
        let format = |arguments: &[&str]| files(arguments).input_format().unwrap();
        assert_eq!(format(&["in.tsv", "-"]), InputFormat::Tsv(Quotes::Around));
        assert_eq!(format(&["in.tsv", "-", "--quotes=false"]), InputFormat::Tsv(Quotes::Text));
        let said = ["-", "-", "--input-format=csv", "--quotes=false"];
        assert_eq!(format(&said), InputFormat::Csv(Quotes::Text));
        for (arguments, is) in [
            (
                &["in.jsonl", "-", "--quotes=false"][..],
                "--quotes false: only CSV and TSV have quotes, the input is jsonl",
            ),
            (
                &["in.parquet", "-", "--quotes"],
                "--quotes true: only CSV and TSV have quotes, the input is parquet",
            ),
            (
                &["-", "-", "--quotes=false"],
                "--quotes false: only CSV and TSV have quotes, the input is text",
            ),
        ] {
            let said = files(arguments).open(&["text".to_owned()], None).err().unwrap().to_string();
            assert!(said.starts_with(is) && said.contains("--input-format"), "{said}");
        }
    }

    #[test]
    fn tokenization_workers_are_bounded_as_those_of_a_server() {
        let parsed = |workers: &str| Command::try_parse_from(["turbo", "--tokenization-workers", workers]);
        assert!(parsed("1024").is_ok());
        let said = parsed("1025").err().unwrap().to_string();
        assert!(said.contains("expected at most 1024"), "{said}");
    }

    #[test]
    fn formats_have_the_names_of_their_arguments() {
        for argument in InputArgument::value_variants() {
            let name = argument.to_possible_value().unwrap().get_name().to_owned();
            let files = files(&["-", "-", "--input-format", &name]);
            assert_eq!(files.input_format().unwrap().name(), name);
        }
    }
}
