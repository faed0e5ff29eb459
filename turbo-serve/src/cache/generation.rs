//! One file of answers: a `redb` database, whose commits survive a crash at any moment.

use std::{
    fs,
    io::ErrorKind,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use redb::{Database, Error, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};

use super::{
    Key,
    memory::Values,
    record::{Wanted, decode, encode},
};

const ANSWERS: TableDefinition<&[u8; 32], &[u8]> = TableDefinition::new("answers 1");

/// A file of answers: at first it is written and read, later only read, and finally removed as a whole.
pub(super) struct Generation {
    file: PathBuf,
    /// `None` only while it is being closed.
    database: Option<Database>,
}

/// Why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Its content is not what was written.
    Damaged(String),
    /// The system failed to read or write it.
    Failed(String),
}

impl Generation {
    /// Opens or creates `file`; its pages take `page_cache` bytes of memory.
    pub(super) fn open(file: PathBuf, page_cache: usize) -> Result<Self, Trouble> {
        let database = guarded(|| {
            let database = Database::builder().set_cache_size(page_cache).create(&file)?;
            let making = database.begin_write()?;
            making.open_table(ANSWERS)?;
            making.commit()?;
            Ok(database)
        })?;
        Ok(Self { file, database: Some(database) })
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self) -> u64 {
        fs::metadata(&self.file).map_or(0, |metadata| metadata.len())
    }

    /// Number of answers in it.
    pub(super) fn entries(&self) -> u64 {
        guarded(|| Ok(self.database().begin_read()?.open_table(ANSWERS)?.len()?)).unwrap_or(0)
    }

    /// The answers to `wanted`, in the same order; `None` where it has none.
    pub(super) fn get(&self, wanted: &[Wanted]) -> Result<Vec<Option<Values>>, Trouble> {
        let found = guarded(|| {
            let table = self.database().begin_read()?.open_table(ANSWERS)?;
            let one = |wanted: &Wanted| match table.get(wanted.key.bytes())? {
                Some(record) => Ok(decode(wanted, record.value())),
                None => Ok(Ok(None)),
            };
            wanted.iter().map(one).collect::<Result<Vec<_>, Error>>()
        })?;
        found.into_iter().map(|one| one.map_err(|damaged| Trouble::Damaged(damaged.to_string()))).collect()
    }

    /// Writes `answers`, all or none; they are durable when it returns.
    pub(super) fn put(&self, answers: &[(Key, Values)]) -> Result<(), Trouble> {
        guarded(|| {
            let mut writing = self.database().begin_write()?;
            // With this, opening the file after a crash need not read all of it.
            writing.set_quick_repair(true);
            {
                let mut table = writing.open_table(ANSWERS)?;
                for (key, values) in answers {
                    let record = encode(key, values);
                    let known = table.get(key.bytes())?.is_some_and(|known| known.value() == record);
                    if !known {
                        table.insert(key.bytes(), record.as_slice())?;
                    }
                }
            }
            Ok(writing.commit()?)
        })
    }

    /// Most bytes of a file that an answer of `values` values may need: its own page, rounded up to a power of two as
    /// all pages are, and copies of the pages on the path to it.
    pub(super) fn cost(values: usize) -> u64 {
        const PAGE: u64 = 4096;
        ((values * size_of::<f32>()) as u64 + PAGE).next_power_of_two() + 3 * PAGE
    }

    fn database(&self) -> &Database {
        self.database.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let database = self.database.take();
        // After a panic its locks are poisoned, and closing may panic again.
        let closed = catch_unwind(AssertUnwindSafe(|| drop(database)));
        if closed.is_err() {
            tracing::debug!(file = %self.file.display(), "closing a file of answers panicked");
        }
    }
}

/// Does work on a file; if the file is damaged, the work may fail or panic.
fn guarded<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Trouble> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(trouble(&error)),
        Err(_) => Err(Trouble::Damaged("reading it panicked".into())),
    }
}

/// Whether an error means a damaged file, or a failure of the system.
fn trouble(error: &Error) -> Trouble {
    let text = error.to_string();
    match error {
        Error::Io(error) if !matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof) => {
            Trouble::Failed(text)
        }
        Error::PreviousIo | Error::DatabaseAlreadyOpen | Error::DatabaseClosed => Trouble::Failed(text),
        _ => Trouble::Damaged(text),
    }
}
