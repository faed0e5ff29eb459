//! The small file beside an output that is not complete.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::files::FileError;

/// What an output is made from, by name: the command, the model, the input, whatever changes the answers.
pub type Job = BTreeMap<String, String>;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Unfinished {
    pub(super) job: Job,
    /// Rows without an answer when it was last interrupted.
    pub(super) bad_rows: u64,
}

impl Unfinished {
    fn path(file: &str) -> PathBuf {
        PathBuf::from(format!("{}.unfinished", file.trim_end_matches('/')))
    }

    /// What stands beside `file`, if anything does.
    pub(super) fn read(file: &str) -> Result<Option<Self>, FileError> {
        let path = Self::path(file);
        let json = match fs::read(&path) {
            Ok(json) => json,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FileError::io(&path.display().to_string())(error)),
        };
        let parsed = serde_json::from_slice(&json);
        parsed.map(Some).map_err(|error| FileError::Broken {
            file: path.display().to_string(),
            why: format!("{error}; without it the output counts as complete"),
        })
    }

    /// Written aside and renamed: it is whole or not there.
    pub(super) fn write(&self, file: &str) -> Result<(), FileError> {
        let path = Self::path(file);
        let aside = path.with_extension("unfinished.tmp");
        let written = File::create(&aside).and_then(|mut to| {
            to.write_all(&serde_json::to_vec(self)?)?;
            to.sync_all()?;
            fs::rename(&aside, &path)?;
            sync_folder(&path)
        });
        written.map_err(FileError::io(&path.display().to_string()))
    }

    pub(super) fn remove(file: &str) -> Result<(), FileError> {
        let path = Self::path(file);
        fs::remove_file(&path).map_err(FileError::io(&path.display().to_string()))
    }

    /// Whether the output was begun as `job` says.
    pub(super) fn check(&self, file: &str, job: &Job) -> Result<(), FileError> {
        let none = || "nothing".to_owned();
        for field in self.job.keys().chain(job.keys()) {
            let (was, is) = (self.job.get(field), job.get(field));
            if was != is {
                let (was, is) = (was.cloned().unwrap_or_else(none), is.cloned().unwrap_or_else(none));
                return Err(FileError::Differs { file: file.to_owned(), field: field.clone(), was, is });
            }
        }
        Ok(())
    }
}

/// A new name lasts once its folder is on the disk.
pub(super) fn sync_folder(file: &Path) -> std::io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Only Unix opens folders as files.
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}
