//! Lines of text, and any other format whose rows are lines.

use std::io::{self, BufRead, Read};

use super::{Cell, Row};
use crate::files::{FileError, MAX_ROW_BYTES};

/// The lines of an input, one at a time in one buffer.
pub(super) struct Lines<R> {
    input: R,
    /// Number of the last line, from 1.
    pub(super) number: u64,
    /// Bytes up to the end of the last line.
    pub(super) end: u64,
    line: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, number: 0, end: 0, line: Vec::new() }
    }

    /// The next line without its end, or what is wrong with it; `None` after the last.
    ///
    /// # Errors
    /// Those of the input.
    pub(super) fn next(&mut self) -> io::Result<Option<Result<&str, String>>> {
        self.line.clear();
        let limit = MAX_ROW_BYTES as u64 + 1;
        let read = self.input.by_ref().take(limit).read_until(b'\n', &mut self.line)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.end += read as u64;
        let ended = self.line.pop_if(|last| *last == b'\n').is_some();
        if !ended && self.line.len() > MAX_ROW_BYTES {
            self.end += self.input.skip_until(b'\n')? as u64;
            return Ok(Some(Err(format!("more than {MAX_ROW_BYTES} bytes without a line end"))));
        }
        if ended {
            self.line.pop_if(|last| *last == b'\r');
        }
        let line = std::str::from_utf8(&self.line).map_err(|error| {
            format!(
                "not UTF-8: byte {} of the line is {:#04x}",
                error.valid_up_to() + 1,
                self.line[error.valid_up_to()]
            )
        });
        // A byte order mark at the beginning of a file is no part of its text.
        let is_first = self.number == 1;
        Ok(Some(line.map(|line| if is_first { line.trim_start_matches('\u{feff}') } else { line })))
    }
}

/// A text per line; an empty line is an empty text.
pub(super) struct Texts<R> {
    file: String,
    lines: Lines<R>,
    failed: bool,
}

impl<R: BufRead> Texts<R> {
    pub(super) fn new(file: String, input: R) -> Self {
        Self { file, lines: Lines::new(input), failed: false }
    }
}

impl<R: BufRead> Iterator for Texts<R> {
    type Item = Result<Row, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let line = match self.lines.next() {
            Ok(line) => line?,
            Err(why) => {
                self.failed = true;
                return Some(Err(FileError::Io { file: self.file.clone(), why }));
            }
        };
        let cells = line.map(|text| vec![Cell::Text(text.to_owned())]);
        Some(Ok(Row { number: self.lines.number, end: self.lines.end, cells }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(input: &[u8]) -> Vec<Row> {
        Texts::new("f".into(), input).map(Result::unwrap).collect()
    }

    fn text(text: &str) -> Result<Vec<Cell>, String> {
        Ok(vec![Cell::Text(text.into())])
    }

    #[test]
    fn a_line_is_a_text_however_it_ends() {
        let rows = texts("\u{feff}one\r\n\n two \nthree".as_bytes());
        let seen: Vec<_> = rows.iter().map(|row| (row.number, row.end, row.cells.clone())).collect();
        assert_eq!(
            seen,
            [(1, 8, text("one")), (2, 9, text("")), (3, 15, text(" two ")), (4, 20, text("three"))]
        );
        assert_eq!(texts(b""), []);
        assert_eq!(texts(b"\n").len(), 1);
    }

    #[test]
    fn a_line_that_is_no_text_does_not_stop_the_others() {
        let rows = texts(b"a\nb\xff\nc\n");
        assert_eq!(rows[1].cells, Err("not UTF-8: byte 2 of the line is 0xff".into()));
        assert_eq!(rows[2].cells, text("c"));
    }

    #[test]
    fn a_line_has_at_most_so_many_bytes() {
        let fits = vec![b'a'; MAX_ROW_BYTES];
        let too_long = vec![b'a'; MAX_ROW_BYTES + 1];
        let rows = texts(&[&fits[..], b"\n", &too_long, b"\nb\n", &too_long].concat());
        let lens = rows.iter().map(|row| row.cells.is_ok()).collect::<Vec<_>>();
        assert_eq!(lens, [true, false, true, false]);
        assert_eq!(rows[3].number, 4);
        assert_eq!(rows[3].end as usize, 3 * MAX_ROW_BYTES + 6);
    }
}
