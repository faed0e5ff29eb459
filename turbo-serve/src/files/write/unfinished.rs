//! The small file beside an output that is not complete: what the output is made from, and whose it is meanwhile.
//!
//! It is locked as long as somebody writes the output. The system takes the lock back however a process ends, so none is
//! ever left behind; where a file system has no locks, two runs on one output are not told apart.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::files::FileError;

/// What an output is made from, by name: the command, the model, the input, whatever changes the answers.
pub type Job = BTreeMap<String, String>;

#[derive(Serialize, Deserialize)]
struct Content {
    job: Job,
}

/// An output that this process alone writes until this value is dropped.
#[derive(Debug)]
pub(super) struct Unfinished {
    path: PathBuf,
    locked: File,
}

impl Unfinished {
    /// Says of `file` what it is made from. Written aside and renamed: it is whole or not there.
    ///
    /// # Errors
    /// [`FileError::Busy`], [`FileError::Io`].
    pub(super) fn begin(file: &str, job: &Job) -> Result<Self, FileError> {
        let path = path(file);
        let aside = path.with_extension("unfinished.tmp");
        let io = FileError::io(file);
        // Not truncated before it is locked: it may be what another process is about to rename.
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&aside);
        let mut to = opened.map_err(&io)?;
        lock(&to, file)?;
        if let Err(busy) = job_of(file) {
            // Best effort: the next run locks and writes it anew.
            drop(fs::remove_file(&aside));
            return Err(busy);
        }
        let written = to.set_len(0).and_then(|()| {
            to.write_all(&serde_json::to_vec(&Content { job: job.clone() })?)?;
            to.sync_all()?;
            fs::rename(&aside, &path)?;
            sync_folder(&path)
        });
        written.map_err(io)?;
        Ok(Self { path, locked: to })
    }

    /// The output is complete.
    pub(super) fn remove(self) -> Result<(), FileError> {
        fs::remove_file(&self.path).map_err(FileError::io(&self.path.display().to_string()))
    }
}

impl Drop for Unfinished {
    /// Not left to closing: a process that is being started from this one may hold the same file for a moment.
    fn drop(&mut self) {
        drop(self.locked.unlock());
    }
}

/// What `file` was begun with, if it is not complete.
///
/// # Errors
/// [`FileError::Busy`] while somebody writes it; [`FileError::Broken`], [`FileError::Io`].
pub(super) fn job_of(file: &str) -> Result<Option<Job>, FileError> {
    let path = path(file);
    let name = path.display().to_string();
    let opened = match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(FileError::io(&name))?,
    };
    lock(&opened, file)?;
    let json = std::io::read_to_string(&opened);
    drop(opened.unlock());
    let json = json.map_err(FileError::io(&name))?;
    let parsed = serde_json::from_str(&json);
    parsed.map(|Content { job }| Some(job)).map_err(|error| FileError::Broken {
        file: name,
        why: format!("{error}; without it the output counts as complete"),
    })
}

/// Whether what was begun as `was` can be gone on with as `is`.
///
/// # Errors
/// [`FileError::Differs`].
pub(super) fn check(file: &str, was: &Job, is: &Job) -> Result<(), FileError> {
    let value = |job: &Job, field| job.get(field).cloned().unwrap_or_else(|| "nothing".to_owned());
    match was.keys().chain(is.keys()).find(|field| was.get(*field) != is.get(*field)) {
        None => Ok(()),
        Some(field) => Err(FileError::Differs {
            file: file.to_owned(),
            field: field.clone(),
            was: value(was, field),
            is: value(is, field),
        }),
    }
}

/// Locks `opened`, which stands beside the output `file`, until it is closed.
fn lock(opened: &File, file: &str) -> Result<(), FileError> {
    match opened.try_lock() {
        Err(TryLockError::WouldBlock) => Err(FileError::Busy { file: file.to_owned() }),
        // Some file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

fn path(file: &str) -> PathBuf {
    PathBuf::from(format!("{}.unfinished", file.trim_end_matches('/')))
}

/// A new name lasts once its folder is on the disk.
pub(super) fn sync_folder(file: &Path) -> std::io::Result<()> {
    // Only Unix opens folders as files.
    if cfg!(unix) { File::open(folder_of(file))?.sync_all() } else { Ok(()) }
}

/// The folder that `file` is in.
pub(super) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
