//! The small file beside an incomplete output: what the output is made from, and a lock for the process that writes it.
//!
//! The small file is locked while a process writes the output. The system releases the lock however a process ends, so
//! no stale lock remains; on a file system without locks, two runs on one output are not detected.
//!
//! It is written before an earlier output is replaced, and marks the replacement until the earlier output is gone from
//! the disk: a run that finds the mark begins anew, and does not mistake rows of the earlier output for its own.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::files::FileError;

/// What an output is made from, by name: the command, the model, the input, whatever changes the answers.
pub type MadeFrom = BTreeMap<String, String>;

/// The content of the small file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mark {
    /// What the output holds was made from this.
    Job(MadeFrom),
    /// The output is begun anew from this, and may hold what an earlier one left.
    Replacing(MadeFrom),
}

impl Mark {
    /// What the output is made from.
    pub(super) fn made_from(&self) -> &MadeFrom {
        match self {
            Self::Job(made_from) | Self::Replacing(made_from) => made_from,
        }
    }
}

/// An output that this process alone writes until this value is dropped.
#[derive(Debug)]
pub(super) struct Unfinished {
    path: PathBuf,
    locked: File,
}

impl Unfinished {
    /// Writes `mark` for `file`, under another name and then renamed: it is complete or not there.
    ///
    /// # Errors
    /// [`FileError::Busy`], [`FileError::Io`].
    pub(super) fn begin(file: &str, mark: &Mark) -> Result<Self, FileError> {
        let path = path(file);
        let aside = path.with_extension("unfinished.tmp");
        let io = FileError::io(file);
        // Not truncated before it is locked: it may be what another process is about to rename.
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&aside);
        let to = opened.map_err(&io)?;
        lock(&to, file)?;
        if let Err(busy) = mark_of(file) {
            // Best effort: the next run locks it and writes it anew.
            drop(fs::remove_file(&aside));
            return Err(busy);
        }
        put(&to, mark, &aside, &path).map_err(io)?;
        Ok(Self { path, locked: to })
    }

    /// Records that the earlier content of `file` is gone from the disk: from now on it is made from `made_from`.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub(super) fn replaced(&mut self, file: &str, made_from: &MadeFrom) -> Result<(), FileError> {
        // Not the file that `begin` writes: another process may hold that, about to find that this one is busy.
        let aside = self.path.with_extension("unfinished.replaced.tmp");
        let io = FileError::io(file);
        let to = File::create(&aside).map_err(&io)?;
        // Locked before the rename: the file of that name is locked all the time.
        lock(&to, file)?;
        put(&to, &Mark::Job(made_from.clone()), &aside, &self.path).map_err(io)?;
        self.locked = to;
        Ok(())
    }

    /// Removes the small file: the output is complete.
    pub(super) fn remove(self) -> Result<(), FileError> {
        fs::remove_file(&self.path).map_err(FileError::io(&self.path.display().to_string()))
    }
}

impl Drop for Unfinished {
    /// Unlocks explicitly: a child process that is being started may hold the same open file for a moment.
    fn drop(&mut self) {
        drop(self.locked.unlock());
    }
}

/// Writes `mark` to the file `aside`, open as `to`, and gives that the name `path`.
fn put(mut to: &File, mark: &Mark, aside: &Path, path: &Path) -> io::Result<()> {
    to.set_len(0)?;
    to.write_all(&serde_json::to_vec(mark)?)?;
    to.sync_all()?;
    fs::rename(aside, path)?;
    sync_folder(path)
}

/// The mark of `file`, if that is not complete.
///
/// # Errors
/// [`FileError::Busy`] while another process writes it; [`FileError::Broken`], [`FileError::Io`].
pub(super) fn mark_of(file: &str) -> Result<Option<Mark>, FileError> {
    let path = path(file);
    let name = path.display().to_string();
    let opened = match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(FileError::io(&name))?,
    };
    lock(&opened, file)?;
    if !is_at(&opened, &path) {
        // Another process has replaced it since, or completed the output.
        return Err(FileError::Busy { file: file.to_owned() });
    }
    let json = io::read_to_string(&opened);
    drop(opened.unlock());
    let json = json.map_err(FileError::io(&name))?;
    let parsed = serde_json::from_str(&json);
    parsed.map(Some).map_err(|error| FileError::Broken {
        file: name,
        why: format!("{error}; without it the output counts as complete"),
    })
}

/// Checks that an output that was begun from `was` can be continued from `is`.
///
/// # Errors
/// [`FileError::Differs`].
pub(super) fn check(file: &str, was: &MadeFrom, is: &MadeFrom) -> Result<(), FileError> {
    let differs = |field: &&String| match (was.get(*field), is.get(*field)) {
        (Some(was), Some(is)) => !says_the_same(field, was, is),
        (was, is) => was != is,
    };
    match was.keys().chain(is.keys()).find(differs) {
        None => Ok(()),
        Some(field) => Err(FileError::Differs {
            file: file.to_owned(),
            field: field.clone(),
            // An earlier version may not have recorded it.
            was: shown(was, field, "(not recorded)"),
            is: shown(is, field, "(none)"),
        }),
    }
}

/// Whether two values of a field mean the same. Earlier versions recorded two flags in the spelling of the code, such
/// as `Embedding { pooling: LastToken }` for `last-token`.
fn says_the_same(field: &str, was: &str, is: &str) -> bool {
    let word = was.strip_prefix("Embedding { pooling: ").and_then(|rest| rest.strip_suffix(" }"));
    let is_word = ["--pooling", "--aggregation"].contains(&field);
    was == is || is_word && word.unwrap_or(was).eq_ignore_ascii_case(&is.replace('-', ""))
}

/// The value of a field as messages show it, or `none`; two flags are recorded only where they were given.
fn shown(made_from: &MadeFrom, field: &str, none: &str) -> String {
    match (made_from.get(field), field) {
        (Some(value), _) if value.is_empty() || value.trim() != value => format!("{value:?}"),
        (Some(value), _) => value.clone(),
        (None, "--quotes") => "true".to_owned(),
        (None, "--instruction") => "(none)".to_owned(),
        (None, _) => none.to_owned(),
    }
}

/// Locks `opened`, the small file of the output `file`, until it is closed.
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

/// Whether `path` leads to the file that is open, where the system can tell.
#[cfg(unix)]
fn is_at(opened: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let same =
        |one: &fs::Metadata, other: &fs::Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
    matches!((opened.metadata(), fs::metadata(path)), (Ok(one), Ok(other)) if same(&one, &other))
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

/// Syncs a file's folder, which makes a new name durable.
pub(super) fn sync_folder(file: &Path) -> io::Result<()> {
    // Only Unix opens folders as files.
    if cfg!(unix) { File::open(folder_of(file))?.sync_all() } else { Ok(()) }
}

/// The folder that `file` is in.
pub(super) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_from(fields: &[(&str, &str)]) -> MadeFrom {
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// Also fields that an earlier version did not record.
    #[test]
    fn what_differs_is_named() {
        let (text, jsonl) = (("--input-format", "text"), ("--input-format", "jsonl"));
        let words = ("the model's vocab.txt", "(8 bytes)");
        for (was, is, said) in [
            (&[text, words][..], &[jsonl, words][..], "--input-format text, not jsonl"),
            (&[words], &[text, words], "--input-format (not recorded), not text"),
            (&[text, words], &[text], "the model's vocab.txt (8 bytes), not (none)"),
            (&[], &[("--quotes", "false")], "--quotes true, not false"),
            (&[("--quotes", "false")], &[], "--quotes false, not true"),
            (&[], &[("--instruction", "be good")], "--instruction (none), not be good"),
            (&[("--prompt", "")], &[("--prompt", "query: ")], "--prompt \"\", not \"query: \""),
            (&[("--pooling", "mean")], &[("--pooling", "max")], "--pooling mean, not max"),
        ] {
            let error = check("f", &made_from(was), &made_from(is)).unwrap_err().to_string();
            assert_eq!(error, format!("f was begun with {said}: go on with the same, or pass --overwrite"));
        }
        assert!(check("f", &made_from(&[text, words]), &made_from(&[words, text])).is_ok());
        for (field, was, is) in [
            ("--pooling", "Embedding { pooling: LastToken }", "last-token"),
            ("--pooling", "Embedding { pooling: Mean }", "mean"),
            ("--aggregation", "First", "first"),
        ] {
            assert!(check("f", &made_from(&[(field, was)]), &made_from(&[(field, is)])).is_ok(), "{was}");
        }
        assert!(check("f", &made_from(&[("--prompt", "Q")]), &made_from(&[("--prompt", "q")])).is_err());
    }
}
