//! A folder of Parquet files, `part-00000.parquet` and so on, of [`PART_ROWS`] rows each.
//!
//! A Parquet file ends in a footer, so nothing can be appended to it. A part is written under another name, which
//! begins with a dot so that readers of whole folders pass over it, and renamed when it is complete. An interruption
//! closes the last part early. To continue, a part with fewer rows is removed and its rows are computed again, so that
//! the parts are byte for byte those of a run without interruption.

mod columns;

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::Arc,
};

use ::parquet::{
    basic::Compression,
    errors::ParquetError,
    file::{
        metadata::{ParquetMetaData, RowGroupMetaData},
        properties::{EnabledStatistics, WriterProperties},
        reader::{FileReader, SerializedFileReader},
        writer::SerializedFileWriter,
    },
    schema::types::ColumnPath,
};

use self::columns::Table;
use super::{Answer, Begun, Kind, Sink, unfinished::sync_folder};
use crate::files::FileError;

/// Rows of every part but the last.
const PART_ROWS: u64 = 10_000;

/// Bytes of answers after which a row group is written; until then they are held in memory.
const GROUP_BYTES: usize = 8 << 20;

struct Parts {
    folder: PathBuf,
    kind: Kind,
    /// Rows before the open part.
    rows: u64,
    part: Option<Part>,
}

/// A part that is being written.
struct Part {
    writer: SerializedFileWriter<File>,
    table: Table,
    rows: u64,
}

/// Creates the folder, and finds the complete parts to continue after.
pub(super) fn begin(folder: &Path, kind: &Kind, resume: bool) -> Result<Begun, FileError> {
    let name = folder.display().to_string();
    let io = FileError::io(&name);
    fs::create_dir_all(folder).map_err(&io)?;
    let (mut rows, mut bad_rows) = (0, 0);
    if resume {
        while let Some(bad_rows_of_part) = whole_part(&part_path(folder, rows))? {
            rows += PART_ROWS;
            bad_rows += bad_rows_of_part;
        }
    }
    let removed = remove_parts_behind(folder, rows);
    removed.and_then(|()| sync_folder(&part_path(folder, rows))).map_err(&io)?;
    let parts = Parts { folder: folder.to_owned(), kind: kind.clone(), rows, part: None };
    Ok(Begun { sink: Box::new(parts), rows, bad_rows })
}

/// The part whose first row is `row`.
fn part_path(folder: &Path, row: u64) -> PathBuf {
    folder.join(format!("part-{:05}.parquet", row / PART_ROWS))
}

/// How many rows of a complete part have no answer; `None` if the part is incomplete or missing.
fn whole_part(part: &Path) -> Result<Option<u64>, FileError> {
    let name = part.display().to_string();
    let file = match File::open(part) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(FileError::io(&name))?,
    };
    let reader = SerializedFileReader::new(file);
    let reader = reader.map_err(|error| FileError::Broken { file: name, why: error.to_string() })?;
    let is_whole = reader.metadata().file_metadata().num_rows() == PART_ROWS as i64;
    Ok(is_whole.then(|| bad_rows(reader.metadata())))
}

/// Rows with an error, by the statistics of its column.
fn bad_rows(part: &ParquetMetaData) -> u64 {
    let of_group = |group: &RowGroupMetaData| {
        let errors = group.columns().iter().find(|column| column.column_path().parts() == [columns::ERROR]);
        let nulls = errors.and_then(|column| column.statistics()?.null_count_opt());
        nulls.map_or(0, |nulls| (group.num_rows() as u64).saturating_sub(nulls))
    };
    part.row_groups().iter().map(of_group).sum()
}

/// Removes the parts from row `row` on, and nothing else.
fn remove_parts_behind(folder: &Path, row: u64) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()).and_then(part_number);
        if number.is_some_and(|number| number >= row / PART_ROWS) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// The number of a part, complete or in progress.
fn part_number(name: &str) -> Option<u64> {
    // Also without the dot: earlier versions named parts in progress like that.
    let in_progress = name.strip_suffix(".tmp").map(|name| name.strip_prefix('.').unwrap_or(name));
    in_progress.unwrap_or(name).strip_prefix("part-")?.strip_suffix(".parquet")?.parse().ok()
}

impl Parts {
    fn open(&self) -> io::Result<Part> {
        let table = Table::new(&self.kind);
        let file = File::create(self.aside())?;
        // Without a dictionary: vectors do not repeat. Statistics of vectors say nothing, and cost; those of errors
        // count the rows without an answer.
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::None)
            .set_column_statistics_enabled(ColumnPath::from(columns::ERROR), EnabledStatistics::Chunk)
            .set_created_by(concat!("turbo-serve ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let writer =
            SerializedFileWriter::new(file, table.schema(), Arc::new(properties)).map_err(of_parquet)?;
        Ok(Part { writer, table, rows: 0 })
    }

    fn aside(&self) -> PathBuf {
        self.folder.join(format!(".part-{:05}.parquet.tmp", self.rows / PART_ROWS))
    }

    fn close_part(&mut self) -> io::Result<()> {
        let Some(mut part) = self.part.take() else { return Ok(()) };
        part.write_group()?;
        let file = part.writer.into_inner().map_err(of_parquet)?;
        file.sync_all()?;
        let path = part_path(&self.folder, self.rows);
        fs::rename(self.aside(), &path)?;
        self.rows += part.rows;
        sync_folder(&path)
    }
}

impl Part {
    fn write_group(&mut self) -> io::Result<()> {
        if self.table.is_empty() {
            return Ok(());
        }
        let mut group = self.writer.next_row_group().map_err(of_parquet)?;
        self.table.write(&mut group).map_err(of_parquet)?;
        group.close().map(drop).map_err(of_parquet)
    }
}

impl Sink for Parts {
    fn write(&mut self, index: u64, answer: Result<&Answer, &str>) -> io::Result<()> {
        let mut part = match self.part.take() {
            Some(part) => part,
            None => self.open()?,
        };
        part.table.push(index, answer)?;
        part.rows += 1;
        if part.table.bytes() >= GROUP_BYTES {
            part.write_group()?;
        }
        let full = part.rows == PART_ROWS;
        self.part = Some(part);
        if full { self.close_part() } else { Ok(()) }
    }

    /// Complete parts are on the disk already, and an incomplete one could not be read.
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        if self.rows == 0 && self.part.is_none() {
            // Nothing was written; a part without rows still says what the columns are.
            self.part = Some(self.open()?);
        }
        self.close_part()
    }
}

fn of_parquet(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(source) => *source,
            Err(source) => io::Error::other(source),
        },
        other => io::Error::other(other),
    }
}
