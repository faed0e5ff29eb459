//! Values separated by commas or tabs, with names in the first line.

use std::io::{self, BufRead, Read};

use ::csv::{ByteRecord, Reader, ReaderBuilder, StringRecord};

use super::{Cell, Row, positions};
use crate::files::{FileError, MAX_ROW_BYTES};

/// Records behind a line of names.
pub(super) struct Records<R> {
    file: String,
    reader: Reader<Bounded<R>>,
    /// Values of every record.
    width: usize,
    wanted: Vec<usize>,
    record: ByteRecord,
    failed: bool,
}

impl<R: BufRead> Records<R> {
    /// # Errors
    /// [`FileError::Column`]; [`FileError::Broken`] without a first line.
    pub(super) fn open(file: String, input: R, delimiter: u8, columns: &[String]) -> Result<Self, FileError> {
        let input = Bounded { input, left: ALLOWED };
        let mut reader = ReaderBuilder::new().delimiter(delimiter).flexible(true).from_reader(input);
        let names = reader.byte_headers().map_err(|error| broken(&file, 1, error))?;
        let names: Vec<String> =
            StringRecord::from_byte_record_lossy(names.clone()).iter().map(str::to_owned).collect();
        if names.is_empty() {
            return Err(FileError::Broken {
                file,
                why: "it is empty, expected a line of column names".into(),
            });
        }
        let wanted = positions(&file, columns, &names)?;
        Ok(Self { file, reader, width: names.len(), wanted, record: ByteRecord::new(), failed: false })
    }

    fn cells(&self) -> Result<Vec<Cell>, String> {
        if self.record.len() != self.width {
            return Err(format!("{} values, expected {}", self.record.len(), self.width));
        }
        let cell = |&at: &usize| match std::str::from_utf8(&self.record[at]) {
            Ok(text) => Ok(Cell::Text(text.to_owned())),
            Err(_) => Err(format!("value {} is not UTF-8", at + 1)),
        };
        self.wanted.iter().map(cell).collect()
    }
}

impl<R: BufRead> Iterator for Records<R> {
    type Item = Result<Row, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        self.reader.get_mut().left = ALLOWED;
        let before = self.reader.position().line();
        match self.reader.read_byte_record(&mut self.record) {
            Ok(false) => None,
            Ok(true) => {
                let number = self.record.position().map_or(before, ::csv::Position::line);
                Some(Ok(Row { number, end: self.reader.position().byte(), cells: self.cells() }))
            }
            Err(error) => {
                self.failed = true;
                Some(Err(broken(&self.file, before, error)))
            }
        }
    }
}

fn broken(file: &str, line: u64, error: ::csv::Error) -> FileError {
    let file = format!("{file}:{line}");
    match error.into_kind() {
        ::csv::ErrorKind::Io(source) => FileError::Io { file, source },
        other => FileError::Broken { file, why: format!("{other:?}") },
    }
}

/// What may be read for one record: the reader takes a buffer more than it needs.
const ALLOWED: usize = MAX_ROW_BYTES + (1 << 16);

/// An input that ends in an error where one record would never end, as behind a quote that nobody closes.
struct Bounded<R> {
    input: R,
    left: usize,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            let why =
                format!("a record of more than {MAX_ROW_BYTES} bytes begins here: is a quote not closed?");
            return Err(io::Error::other(why));
        }
        let most = buffer.len().min(self.left);
        let read = self.input.read(&mut buffer[..most])?;
        self.left -= read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(input: &[u8], columns: &[&str]) -> Result<Vec<Result<Row, FileError>>, FileError> {
        let columns: Vec<String> = columns.iter().map(|&column| column.into()).collect();
        Ok(Records::open("f.csv".into(), input, b',', &columns)?.collect())
    }

    #[test]
    fn records_may_span_lines() {
        let rows =
            rows("\u{feff}id,text\n1,\"two\nlines\"\n2,\"a \"\"b\"\"\"\n".as_bytes(), &["text"]).unwrap();
        let seen: Vec<_> =
            rows.iter().map(|row| row.as_ref().unwrap()).map(|row| (row.number, &row.cells)).collect();
        let cell = |text: &str| Ok(vec![Cell::Text(text.into())]);
        assert_eq!(seen, [(2, &cell("two\nlines")), (4, &cell("a \"b\""))]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let rows_of = |input: &[u8]| rows(input, &["text"]);
        let error = rows_of(b"id,body\n1,2\n").unwrap_err().to_string();
        assert_eq!(error, "f.csv: no column \"text\", it has: id, body");
        assert_eq!(
            rows_of(b"").unwrap_err().to_string(),
            "f.csv: it is empty, expected a line of column names"
        );
        let rows = rows_of(b"id,text\n1\n2,\xff\n3,c\n").unwrap();
        let cells: Vec<_> = rows.iter().map(|row| row.as_ref().unwrap().cells.clone()).collect();
        assert_eq!(cells[0], Err("1 values, expected 2".into()));
        assert_eq!(cells[1], Err("value 2 is not UTF-8".into()));
        assert!(cells[2].is_ok());
    }

    #[test]
    fn a_quote_that_is_not_closed_is_not_read_to_the_end_of_a_huge_file() {
        let endless = io::repeat(b'a');
        let input = io::BufReader::new((&b"text\nfine\n\"open"[..]).chain(endless));
        let rows: Vec<_> =
            Records::open("f.csv".into(), input, b',', &["text".to_owned()]).unwrap().collect();
        assert_eq!(rows.len(), 2);
        let error = rows[1].as_ref().unwrap_err().to_string();
        assert!(error.starts_with("f.csv:3: a record of more than"), "{error}");
    }
}
