//! A JSON object per line.

use std::io::BufRead;

use serde_json::{Map, Value};

use super::{Cell, Row, lines::Lines};
use crate::files::FileError;

/// Objects, one per line; lines with nothing but blanks are skipped.
pub(super) struct Objects<R> {
    file: String,
    lines: Lines<R>,
    columns: Vec<String>,
    progress: Progress,
}

/// Whether the wanted columns have been seen.
#[derive(PartialEq)]
enum Progress {
    /// No object yet. If the first one lacks a wanted column, the request names the wrong columns, and reading fails.
    First,
    Later,
    Failed,
}

impl<R: BufRead> Objects<R> {
    pub(super) fn new(file: String, input: R, columns: &[String]) -> Self {
        Self { file, lines: Lines::new(input), columns: columns.to_vec(), progress: Progress::First }
    }

    fn row(&mut self) -> Result<Option<Row>, FileError> {
        loop {
            let line = match self.lines.next() {
                Err(why) => return Err(FileError::Io { file: self.file.clone(), why }),
                Ok(None) => return Ok(None),
                Ok(Some(Ok(line))) if line.trim().is_empty() => continue,
                Ok(Some(line)) => line.and_then(object),
            };
            let (number, end) = (self.lines.number, self.lines.end);
            let cells = match line {
                Ok(object) => {
                    let cells = self.columns.iter().map(|column| cell(&object, column)).collect();
                    match cells {
                        Err(Lack::Column(column)) if self.progress == Progress::First => {
                            let file = format!("{}:{number}", self.file);
                            return Err(FileError::Column { file, column, available: names(&object) });
                        }
                        cells => {
                            self.progress = Progress::Later;
                            cells.map_err(|lack| lack.message(&object))
                        }
                    }
                }
                Err(why) => Err(why),
            };
            return Ok(Some(Row { number, end, cells }));
        }
    }
}

impl<R: BufRead> Iterator for Objects<R> {
    type Item = Result<Row, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.progress == Progress::Failed {
            return None;
        }
        let row = self.row().transpose()?;
        if row.is_err() {
            self.progress = Progress::Failed;
        }
        Some(row)
    }
}

/// Why an object gives no cell.
enum Lack {
    Column(String),
    Type { column: String, got: &'static str },
}

impl Lack {
    fn message(self, object: &Map<String, Value>) -> String {
        match self {
            Self::Column(column) => {
                format!("no field {column:?}, it has: {}", crate::files::error::list(&names(object)))
            }
            Self::Type { column, got } => format!("field {column:?} is {got}, expected a text"),
        }
    }
}

fn object(line: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(line) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(format!("{}, expected an object", kind(&other))),
        // The parser is given one line, and calls it line 1.
        Err(error) => {
            Err(format!("not JSON: {}", error.to_string().replace("at line 1 column", "at column")))
        }
    }
}

/// The value of a column; a column may be wanted twice.
fn cell(object: &Map<String, Value>, column: &str) -> Result<Cell, Lack> {
    let wrong = |value: &Value| Lack::Type { column: column.to_owned(), got: kind(value) };
    let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| wrong(value));
    match object.get(column) {
        None => Err(Lack::Column(column.to_owned())),
        Some(Value::Array(values)) => values.iter().map(text).collect::<Result<_, _>>().map(Cell::List),
        Some(value) => text(value).map(Cell::Text),
    }
}

fn names(object: &Map<String, Value>) -> Vec<String> {
    object.keys().cloned().collect()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(input: &str, columns: &[&str]) -> Vec<Result<Row, FileError>> {
        let columns: Vec<String> = columns.iter().map(|&column| column.into()).collect();
        Objects::new("f.jsonl".into(), input.as_bytes(), &columns).collect()
    }

    #[test]
    fn cells_come_in_the_order_they_are_asked_for() {
        let rows = rows("{\"b\": [\"x\", \"y\"], \"a\": \"t\"}\n\n", &["a", "b"]);
        let cells = vec![Cell::Text("t".into()), Cell::List(vec!["x".into(), "y".into()])];
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].as_ref().unwrap(), &Row { number: 1, end: 28, cells: Ok(cells) });
    }

    #[test]
    fn bad_lines_say_what_they_are() {
        let rows = rows(
            "{\"a\": \"t\"}\n{\"b\": 1}\n{\"a\": 1}\n{\"a\": [\"x\", null]}\n[1]\n{\"a\": \"t\n   \n{\"a\": \"u\"}",
            &["a"],
        );
        let messages: Vec<_> =
            rows.iter().filter_map(|row| row.as_ref().unwrap().cells.clone().err()).collect();
        assert_eq!(
            messages,
            [
                "no field \"a\", it has: b",
                "field \"a\" is a number, expected a text",
                "field \"a\" is null, expected a text",
                "a list, expected an object",
                "not JSON: EOF while parsing a string at column 8",
            ]
        );
        assert_eq!(rows.last().unwrap().as_ref().unwrap().number, 8);
    }

    #[test]
    fn a_first_object_without_the_column_stops_it() {
        let rows = rows("oops\n{\"id\": 1, \"body\": \"t\"}\n{\"a\": \"t\"}\n", &["a"]);
        assert_eq!(rows.len(), 2);
        let error = rows[1].as_ref().unwrap_err().to_string();
        assert_eq!(error, "f.jsonl:2: no column \"a\", it has: body, id");
    }
}
