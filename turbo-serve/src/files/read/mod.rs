//! Files as rows of cells.
//!
//! In: a file, its format, and the names of the columns that are wanted. Out: for each row its number and either a cell
//! for every wanted column, in the order they were named, or one line on what is wrong with the row. A bad row does not
//! end the reading; a file that is not of its format does.

mod csv;
mod jsonl;
mod lines;
#[cfg(feature = "parquet")]
mod parquet;

use std::{
    fs::{File, Metadata},
    io::{self, BufRead, BufReader},
};

use super::{FileError, InputFormat, STANDARD};

/// One row of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Number of the line that the row begins in, from 1; in a format without lines, number of the row.
    pub number: u64,
    /// How far into the file it reaches, in the units of [`Rows::total`].
    pub end: u64,
    /// The wanted cells, or what is wrong with the row.
    pub cells: Result<Vec<Cell>, String>,
}

/// The value of a column in a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A text.
    Text(String),
    /// Several texts.
    List(Vec<String>),
}

/// An open file. Its iterator ends after the first error.
pub struct Rows {
    /// The file's name in messages.
    pub name: String,
    /// Size of the file, in bytes or rows, where it is known.
    pub total: Option<u64>,
    /// The metadata of the file that was opened, which may since have been replaced; `None` if it is no regular file.
    pub file: Option<Metadata>,
    /// That file once more, to look at the end whether it is still the same.
    opened: Option<File>,
    rows: Box<dyn Iterator<Item = Result<Row, FileError>> + Send>,
}

impl Rows {
    /// Opens `file`, or standard input where that is `-`. `columns` are the wanted ones; lines of text have one,
    /// whatever it is called.
    ///
    /// # Errors
    /// [`FileError`] when it is not there, has no such column, or cannot be of that format.
    pub fn open(file: &str, format: InputFormat, columns: &[String]) -> Result<Self, FileError> {
        if file == STANDARD {
            let name = "standard input".to_owned();
            if format == InputFormat::Parquet {
                let why = "is read from its end: it has to be a file".to_owned();
                return Err(FileError::Unfit { file: name, format: "Parquet", why });
            }
            return Self::stream(name, None, BufReader::new(io::stdin()), format, columns);
        }
        let name = file.to_owned();
        let opened = File::open(file).map_err(FileError::io(file))?;
        let metadata = opened.metadata().map_err(FileError::io(file))?;
        if metadata.is_dir() {
            return Err(FileError::Broken { file: name, why: "it is a folder, expected a file".to_owned() });
        }
        // A pipe has a name too, and no size.
        let metadata = Some(metadata).filter(Metadata::is_file);
        let again = opened.try_clone().map_err(FileError::io(file))?;
        let rows = match format {
            InputFormat::Parquet => parquet_rows(name, opened, columns)?,
            _ => {
                let size = metadata.as_ref().map(Metadata::len);
                Self::stream(name, size, BufReader::with_capacity(1 << 16, opened), format, columns)?
            }
        };
        let opened = metadata.as_ref().map(|_| again);
        Ok(Self { file: metadata, opened, ..rows })
    }

    fn stream(
        name: String,
        total: Option<u64>,
        input: impl BufRead + Send + 'static,
        format: InputFormat,
        columns: &[String],
    ) -> Result<Self, FileError> {
        let rows: Box<dyn Iterator<Item = Result<Row, FileError>> + Send> = match format {
            InputFormat::Lines if columns.len() != 1 => {
                let why =
                    format!("have one column, and {} are needed: {}", columns.len(), columns.join(", "));
                return Err(FileError::Unfit { file: name, format: "lines of text", why });
            }
            InputFormat::Lines => Box::new(lines::Texts::new(name.clone(), input)),
            InputFormat::Jsonl => {
                let mut objects = jsonl::Objects::new(name.clone(), input, columns);
                // A wrong column is reported now, and not after the output was begun.
                let first = objects.next().transpose()?;
                Box::new(first.map(Ok).into_iter().chain(objects))
            }
            InputFormat::Csv(quotes) => {
                Box::new(csv::Records::open(name.clone(), input, b',', quotes, columns)?)
            }
            InputFormat::Tsv(quotes) => {
                Box::new(csv::Records::open(name.clone(), input, b'\t', quotes, columns)?)
            }
            InputFormat::Parquet => unreachable!("Parquet is no stream, both callers have taken care of it"),
        };
        Ok(Self { name, total, file: None, opened: None, rows })
    }
}

impl Iterator for Rows {
    type Item = Result<Row, FileError>;

    /// Behind the last row, an error if the file has changed since it was opened: what came or went meanwhile may be
    /// among the rows or not.
    fn next(&mut self) -> Option<Self::Item> {
        match self.rows.next() {
            None => {
                let now = self.opened.take()?.metadata().ok()?;
                let before = self.file.as_ref()?;
                let is_same = (now.len(), now.modified().ok()) == (before.len(), before.modified().ok());
                (!is_same).then(|| Err(FileError::Changed { file: self.name.clone() }))
            }
            Some(Err(error)) => {
                self.opened = None;
                Some(Err(error))
            }
            row => row,
        }
    }
}

#[cfg(feature = "parquet")]
fn parquet_rows(name: String, file: File, columns: &[String]) -> Result<Rows, FileError> {
    let rows = parquet::Records::open(name.clone(), file, columns)?;
    Ok(Rows { name, total: Some(rows.total), file: None, opened: None, rows: Box::new(rows) })
}

#[cfg(not(feature = "parquet"))]
fn parquet_rows(name: String, _: File, _: &[String]) -> Result<Rows, FileError> {
    let why = "is not in this build: it was made without the feature `parquet`".to_owned();
    Err(FileError::Unfit { file: name, format: "Parquet", why })
}

/// The position of each of `columns` among the names `available`.
fn positions(file: &str, columns: &[String], available: &[String]) -> Result<Vec<usize>, FileError> {
    let find = |column: &String| {
        let missing = || FileError::Column {
            file: file.to_owned(),
            column: column.clone(),
            available: available.to_vec(),
        };
        let mut found = available.iter().enumerate().filter(|(_, name)| *name == column).map(|(at, _)| at);
        let at = found.next().ok_or_else(missing)?;
        match found.next() {
            None => Ok(at),
            Some(_) => Err(FileError::Broken {
                file: file.to_owned(),
                why: format!("it has several columns {column:?}"),
            }),
        }
    };
    columns.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use super::*;

    #[test]
    fn a_file_that_changes_while_it_is_read_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("texts.txt");
        let columns = ["text".to_owned()];
        let read = |change: &dyn Fn()| {
            fs::write(&file, "one\ntwo\n").unwrap();
            let mut rows = Rows::open(file.to_str().unwrap(), InputFormat::Lines, &columns).unwrap();
            rows.next().unwrap().unwrap();
            change();
            let rest: Vec<_> = rows.by_ref().collect();
            assert!(rows.next().is_none());
            rest.into_iter().find_map(Result::err).map(|error| error.to_string())
        };
        let append = || File::options().append(true).open(&file).unwrap().write_all(b"three\n").unwrap();
        let cut = || File::options().write(true).open(&file).unwrap().set_len(2).unwrap();
        for change in [&append as &dyn Fn(), &cut] {
            let said = read(change).unwrap();
            assert!(said.contains("texts.txt: it has changed while it was read"), "{said}");
        }
        assert_eq!(read(&|| ()), None);
        // another file of its name changes nothing
        let other = folder.path().join("other.txt");
        let replace = || {
            fs::write(&other, "three\n").unwrap();
            fs::rename(&other, &file).unwrap();
        };
        assert_eq!(read(&replace), None);
    }
}
