//! The files of a folder of answers: one for each generation, by number, and those that are no longer read.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use super::FolderError;
use crate::cache::generation::{Generation, Trouble};

/// The name of a file that was set aside.
pub(super) const DAMAGED: &str = "answers.damaged";

/// A folder's files, which no other process uses.
pub(super) struct Files {
    dir: PathBuf,
    /// Bytes of memory for the pages of one file.
    page_cache: usize,
    /// Locked for as long as it is open.
    _lock: File,
}

impl Files {
    /// Those of the folder `dir`, created if missing.
    ///
    /// # Errors
    /// [`FolderError`]: another process uses the folder, or the system refuses it.
    pub(super) fn open(dir: &Path, page_cache: usize) -> Result<Self, FolderError> {
        make(dir)?;
        let lock = File::options().create(true).truncate(false).write(true).open(dir.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { dir: dir.to_owned(), page_cache, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(FolderError::InUse),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Numbers of the generations in the folder, the newest first.
    pub(super) fn numbers(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("answers-")?.strip_suffix(".redb"));
            numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        Ok(numbers)
    }

    /// Opens a generation; one whose file is damaged is set aside, and not there.
    pub(super) fn open_or_set_aside(&self, number: u64) -> Result<Option<Generation>, String> {
        let file = self.file(number);
        match Generation::open(file.clone(), self.page_cache) {
            Ok(generation) => Ok(Some(generation)),
            Err(Trouble::Damaged(why)) => {
                self.set_aside(&file, &why);
                Ok(None)
            }
            Err(Trouble::Failed(why)) => Err(why),
        }
    }

    /// Begins a generation.
    pub(super) fn create(&self, number: u64) -> Result<Generation, String> {
        let begun = Generation::open(self.file(number), self.page_cache);
        begun.map_err(|(Trouble::Damaged(why) | Trouble::Failed(why))| why)
    }

    /// Renames a damaged file to one that is never read.
    pub(super) fn set_aside(&self, file: &Path, why: &str) {
        let aside = self.dir.join(DAMAGED);
        tracing::warn!(file = %file.display(), why, aside = %aside.display(), "a file of answers is damaged: it is set aside");
        if fs::rename(file, &aside).is_err() {
            // If it cannot be removed either, the next start finds it damaged again.
            drop(fs::remove_file(file));
        }
    }

    /// Removes the file of a generation that is not open.
    pub(super) fn remove(&self, number: u64) -> Result<(), String> {
        remove_file(&self.file(number))
    }

    fn file(&self, number: u64) -> PathBuf {
        self.dir.join(format!("answers-{number}.redb"))
    }
}

/// Closes a generation, if there is one, and removes its file.
pub(super) fn close_and_remove(generation: Option<Generation>) -> Result<(), String> {
    let Some(file) = generation.map(|generation| generation.file().to_owned()) else { return Ok(()) };
    remove_file(&file)
}

fn remove_file(file: &Path) -> Result<(), String> {
    fs::remove_file(file).map_err(|error| format!("{}: {error}", file.display()))
}

/// Creates the folder `dir` if missing, readable only by its owner: rows reveal much about their texts.
fn make(dir: &Path) -> io::Result<()> {
    dir.parent().map_or(Ok(()), fs::create_dir_all)?;
    let mut folder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
    folder.recursive(true).create(dir)
}
