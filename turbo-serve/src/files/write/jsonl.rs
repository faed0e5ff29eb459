//! A JSON object per line: `{"index":0,"embedding":[…]}`, or `{"index":7,"error":"…"}`.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, Seek, SeekFrom, Write},
    path::Path,
};

use serde::Serialize;

use super::{Answer, Begun, Sink, unfinished::sync_folder};
use crate::files::FileError;

pub(super) struct Jsonl {
    to: Stream,
    line: Vec<u8>,
}

enum Stream {
    File(BufWriter<File>),
    Standard(BufWriter<io::Stdout>),
}

/// What is written in place of an answer.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Missing<'a> {
    Error(&'a str),
}

impl Jsonl {
    pub(super) fn standard_output() -> Self {
        Self { to: Stream::Standard(BufWriter::new(io::stdout())), line: Vec::new() }
    }
}

/// Begins the file anew, or continues it after the last complete line of an earlier run.
pub(super) fn begin(path: &Path, resume: bool) -> Result<Begun, FileError> {
    let name = path.display().to_string();
    let io = FileError::io(&name);
    let mut file = OpenOptions::new();
    let mut file = file.read(true).write(true).create(true).truncate(!resume).open(path).map_err(&io)?;
    let Whole { rows, bad_rows, end } = whole_lines(&mut BufReader::new(&file)).map_err(&io)?;
    if rows == 0 && file.metadata().map_err(&io)?.len() > 0 && !is_torn_first_line(&mut file).map_err(&io)? {
        let why = "its first line was not written by this command".to_owned();
        return Err(FileError::Broken { file: name.clone(), why });
    }
    file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(&io)?;
    file.sync_data().and_then(|()| sync_folder(path)).map_err(&io)?;
    let to = Stream::File(BufWriter::with_capacity(1 << 18, file));
    Ok(Begun { sink: Box::new(Jsonl { to, line: Vec::new() }), rows, bad_rows })
}

/// The complete lines from the beginning whose indices count up from 0.
#[derive(Debug, Default, PartialEq)]
struct Whole {
    rows: u64,
    bad_rows: u64,
    /// The byte at which they end.
    end: u64,
}

fn whole_lines(input: &mut impl BufRead) -> io::Result<Whole> {
    let mut whole = Whole::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = input.read_until(b'\n', &mut line)?;
        let Some(answer) = line.strip_prefix(head(whole.rows).as_bytes()).filter(|_| line.ends_with(b"}\n"))
        else {
            return Ok(whole);
        };
        whole.rows += 1;
        whole.bad_rows += u64::from(answer.starts_with(b"\"error\":"));
        whole.end += read as u64;
    }
}

/// Whether the file has nothing but an incomplete first line.
fn is_torn_first_line(file: &mut File) -> io::Result<bool> {
    file.rewind()?;
    let mut line = Vec::new();
    let expected = head(0);
    BufReader::new(&*file).read_until(b'\n', &mut line)?;
    let common = line.len().min(expected.len());
    Ok(line[..common] == expected.as_bytes()[..common] && line.last() != Some(&b'\n'))
}

/// How the line of row `index` begins.
fn head(index: u64) -> String {
    format!("{{\"index\":{index},")
}

impl Sink for Jsonl {
    fn write(&mut self, index: u64, answer: Result<&Answer, &str>) -> io::Result<()> {
        self.line.clear();
        self.line.extend_from_slice(head(index).as_bytes());
        // The answer's object is appended, and its opening brace overwritten with the comma.
        let comma = self.line.len() - 1;
        self.line.truncate(comma);
        match answer {
            Ok(answer) => serde_json::to_writer(&mut self.line, answer)?,
            Err(error) => serde_json::to_writer(&mut self.line, &Missing::Error(error))?,
        }
        self.line[comma] = b',';
        self.line.push(b'\n');
        match &mut self.to {
            Stream::File(to) => to.write_all(&self.line),
            Stream::Standard(to) => to.write_all(&self.line),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        match &mut self.to {
            Stream::File(to) => {
                to.flush()?;
                to.get_ref().sync_data()
            }
            Stream::Standard(to) => to.flush(),
        }
    }

    fn close(&mut self) -> io::Result<()> {
        self.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows, those without an answer, and where they end.
    fn lines_of(text: &str) -> (u64, u64, u64) {
        let Whole { rows, bad_rows, end } = whole_lines(&mut text.as_bytes()).unwrap();
        (rows, bad_rows, end)
    }

    #[test]
    fn only_whole_lines_in_order_count() {
        let first = "{\"index\":0,\"score\":1.0}\n";
        let second = "{\"index\":1,\"error\":\"x\"}\n";
        assert_eq!(lines_of(""), (0, 0, 0));
        assert_eq!(lines_of(&format!("{first}{second}")), (2, 1, 48));
        for torn in [
            "{\"ind",
            "{\"index\":1,\"score\":1.",
            "{\"index\":1,\"score\":1.0}",
            "\0\0\0\0",
            "{\"index\":2,}\n",
        ] {
            assert_eq!(lines_of(&format!("{first}{torn}")), (1, 0, 24), "{torn:?}");
        }
    }

    #[test]
    fn every_kind_of_answer_is_an_object() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let mut sink = begin(&path, false).unwrap().sink;
        let text = |text: &str| text.to_owned();
        let answers = [
            Answer::Embedding(vec![0.5, -1.0, f32::NAN]),
            Answer::Labels(vec![super::super::Class { label: text("a\"b"), score: 0.25 }]),
            Answer::Ranking(vec![super::super::Ranked { index: 3, score: 1.0, text: None }]),
            Answer::Score { score: 2.0, text: Some(text("t")) },
        ];
        for (index, answer) in answers.iter().enumerate() {
            sink.write(index as u64, Ok(answer)).unwrap();
        }
        sink.write(4, Err("line 5: no")).unwrap();
        sink.close().unwrap();
        let written = std::fs::read_to_string(&path).unwrap();
        let expected = [
            "{\"index\":0,\"embedding\":[0.5,-1.0,null]}",
            "{\"index\":1,\"labels\":[{\"label\":\"a\\\"b\",\"score\":0.25}]}",
            "{\"index\":2,\"ranking\":[{\"index\":3,\"score\":1.0}]}",
            "{\"index\":3,\"score\":2.0,\"text\":\"t\"}",
            "{\"index\":4,\"error\":\"line 5: no\"}",
        ];
        assert_eq!(written.lines().collect::<Vec<_>>(), expected);
        assert_eq!(begin(&path, true).unwrap().rows, 5);
    }

    #[test]
    fn what_was_not_written_here_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        for (content, resumes) in [("precious\n", false), ("precious", false), ("{\"ind", true), ("", true)] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(begin(&path, true).is_ok(), resumes, "{content:?}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), if resumes { "" } else { content });
        }
    }
}
