//! Cost models as small JSON files.
//!
//! In and out: a path. A file is written aside and renamed, so a reader sees the old one or the new one and
//! never half of either, and two servers that share a folder never lock each other out: the last one wins.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Serialize, de::DeserializeOwned};

use crate::error::SchedError;

/// Writes `model` to `path`; the folder must exist.
///
/// # Errors
/// [`SchedError::Write`], naming the file.
pub fn save<T: Serialize>(path: &Path, model: &T) -> Result<(), SchedError> {
    let text = serde_json::to_vec_pretty(model).map_err(io::Error::from);
    let written = text.and_then(|text| replace(path, &text));
    written.map_err(|source| SchedError::Write { path: path.to_owned(), source })
}

/// Reads what [`save`] wrote: a [`CostTable`](super::CostTable) or a [`PackedCost`](super::PackedCost).
///
/// # Errors
/// [`SchedError::Read`] when there is no such file, [`SchedError::Parse`] when it holds something else; both
/// name the file.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, SchedError> {
    let text = fs::read(path).map_err(|source| SchedError::Read { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|source| SchedError::Parse { path: path.to_owned(), source })
}

/// Makes `text` the content of `path`, all at once.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let (aside, file) = create_aside(path)?;
    write_through(file, text).and_then(|()| fs::rename(&aside, path)).inspect_err(|_| {
        // Nothing is lost if this fails too: the name is not one that `load` looks for.
        let _ = fs::remove_file(&aside);
    })
}

/// A new file beside `path`, and its name. In containers every server is process 1, and they may share the folder: so
/// an existing file is left alone, as another process may be writing it.
fn create_aside(path: &Path) -> io::Result<(PathBuf, File)> {
    static SAVES: AtomicU64 = AtomicU64::new(0);
    loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}-{}.tmp", std::process::id(), SAVES.fetch_add(1, Ordering::Relaxed)));
        let aside = PathBuf::from(name);
        match File::create_new(&aside) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => return created.map(|file| (aside, file)),
        }
    }
}

/// Writes and waits for the disk, so that the rename never publishes an empty file after a power cut.
fn write_through(mut file: File, text: &[u8]) -> io::Result<()> {
    file.write_all(text)?;
    file.sync_all()
}
