//! Formats of files, by their names.

use std::path::Path;

use super::FileError;

/// Formats of rows that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputFormat {
    /// A text per line.
    Lines,
    /// A JSON object per line.
    Jsonl,
    /// Values separated by commas, names in the first line.
    Csv(Quotes),
    /// Values separated by tabs, names in the first line.
    Tsv(Quotes),
    /// Parquet.
    Parquet,
}

/// What a `"` at the beginning of a value means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quotes {
    /// It quotes the value up to the next one, line ends included.
    #[default]
    Around,
    /// Text, like any other character: many tab-separated files are written so.
    Text,
}

/// Formats of answers that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// A JSON object per line.
    Jsonl,
    /// One array of numpy, `[rows, dimensions]` in f32.
    Npy,
    /// A folder of Parquet files.
    Parquet,
}

impl InputFormat {
    const ENDS: &[(&str, Self)] = &[
        ("txt", Self::Lines),
        ("jsonl", Self::Jsonl),
        ("ndjson", Self::Jsonl),
        ("csv", Self::Csv(Quotes::Around)),
        ("tsv", Self::Tsv(Quotes::Around)),
        ("parquet", Self::Parquet),
    ];

    /// The format by the name `file`; standard input holds lines.
    ///
    /// # Errors
    /// [`FileError::Format`].
    pub fn of(file: &str, flag: &'static str) -> Result<Self, FileError> {
        if file == super::STANDARD { Ok(Self::Lines) } else { by_end(file, Self::ENDS, flag) }
    }

    /// The same with these quotes, if the format has any.
    #[must_use]
    pub fn with_quotes(self, quotes: Quotes) -> Self {
        match self {
            Self::Csv(_) => Self::Csv(quotes),
            Self::Tsv(_) => Self::Tsv(quotes),
            other => other,
        }
    }

    /// As `--input-format` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lines => "text",
            Self::Jsonl => "jsonl",
            Self::Csv(_) => "csv",
            Self::Tsv(_) => "tsv",
            Self::Parquet => "parquet",
        }
    }
}

impl OutputFormat {
    const ENDS: &[(&str, Self)] =
        &[("jsonl", Self::Jsonl), ("ndjson", Self::Jsonl), ("npy", Self::Npy), ("parquet", Self::Parquet)];

    /// The format by the name `file`; standard output is JSONL.
    ///
    /// # Errors
    /// [`FileError::Format`].
    pub fn of(file: &str, flag: &'static str) -> Result<Self, FileError> {
        if file == super::STANDARD { Ok(Self::Jsonl) } else { by_end(file, Self::ENDS, flag) }
    }

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jsonl => "JSONL",
            Self::Npy => "NPY",
            Self::Parquet => "Parquet",
        }
    }
}

fn by_end<T: Copy>(file: &str, known: &[(&str, T)], flag: &'static str) -> Result<T, FileError> {
    let end = Path::new(file).extension().and_then(|end| end.to_str()).unwrap_or_default();
    let found = known.iter().find(|(name, _)| name.eq_ignore_ascii_case(end));
    found.map(|(_, format)| *format).ok_or_else(|| FileError::Format {
        file: file.to_owned(),
        known: known.iter().map(|(end, _)| format!(".{end}")).collect::<Vec<_>>().join(" "),
        flag,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_format() {
        let input = |file| InputFormat::of(file, "--input-format").ok();
        assert_eq!(input("a/b.TXT"), Some(InputFormat::Lines));
        assert_eq!(input("b.jsonl"), Some(InputFormat::Jsonl));
        assert_eq!(input("-"), Some(InputFormat::Lines));
        assert_eq!((input("b.json"), input("parquet"), input(".csv")), (None, None, None));
        let error = OutputFormat::of("out.json", "--format").unwrap_err().to_string();
        assert_eq!(
            error,
            "out.json: cannot tell its format from its name (known: .jsonl .ndjson .npy .parquet): pass --format"
        );
    }
}
