//! Values separated by commas or tabs, with names in the first line.

use std::io::{self, BufRead, Read};

use ::csv::{ByteRecord, Reader, ReaderBuilder, StringRecord};

use super::{Cell, Row, positions};
use crate::files::{FileError, MAX_ROW_BYTES, Quotes};

/// Records after a line of names.
pub(super) struct Records<R> {
    file: String,
    reader: Reader<Bounded<R>>,
    /// Number of values in every record.
    width: usize,
    wanted: Vec<usize>,
    record: ByteRecord,
    failed: bool,
}

impl<R: BufRead> Records<R> {
    /// # Errors
    /// [`FileError::Column`]; [`FileError::Broken`] without a first line.
    pub(super) fn open(
        file: String,
        input: R,
        delimiter: u8,
        quotes: Quotes,
        columns: &[String],
    ) -> Result<Self, FileError> {
        let input = Bounded { input, left: ALLOWED, end: End::Ahead };
        let mut builder = ReaderBuilder::new();
        builder.delimiter(delimiter).quoting(quotes == Quotes::Around).flexible(true);
        let mut reader = builder.from_reader(input);
        let names = reader.byte_headers().map_err(|error| broken(&file, 1, error))?;
        let names: Vec<String> =
            StringRecord::from_byte_record_lossy(names.clone()).iter().map(str::to_owned).collect();
        if names.is_empty() {
            return Err(FileError::Broken {
                file,
                why: "it is empty, expected a line of column names".into(),
            });
        }
        if reader.get_ref().end == End::Passed {
            return Err(open_quote(&file, 1));
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
            Ok(true) if self.reader.get_ref().end == End::Passed => {
                self.failed = true;
                Some(Err(open_quote(&self.file, before)))
            }
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

/// The error for a record that begins in `line` and ends in an open value at the file's end.
fn open_quote(file: &str, line: u64) -> FileError {
    let why = "a record that begins here ends in the middle of a value: is a quote not closed?";
    FileError::Broken { file: format!("{file}:{line}"), why: why.to_owned() }
}

fn broken(file: &str, line: u64, error: ::csv::Error) -> FileError {
    let file = format!("{file}:{line}");
    match error.into_kind() {
        ::csv::ErrorKind::Io(why) => FileError::Io { file, why },
        other => FileError::Broken { file, why: format!("{other:?}") },
    }
}

/// Most bytes read for one record: the reader may take a buffer more than it needs.
const ALLOWED: usize = MAX_ROW_BYTES + (1 << 16);

/// An input that fails when one record is too long, as after a quote that is never closed.
struct Bounded<R> {
    input: R,
    left: usize,
    end: End,
}

/// How much of the end of an input the reader has been given.
///
/// A line end is appended to every input. It ends the last record, or is an empty line. Only inside an open quote is it
/// text, and then the reader reads on in the middle of a record. So only the reader has to know the rules of quoting.
#[derive(PartialEq)]
enum End {
    Ahead,
    /// The line end was given.
    Marked,
    /// The reader has read on after it.
    Passed,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            let why =
                format!("a record of more than {MAX_ROW_BYTES} bytes begins here: is a quote not closed?");
            return Err(io::Error::other(why));
        }
        if self.end != End::Ahead {
            self.end = End::Passed;
            return Ok(0);
        }
        let most = buffer.len().min(self.left);
        let read = self.input.read(&mut buffer[..most])?;
        self.left -= read;
        if read > 0 || buffer.is_empty() {
            return Ok(read);
        }
        self.end = End::Marked;
        buffer[0] = b'\n';
        Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(input: &[u8], columns: &[&str]) -> Result<Vec<Result<Row, FileError>>, FileError> {
        let columns: Vec<String> = columns.iter().map(|&column| column.into()).collect();
        Ok(Records::open("f.csv".into(), input, b',', Quotes::Around, &columns)?.collect())
    }

    /// As in tab-separated files without quoting.
    #[test]
    fn a_quote_may_be_a_character_as_any_other() {
        let input = "id\ttext\n1\t\"so it begins\n2\tand ends\" here\n3\t\"x\"\n".as_bytes();
        let cells = |quotes| {
            let columns = ["text".to_owned()];
            let rows = Records::open("f.tsv".into(), input, b'\t', quotes, &columns).unwrap();
            rows.map(|row| row.unwrap().cells.unwrap()).collect::<Vec<_>>()
        };
        let text = |text: &str| vec![Cell::Text(text.into())];
        let as_written = [text("\"so it begins"), text("and ends\" here"), text("\"x\"")];
        assert_eq!(cells(Quotes::Text), as_written);
        assert_eq!(cells(Quotes::Around), [text("so it begins\n2\tand ends here"), text("x")]);
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
    fn a_quote_that_is_not_closed_is_told() {
        for (input, line) in [
            ("text\n\"open\nb\nc\n", 2),
            ("text\na\n\"open", 3),
            ("text\na\n\"b\"\"", 3),
            ("\u{feff}text,id\n1,\"", 2),
            ("\"text\na\n", 1),
            ("\u{feff}\"text\na\n", 1),
        ] {
            let error = match rows(input.as_bytes(), &["text"]) {
                Ok(rows) => rows.into_iter().find_map(Result::err),
                Err(error) => Some(error),
            };
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            let names_it =
                error.starts_with(&format!("f.csv:{line}: ")) && error.contains("a quote not closed");
            assert!(names_it, "{input:?}: {error:?}");
        }
        for (input, count) in [
            ("text", 0),
            ("text\n", 0),
            ("text\n\"a\"", 1),
            ("text\r\n\"a\"\r\nb\r\n", 2),
            ("text\ra\r", 1),
            ("text\n\n\"a\nb\"\n\n", 1),
            ("text\n5\" of snow\n\"\"\n\"a\" b \"\n", 3),
            ("\u{feff}\"text\"\n\"\"\"\"", 1),
        ] {
            let rows = rows(input.as_bytes(), &["text"]).unwrap();
            assert_eq!(rows.len(), count, "{input:?}");
            assert!(rows.iter().all(Result::is_ok), "{input:?}");
        }
    }

    #[test]
    fn a_quote_that_is_not_closed_is_not_read_to_the_end_of_a_huge_file() {
        let endless = io::repeat(b'a');
        let input = io::BufReader::new((&b"text\nfine\n\"open"[..]).chain(endless));
        let records = Records::open("f.csv".into(), input, b',', Quotes::Around, &["text".to_owned()]);
        let rows: Vec<_> = records.unwrap().collect();
        assert_eq!(rows.len(), 2);
        let error = rows[1].as_ref().unwrap_err().to_string();
        assert!(error.starts_with("f.csv:3: a record of more than"), "{error}");
    }
}
