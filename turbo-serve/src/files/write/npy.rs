//! One array of numpy: `[rows, dimensions]`, little-endian f32. A row without an answer is all NaN: rows keep their
//! indices, and it cannot be mistaken for an answer, as one of zeros could.
//!
//! The header has a fixed size and is rewritten at each sync, after the rows that it counts, so those are always there.
//! The crates for the format write an array at once, or its header only at the end. Source: numpy's `numpy.lib.format`,
//! version 1.0.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write},
    path::Path,
};

use super::{Answer, Begun, Sink, unfinished::sync_folder};
use crate::files::FileError;

/// Bytes before the first row; a multiple of 64, as the format wants it.
const HEADER_BYTES: usize = 128;

const MAGIC: &[u8; 8] = b"\x93NUMPY\x01\x00";

struct Npy {
    to: BufWriter<File>,
    dimensions: usize,
    rows: u64,
    row: Vec<u8>,
}

/// Begins the file anew, or continues it after the rows that its header counts.
pub(super) fn begin(path: &Path, dimensions: usize, resume: bool) -> Result<Begun, FileError> {
    let name = path.display().to_string();
    let io = FileError::io(&name);
    let mut file = OpenOptions::new();
    let mut file = file.read(true).write(true).create(true).truncate(!resume).open(path).map_err(&io)?;
    let rows = if resume { rows_of(&mut file, &name, dimensions)? } else { 0 };
    let bad_rows = bad_rows_of(&mut file, rows, dimensions).map_err(&io)?;
    let end = row_at(rows, dimensions);
    file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(&io)?;
    let to = BufWriter::with_capacity(1 << 18, file);
    let mut npy = Npy { to, dimensions, rows, row: Vec::new() };
    npy.sync().and_then(|()| sync_folder(path)).map_err(&io)?;
    Ok(Begun { sink: Box::new(npy), rows, bad_rows })
}

/// The header of an array of this many rows.
fn header(rows: u64, dimensions: usize) -> [u8; HEADER_BYTES] {
    let mut header = [b' '; HEADER_BYTES];
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {dimensions}), }}");
    let text_bytes = HEADER_BYTES - MAGIC.len() - 2;
    header[..MAGIC.len()].copy_from_slice(MAGIC);
    header[MAGIC.len()..][..2].copy_from_slice(&(text_bytes as u16).to_le_bytes());
    header[MAGIC.len() + 2..][..text.len()].copy_from_slice(text.as_bytes());
    header[HEADER_BYTES - 1] = b'\n';
    header
}

/// Rows of an array that an earlier run wrote.
fn rows_of(file: &mut File, name: &str, dimensions: usize) -> Result<u64, FileError> {
    let mut read = [0; HEADER_BYTES];
    let io = FileError::io(name);
    file.rewind().map_err(&io)?;
    match file.read_exact(&mut read) {
        // The earlier run was interrupted before it wrote the header.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
        done => done.map_err(&io)?,
    }
    let text = String::from_utf8_lossy(&read);
    let shape = text.split_once("'shape': (").and_then(|(_, rest)| rest.split_once(','));
    let rows = shape.and_then(|(rows, _)| rows.parse::<u64>().ok());
    let broken = |why: String| FileError::Broken { file: name.to_owned(), why };
    let Some(rows) = rows.filter(|&rows| header(rows, dimensions) == read) else {
        return Err(broken(format!("it is no array of {dimensions} f32 columns that was written here")));
    };
    let expected =
        rows.checked_mul(4 * dimensions as u64).and_then(|bytes| bytes.checked_add(HEADER_BYTES as u64));
    let got = file.metadata().map_err(&io)?.len();
    if expected.is_none_or(|expected| got < expected) {
        return Err(broken(format!("it has {got} bytes, too few for the {rows} rows in its header")));
    }
    Ok(rows)
}

/// Where row `row` begins.
fn row_at(row: u64, dimensions: usize) -> u64 {
    HEADER_BYTES as u64 + row * 4 * dimensions as u64
}

/// How many of the first `rows` begin with NaN, which means that they have no answer.
fn bad_rows_of(file: &mut File, rows: u64, dimensions: usize) -> io::Result<u64> {
    let mut bad_rows = 0;
    for row in 0..rows {
        let mut value = [0; 4];
        file.seek(SeekFrom::Start(row_at(row, dimensions)))?;
        file.read_exact(&mut value)?;
        bad_rows += u64::from(f32::from_le_bytes(value).is_nan());
    }
    Ok(bad_rows)
}

impl Sink for Npy {
    fn write(&mut self, _: u64, answer: Result<&Answer, &str>) -> io::Result<()> {
        self.row.clear();
        match answer {
            Ok(Answer::Embedding(vector)) if vector.len() == self.dimensions => {
                self.row.extend(vector.iter().flat_map(|value| value.to_le_bytes()));
            }
            Ok(other) => {
                return Err(io::Error::other(format!("no vector of {} values: {other:?}", self.dimensions)));
            }
            Err(_) => self.row.extend((0..self.dimensions).flat_map(|_| f32::NAN.to_le_bytes())),
        }
        self.to.write_all(&self.row)?;
        self.rows += 1;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.to.flush()?;
        let file = self.to.get_mut();
        file.sync_data()?;
        file.rewind()?;
        file.write_all(&header(self.rows, self.dimensions))?;
        file.seek(SeekFrom::End(0))?;
        file.sync_data()
    }

    fn close(&mut self) -> io::Result<()> {
        self.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.npy");
        std::fs::write(&path, content).unwrap();
        (folder, path)
    }

    #[test]
    fn the_header_is_numpys() {
        let header = header(3, 2);
        assert_eq!(&header[..10], b"\x93NUMPY\x01\x00\x76\x00");
        let text = std::str::from_utf8(&header[10..]).unwrap();
        assert_eq!(text.trim_end(), "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }");
        assert!(text.ends_with('\n') && header.len().is_multiple_of(64));
        assert_eq!(super::header(u64::MAX, usize::MAX)[HEADER_BYTES - 1], b'\n', "the largest fits");
    }

    #[test]
    fn rows_behind_the_header_s_count_are_written_again() {
        let (_folder, path) = file(b"");
        let mut sink = begin(&path, 2, false).unwrap().sink;
        sink.write(0, Ok(&Answer::Embedding(vec![1.0, 2.0]))).unwrap();
        sink.write(1, Err("no")).unwrap();
        sink.close().unwrap();
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], &[7; 5]].concat()).unwrap();
        let begun = begin(&path, 2, true).unwrap();
        drop(begun.sink);
        assert_eq!((begun.rows, begun.bad_rows), (2, 1));
        assert_eq!(std::fs::read(&path).unwrap(), whole);
        assert!(
            whole[136..144].chunks(4).all(|value| f32::from_le_bytes(value.try_into().unwrap()).is_nan())
        );
    }

    #[test]
    fn a_foreign_array_is_not_continued() {
        let mut other_type = header(1, 2);
        other_type[23..25].copy_from_slice(b"i4");
        for content in [&header(1, 3)[..], &header(1, 2), &other_type, &[0; 200]] {
            let (_folder, path) = file(content);
            assert!(begin(&path, 2, true).is_err());
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
        let (_folder, path) = file(b"\x93NUMPY");
        assert_eq!(begin(&path, 2, true).unwrap().rows, 0);
    }
}
